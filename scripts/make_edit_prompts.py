#!/usr/bin/env python3
"""Copy-and-edit prompts for `foretoken bench --prompts`: a function of HumanEval is to be given back with one change.

    scripts/make_edit_prompts.py HUMANEVAL.jsonl [COUNT] > edit.jsonl

HUMANEVAL.jsonl has a line per problem with "turns" (whose first ends with a Python function without its body) and
"reference" (its body), as in the EAGLE project's copy. Odd lines ask to rename the function, even ones to add a comment above it.
Functions of at least 12 lines are taken, in the order of the file.
"""
import json
import re
import sys


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) == 3 else 20
    made = 0
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            problem = json.loads(line)
            _, _, head = problem["turns"][0].partition("\n")
            code = head.strip("\n") + "\n" + problem["reference"][0].rstrip()
            name = re.search(r"^def (\w+)", code, re.M)
            if name is None or len(code.splitlines()) < 12:
                continue
            made += 1
            if made % 2:
                task = f"Rename the function `{name[1]}` to `{name[1]}_v2`, everywhere it is named, and change nothing else."
            else:
                task = "Add the comment line `# Checked by hand.` directly above the function, and change nothing else."
            prompt = f"{task} Give back the whole code and no explanation.\n\n```python\n{code}\n```\n"
            print(json.dumps({"question_id": made, "category": "edit", "turns": [prompt]}))
            if made == count:
                return
    sys.exit(f"{sys.argv[1]}: has {made} functions that are long enough, {count} were asked for")


if __name__ == "__main__":
    main()

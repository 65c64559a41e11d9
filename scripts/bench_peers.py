#!/usr/bin/env python3
"""Speculation beside llama.cpp and ik_llama.cpp: the same prompts, greedy, in turns on one machine.

    scripts/bench_peers.py --model M.gguf --prompts FILE.jsonl [--llama LLAMA_SERVER] [--ik IK_SERVER] [-n 256] [-t 2] [--limit 4]

FILE.jsonl is what `foretoken bench --prompts` reads ("category" and "turns" or "prompt"; of turns the first is asked). Servers are
started once for each mode and idle while others answer; foretoken is run per prompt, load time not counted. Prints tokens/s of
decoding by category (the median of prompts' rates), and how many texts differ from those of the same program without speculation.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict

LLAMA_MODES = {
    "none": [],
    "ngram-simple 4/8": ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "8"],
    "ngram-map-k4v 4/8": ["--spec-type", "ngram-map-k4v", "--spec-ngram-map-k4v-size-n", "4", "--spec-ngram-map-k4v-size-m", "8"],
    "ngram-mod": ["--spec-default"],
}
IK_MODES = {
    "none": [],
    "ngram-simple autotune": ["--spec-type", "ngram-simple", "--spec-ngram-size-n", "4", "--spec-ngram-size-m", "8", "--spec-autotune"],
}
OUR_MODES = {"none": [], "lookup": ["--draft", "lookup"]}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A peer's server in one mode."""

    def __init__(self, binary: str, args: argparse.Namespace, extra: list) -> None:
        self.port, self.n = free_port(), args.n
        self.log = tempfile.TemporaryFile()
        command = [binary, "-m", args.model, "-c", "4096", "-t", str(args.t), "-np", "1", "--port", str(self.port), *extra]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2)
                return
            except OSError:
                if self.process.poll() is not None:
                    self.log.seek(0)
                    sys.exit(f"{' '.join(command)}: ended\n{self.log.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.2)
        sys.exit(f"{binary}: did not get ready")

    def answer(self, prompt: str) -> tuple:
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "top_k": 1, "max_tokens": self.n, "cache_prompt": False}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer = json.load(urllib.request.urlopen(request, timeout=900))
        timings = answer["timings"]
        return answer["choices"][0]["message"]["content"], timings["predicted_n"] / timings["predicted_ms"] * 1e3


class Ours:
    """foretoken with some drafters."""

    def __init__(self, args: argparse.Namespace, extra: list) -> None:
        self.command = [args.foretoken, "run", "-m", args.model, "-t", str(args.t), "-n", str(args.n), "--temp", "0", "-q", *extra]

    def answer(self, prompt: str) -> tuple:
        with tempfile.NamedTemporaryFile() as stats:
            command = [*self.command, f"--stats=json={stats.name}", "-p", prompt]
            text = subprocess.run(command, check=True, capture_output=True).stdout.decode()
            return text, json.load(stats)["decode_tok_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--llama", help="llama.cpp's llama-server")
    parser.add_argument("--ik", help="ik_llama.cpp's llama-server")
    parser.add_argument("--foretoken", default=os.path.join(root, "target/release/foretoken"))
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--limit", type=int, default=4, help="prompts of a category")
    args = parser.parse_args()

    prompts = defaultdict(list)
    with open(args.prompts, encoding="utf-8") as lines:
        for line in lines:
            item = json.loads(line)
            chosen = prompts[item.get("category", "all")]
            if len(chosen) < args.limit:
                chosen.append(item["turns"][0] if "turns" in item else item["prompt"])

    engines = {("foretoken", mode): Ours(args, extra) for mode, extra in OUR_MODES.items()}
    if args.llama:
        engines |= {("llama.cpp", mode): Server(args.llama, args, extra) for mode, extra in LLAMA_MODES.items()}
    if args.ik:
        engines |= {("ik_llama.cpp", mode): Server(args.ik, args, [*extra, "-rtr"]) for mode, extra in IK_MODES.items()}
    rates, texts = defaultdict(lambda: defaultdict(list)), defaultdict(list)
    try:
        turn = 0
        for category, asked in prompts.items():
            for prompt in asked:
                names = list(engines)
                turn += 1
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    text, rate = engines[name].answer(prompt)
                    rates[name][category].append(rate)
                    texts[name].append(text.rstrip("\n"))
    finally:
        for engine in engines.values():
            if isinstance(engine, Server):
                engine.process.kill()

    print(f"{'tok/s':<36}" + "".join(f"{category[:14]:>16}" for category in prompts) + f"{'texts changed':>16}")
    for name in engines:
        plain = texts[(name[0], "none")]
        changed = sum(a != b for a, b in zip(texts[name], plain))
        row = "".join(f"{statistics.median(rates[name][category]):>16.1f}" for category in prompts)
        print(f"{' '.join(name):<36}{row}{f'{changed} of {len(plain)}':>16}")


if __name__ == "__main__":
    main()

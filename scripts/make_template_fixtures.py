#!/usr/bin/env python3
"""Writes tests/fixtures/chat/rendered.json.gz: what Python's jinja2, set up as Hugging Face's transformers does, makes of
every template in that folder and every conversation below. Needs the package `jinja2` (made with 3.1.6) and nothing of ours."""
import datetime
import gzip
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "chat"
# Thursday, 5 March 2026, 07:08:09 UTC: one digit where a directive may or may not pad.
CLOCK = 1772694489
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Generation(Extension):
    """Marks the model's part for training; renders what it holds."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("held", [], [])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def held(self, caller):
        return caller()


class Raised(jinja2.exceptions.TemplateError):
    """What a template refuses itself."""


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise Raised(message)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(CLOCK, datetime.timezone.utc).strftime(format)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = function(
    "get_weather",
    'Weather <now> & "later" in a place – naïve',
    {
        "place": {"type": "string", "description": "City, e.g. Zürich"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "description": "How many", "default": 3},
    },
    ["place"],
)
BOOK = function(
    "book",
    "Books a table",
    {
        "people": {"type": "array", "items": {"type": "string", "description": "A name"}, "description": "Who comes"},
        "options": {
            "type": "object",
            "description": "More",
            "properties": {
                "window": {"type": "boolean", "description": "At a window"},
                "budget": {"type": "number", "description": "At most", "nullable": True},
            },
            "required": ["window"],
        },
    },
    ["people", "options"],
)
ODD = function("odd", "Any\nthing", {"when": {"type": ["string", "null"]}, "what": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "x": {}}, [])
NOTHING = {"type": "function", "function": {"name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, BOOK, NOTHING]

QUESTION = [turn("user", "Why is the sky blue?")]
SYSTEM = [turn("system", "Be terse."), *QUESTION]
TURNS = [
    turn("system", " You answer in <b>verse</b>. "),
    turn("user", 'Hi & "welcome" to \\n \'here\''),
    turn("assistant", "Hello there.\n"),
    turn("user", " 2+2?\n\n"),
    turn("assistant", "4"),
    turn("user", "{{ 7 * 7 }} {% raw %} {# no #}"),
]
UNICODE = [turn("user", "Grüße 👋🏽 日本語 עברית \u200b\t\u00a0x\r\ny"), turn("assistant", "ça va? 👨‍👩‍👧"), turn("user", "\u2028é")]
EMPTY = [turn("system", ""), turn("user", ""), turn("assistant", ""), turn("user", "x")]
TWICE = [turn("user", "one"), turn("user", "two")]
ANSWERED = [turn("user", "a"), turn("assistant", "b")]
THOUGHT = [
    turn("user", "a"),
    turn("assistant", "<think>\nhm\n</think>\n\nb"),
    turn("user", "c"),
    turn("assistant", "d", reasoning_content="so\nthat"),
    turn("user", "e"),
]
CALLED = [
    turn("system", "Use tools."),
    turn("user", "Weather in Zürich?"),
    turn("assistant", "", tool_calls=[call("get_weather", {"place": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None, True]}})]),
    turn("tool", '{"temp": 21.5, "sky": "<clear>"}', name="get_weather", tool_call_id="call00001"),
    turn("assistant", "It is 21.5 °C."),
    turn("user", "Thanks"),
]
PARALLEL = [
    turn("user", "Both, please"),
    turn(
        "assistant",
        "",
        tool_calls=[call("get_weather", {"place": "Oslo"}), call("book", {"people": ["Ann", "Bo"], "options": {}}, "call00002")],
    ),
    turn("tool", "rain", name="get_weather", tool_call_id="call00001"),
    turn("tool", "done", name="book", tool_call_id="call00002"),
]
NO_CONTENT = [turn("user", "a"), turn("assistant", None, tool_calls=[call("ping", {})]), turn("tool", "pong", tool_call_id="call00001")]
PARTS = [turn("user", [{"type": "text", "text": "first "}, {"type": "text", "text": "second"}])]
DOCUMENTS = [{"title": "On skies", "text": "Blue.", "doc_id": 1}, {"title": "On seas", "text": "Also blue.", "doc_id": 2}]

CONVERSATIONS = {
    "question": (QUESTION, {}),
    "system": (SYSTEM, {}),
    "turns": (TURNS, {}),
    "turns without system": (TURNS[1:], {}),
    "unicode": (UNICODE, {}),
    "empty": (EMPTY, {}),
    "two users": (TWICE, {}),
    "answered": (ANSWERED, {}),
    "thought": (THOUGHT, {}),
    "parts": (PARTS, {}),
    "tools offered": (SYSTEM, {"tools": TOOLS}),
    "tools offered without system": (QUESTION, {"tools": [WEATHER]}),
    "tools called": (CALLED, {"tools": TOOLS}),
    "tools called at once": (PARALLEL, {"tools": TOOLS}),
    "no content": (NO_CONTENT, {"tools": [NOTHING]}),
    "odd tool": (QUESTION, {"tools": [ODD]}),
    "thinking off": (SYSTEM, {"enable_thinking": False, "thinking": False}),
    "thinking on": (THOUGHT, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "unknown words": (QUESTION, {"date_string": "1 Jan 2025", "no_such_thing": [1], "reasoning_effort": "low"}),
    "documents": (QUESTION, {"documents": DOCUMENTS}),
}

# Over the conversation "turns" and the tools: the constructs that templates are made of, and the corners of Python they
# lean on. Each line is a template, or several with a bar between them.
EXPRESSIONS = r"""
{{ {'a': "it's", 'b': 'say "x"', 'c': 'é\n\t\\', 'd': {'e': [none, true, 1.0, 'x']}} }}|{{ ["it's \"x\"", '\x00\x7f\u200b\u2028'] }}
{{ [] }}|{{ {} }}|{{ (1, 'a') }}|{{ [1.5, -2, none, false] }}|{{ [1e16, 1e-5, 0.1] }}
{{ none }}|{{ true }}|{{ 1.0 }}|{{ 1e16 }}|{{ 1e22 }}|{{ 0.1 + 0.2 }}|{{ 1e-7 }}|{{ 100000.0 }}
{{ 10 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 2 ** 10 }}|{{ 7.5 // 2 }}|{{ 5 - 7 }}
{{ 'x' ~ none ~ true ~ 1.5 ~ [1, 'a'] ~ {'k': 'v'} }}
{{ 'a' + 'b' * 3 }}|{{ [1] + [2] }}|{{ [0] * 3 }}
{{ "{} and {}".format('a', 1) }}|{{ "{0}{1}{0}".format('x', 'y') }}|{{ "{a}".format(a='z') }}
{{ '%s=%d' | format('a', 3) }}|{{ '%.2f' | format(1.005) }}|{{ '%05d' | format(42) }}
{{ 'abc'[-1] }}|{{ 'abc'[::-1] }}|{{ 'abcdef'[1:4] }}|{{ 'abc'[5:] }}|{{ [1, 2, 3][-2:] }}|{{ [1, 2, 3][::2] }}
{{ messages[-1].content }}|{{ messages[-1]['role'] }}|{{ messages[0:2] | length }}|{{ messages[1:][0].role }}
{{ messages | map(attribute='role') | list }}|{{ messages | map(attribute='role') | join(', ') }}|{{ messages | map(attribute='role') | unique | list }}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | map('trim') | list }}
{{ messages | selectattr('role', 'in', ['user', 'system']) | list | length }}|{{ messages | rejectattr('role', 'eq', 'user') | list | length }}
{{ messages | selectattr('tool_calls', 'defined') | list | length }}|{{ messages | selectattr('tool_calls') | list | length }}
{{ [3, 1, 2] | sort }}|{{ [3, 1, 2] | sort(reverse=true) }}|{{ ['b', 'A'] | sort }}|{{ ['b', 'A'] | sort(case_sensitive=true) }}
{{ messages | sort(attribute='role') | map(attribute='role') | join }}|{{ [1, 2, 3] | sum }}|{{ [1, 2] | max }}|{{ [] | first is defined }}
{{ {'b': 1, 'a': 2} | dictsort }}|{{ {'b': 1, 'a': 2} | dictsort(by='value') }}|{{ {'b': 1, 'a': 2} | list }}|{{ {'b': 1} | items | list }}
{{ {'b': 1, 'a': 2}.items() | list }}|{{ {'b': 1}.keys() | list }}|{{ {'b': 1}.values() | list }}|{{ {'b': 1}.get('c') }}|{{ {'b': 1}.get('c', 2) }}|{{ {'b': 1}.get('b') }}
{% for k, v in {'x': 1, 'y': [2]}.items() %}{{ loop.index }}{{ k }}{{ v }}{{ loop.last }}{{ loop.revindex0 }};{% endfor %}
{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}{% for c in 'añ' %}[{{ c }}]{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index0 }}/{{ loop.length }}{{ loop.first }}{% else %}none{% endfor %}{% for m in [] %}x{% else %}none{% endfor %}
{% for i in range(10, 0, -3) %}{{ i }}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.changed(i // 5) }} {% endfor %}
{% for i in range(5) %}{% for j in range(5) %}{% if j == i %}{% break %}{% endif %}{% if j == 1 %}{% continue %}{% endif %}{{ j }}{% endfor %};{% endfor %}
{% set ns = namespace(n=0, s='') %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }}{{ ns.s }}
{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}
{% set x %}block {{ 1 + 1 }}{% endset %}{{ x }}|{{ x | upper }}{% filter upper %}abc{% endfilter %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c='z') }}|{{ m(b=5, a=4) }}|{{ m() }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{% set r = f(2) | trim %}{{ r ~ '!' }}
{% macro w(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{% call w(1) %}in{% endcall %}
{% generation %}{% set inside = 1 %}{{ inside }}{% endgeneration %}{{ inside }}|{%- generation -%} a {%- endgeneration -%} b
{% raw %}{{ raw }} {% if %}{% endraw %}|{# comment #}|{{ '{{' }}|{{ "}}" }}
{% raw %}{% generation %}{% endraw %}|{{ '{% generation %}' }}|{# {% generation %} #}
{{ x is defined }}|{{ messages is defined }}|{{ x is undefined }}|{{ none is none }}|{{ x is none }}|{{ x is not none }}
{{ {} is mapping }}|{{ [] is mapping }}|{{ 's' is string }}|{{ 1 is string }}|{{ [1] is sequence }}|{{ 's' is sequence }}|{{ {} is sequence }}|{{ none is sequence }}
{{ [] is iterable }}|{{ {} is iterable }}|{{ 's' is iterable }}|{{ none is iterable }}|{{ 1 is iterable }}|{{ x is iterable }}
{{ 1 is number }}|{{ 1.5 is number }}|{{ true is number }}|{{ 1 is integer }}|{{ 1.0 is integer }}|{{ true is integer }}|{{ 1.0 is float }}|{{ true is boolean }}|{{ 1 is boolean }}|{{ '1' is number }}
{{ true is true }}|{{ 1 is true }}|{{ false is false }}|{{ 0 is false }}|{{ none is false }}|{{ x is false }}|{{ 4 is even }}|{{ 4 is divisibleby 2 }}|{{ 1 is in [1] }}|{{ none is sameas none }}|{{ 'a' is lower }}
{{ 1 == 1.0 }}|{{ true == 1 }}|{{ '1' == 1 }}|{{ none == false }}|{{ [1, 'a'] == [1, 'a'] }}|{{ {'a': 1} == {'a': 1.0} }}|{{ 'a' < 'b' }}|{{ 2 > 1.5 }}|{{ [1, 2] < [1, 3] }}|{{ 1 < 2 < 3 }}|{{ x == none }}
{{ 'b' in 'abc' }}|{{ 'k' in {'k': 1} }}|{{ 2 in [1, 2] }}|{{ 'x' not in 'abc' }}|{{ none in [none] }}|{{ 'user' in messages | map(attribute='role') }}
{{ not x }}|{{ x or 'fallback' }}|{{ '' or 0 or [] }}|{{ 'a' and 'b' }}|{{ 0 and 'b' }}|{{ x and x.y }}|{{ not [] and not {} and not '' and not 0 and not none }}
{{ 'a' if true }}|{{ 'a' if false }}|{{ 'a' if false else 'b' if true else 'c' }}|{{ ('a' if false) is defined }}
{{ x }}|{{ messages[0].nothing }}|{{ messages[0]['nothing'] }}|{{ messages[99] }}|{{ (messages | first).role }}|{{ (messages | last).role }}
{{ x.y }}|{{ x['y'] }}|{{ messages[0].a.b }}|{{ x + 'a' }}|{{ x() }}|{{ 'a' + 1 }}|{{ 'a' + none }}|{{ messages | length + 'a' }}|{{ 'a' in none }}|{{ none | length }}
{{ 1 | nofilter }}|{{ 1 is notest }}|{{ 'a'.nomethod() }}|{{ messages.append(1) }}|{{ messages[0].update({'a': 1}) }}|{{ raise_exception('é: no "way"') }}|{{ 1 // 0 }}|{{ [][0].a }}
{{ x | length }}|{{ x | upper }}|{{ x | join(',') }}|{{ x | list }}|{{ x ~ 'a' }}|{{ x | default('d') }}|{{ none | default('d') }}|{{ none | default('d', true) }}|{{ '' | default('d', boolean=true) }}|{{ x | d(1) }}|{{ x | trim }}|{{ none | trim }}|{{ none | string }}|{{ 1 | upper }}
{{ 'a b\tc\n d'.split() }}|{{ 'a,b,,c'.split(',') }}|{{ 'a,b,c'.split(',', 1) }}|{{ ''.split(',') }}|{{ ''.split() }}|{{ 'a--b'.split('--')[-1] }}|{{ 'a\nb\r\nc'.splitlines() }}
{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'abc'.index('c') }}|{{ 'abc'.find('z') }}|{{ 'abcb'.rfind('b') }}|{{ 'aab'.count('a') }}|{{ '7'.zfill(3) }}|{{ 'a'.ljust(3) ~ '|' }}|{{ 'aB'.swapcase() }}
{{ ' \n x \t'.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '<a>'.lstrip('<').rstrip('>') }}|{{ 'abcba'.strip('ab') }}|{{ ' x ' | trim }}|{{ 'xax' | trim('x') }}|{{ '\x1c x\u3000\x85' | trim }}|{{ '\x1f x\u00a0'.strip() }}
{{ 'aXb'.upper() }}|{{ 'aXb'.lower() }}|{{ "it's a test".title() }}|{{ "it's a test" | title }}|{{ 'hELLO wORLD'.capitalize() }}|{{ 'hELLO' | capitalize }}|{{ 'ß'.upper() }}|{{ 'İ'.lower() | length }}
{{ 'abc'.startswith('a') }}|{{ 'abc'.startswith(('x', 'a')) }}|{{ 'abc'.endswith('bc') }}|{{ 'abc'.endswith(('x', 'y')) }}|{{ '12'.isdigit() }}|{{ ''.isdigit() }}|{{ 'a1'.isalnum() }}|{{ ' '.isspace() }}|{{ 'a'.isalpha() }}|{{ 'A'.isupper() }}
{{ 'a-b-c'.replace('-', '+') }}|{{ 'a-b-c'.replace('-', '+', 1) }}|{{ 'a-b' | replace('-', '+') }}|{{ ', '.join(['a', 'b']) }}|{{ ['a', 'b'] | join }}|{{ [1, none, true] | join('-') }}
{{ 'abc' | length }}|{{ 'é😀' | length }}|{{ {'a': 1} | length }}|{{ 'abc' | count }}|{{ 'abc' | list }}|{{ 'abc' | reverse }}|{{ [1, 2] | reverse | list }}|{{ 'abc' | first }}|{{ 'abc' | last }}
{{ '42' | int + 1 }}|{{ 3.9 | int }}|{{ 'x' | int }}|{{ 'x' | int(7) }}|{{ '1.5' | float }}|{{ 3 | float }}|{{ 3 | string + 'a' }}|{{ 2.567 | round(2) }}|{{ 2.5 | round }}|{{ 3 | round }}|{{ -5 | abs }}|{{ true | int }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb\n\nc' | indent(2, true) }}|{{ 'a\nb\n\nc' | indent(width=1, blank=true) }}|{{ '{\n' | indent(4, first=true) }}|{{ 'x' | indent('--', first=true) }}|{{ 'a\r\nb\n' | indent(2) }}|{{ '' | indent(2, true) }}|{{ tools | tojson(indent=2) | indent(4) }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }}|{{ [1, 2, 3, 4, 5] | slice(2) | list }}|{{ ['a', 'b'] | map('upper') | list }}|{{ [1, 2, 3, 4] | select('even') | list }}|{{ ['', 'a', none] | select | list }}|{{ ['', 'a'] | reject | list }}
{{ '<a> & "b"' | e }}|{{ '<a>' | escape }}|{{ '<b>' | safe }}
{{ tools | tojson }}|{{ tools | tojson(indent=4) }}|{{ tools[1].function | tojson(indent=2, sort_keys=true) }}|{{ tools | tojson(indent=0) }}|{{ [1, [], {}, ''] | tojson(indent=1) }}|{{ {'a': [1]} | tojson(indent='>') }}
{{ {'é': ['ü', 1.5, 1e20, 1e-9, none, true, {}, []], 'q': '"<>&\''} | tojson }}|{{ 'é😀\u2028\x7f\x01\\/' | tojson }}|{{ 'é😀\u2028\x7f\x01' | tojson(ensure_ascii=True) }}|{{ '"<>&' | tojson(ensure_ascii=False) }}
{{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=True, separators=(',', ':')) }}|{{ [1, 2] | tojson(separators=(';', '=')) }}|{{ ['é'] | tojson(true) }}|{{ {'a': 1} | tojson(false, 2) }}|{{ {'a': 1} | tojson(indent=2, separators=(',', ':')) }}
{{ {1: 'a', none: 'b', true: 'c', 1.5: 'd'} | tojson }}|{{ (1, 2) | tojson }}|{{ 'x' | tojson }}|{{ none | tojson }}|{{ 1 | tojson }}|{{ 1.0 | tojson }}|{{ messages | map(attribute='role') | list | tojson }}
{{ x | tojson }}|{{ [x] | tojson }}|{{ 1 | tojson(nothing=1) }}
{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%B %d, %Y') }}|{{ strftime_now('%A %j %H:%M:%S %I %p %y %e %U %W %w %u %C %h %n %t %%') }}|{{ strftime_now('%-d %-m %-H %-I %-M %-S %-j %-y') }}|{{ strftime_now('%D %F %T %R %c %x %X %r %Z %z %s %f %G-%V %k %l') }}
{{ 'a\tb\\c\'d\"e' }}|{{ "\u00e9\x41\101" }}|{{ '\d\w' }}|{{ 'é\n' }}
{{ dict(a=1, b=2) }}|{{ dict(a=1).a }}|{{ dict({'a': 1}, b=2) }}|{{ range(3) | list }}|{{ range(3) | length }}|{{ [range(2) | list] }}
{{ (messages | map(attribute='content') | list)[0] | trim }}|{{ messages | map('length') | list }}|{{ [[1, 2], [3]] | map('first') | list }}
{%- if true -%} a {%- endif -%} b {{- ' c ' -}} d
 {% if true %} x {% endif %} y {%+ if true %}z{% endif +%}
{{ 1_000 }}|{{ 1.5e3 }}|{{ 9223372036854775807 }}|{{ 9223372036854775807 + 1 }}|{{ 2 ** 70 }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = (1, 2) %}{{ c[0] }}{% set d = {'k': [1]} %}{{ d.k[0] }}{% with z = 3 %}{{ z }}{% endwith %}
{% if messages and messages[0].role == 'system' and messages[0].content is string %}yes{% elif x %}no{% else %}never{% endif %}
{{ messages[0].content is string and messages[0].content | trim | length > 0 }}|{{ (tools or []) | length }}|{{ 'a' is in 'abc' }}|{{ 1 in (1, 2) }}
{{ ['a', 'b'].index('b') }}|{{ ['a', 'b', 'a'].count('a') }}|{{ {'items': 1}['items'] }}|{{ {'a': 1}.copy() }}|{{ ('a', 'b') + ('c',) }}|{{ (1,) }}
{{ 'x'.join(messages | map(attribute='role')) }}|{{ messages[0].get('content') }}|{{ messages[0].get('nope', 'd') }}|{{ 'content' in messages[0] }}|{{ messages[0].keys() | list }}
{{ 'ab' 'cd' }}|{{ -1 | abs }}|{{ not true or true }}|{{ 1 + 2 * 3 ** 2 }}|{{ -2 ** 2 }}|{{ 10 // 3 * 3 }}|{{ 1 ~ 2 == '12' }}|{{ 'a' ~ (1 + 2) }}
{% for m in messages %}{{ m.role[0] }}{{ loop.index is odd }}{% endfor %}{{ loop is defined }}
"""


def main():
    cases = []
    for path in sorted(FOLDER.glob("*.jinja")):
        with open(path, encoding="utf-8", newline="") as f:
            template = environment().from_string(f.read())
        for name, (messages, extra) in CONVERSATIONS.items():
            for prompt in (True, False):
                case = {"template": path.stem, "conversation": name, "prompt": prompt}
                # As in a program, everything is made anew: templates change lists in place.
                context = json.loads(json.dumps({"messages": messages, "tools": None, "documents": None, **extra}))
                try:
                    case["text"] = template.render(add_generation_prompt=prompt, **TOKENS, **context)
                except Raised as e:
                    case["raised"] = str(e)
                except (jinja2.exceptions.TemplateError, TypeError, AttributeError, ValueError, LookupError, RecursionError) as e:
                    case["error"] = f"{type(e).__name__}: {e}"
                cases.append(case)
    expressions = []
    for line in EXPRESSIONS.strip().split("\n"):
        whole = "{%" in line or "{#" in line or not line.startswith("{{")
        for source in [line] if whole else line.replace("}}|{{", "}}\n{{").split("\n"):
            case = {"source": source}
            context = json.loads(json.dumps({"messages": TURNS, "tools": TOOLS, "documents": None}))
            try:
                case["text"] = environment().from_string(source).render(add_generation_prompt=True, **TOKENS, **context)
            except Exception as e:
                case["error"] = f"{type(e).__name__}: {e}"
            expressions.append(case)
    conversations = {name: {"messages": m, "extra": e} for name, (m, e) in CONVERSATIONS.items()}
    out = {"clock": CLOCK, "conversations": conversations, "cases": cases, "expressions": expressions}
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()
    (FOLDER / "rendered.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    refused, failed = (sum(kind in case for case in cases) for kind in ("raised", "error"))
    print(f"{len(cases)} cases, {refused} refused, {failed} failed; {len(expressions)} expressions")


main()

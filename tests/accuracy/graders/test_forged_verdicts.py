"""No program given as an answer writes its own verdict; programs that are right, and wrong ones, keep theirs."""

import json
import os
import shutil
import sys
from functools import cache
from pathlib import Path

import attacks
import pytest
from square_problems import row

from cm4vllm.accuracy.graders.catalogue import grader
from cm4vllm.accuracy.graders.judging import judge
from cm4vllm.accuracy.graders.providing import _official
from cm4vllm.accuracy.graders.records import GraderRecord
from cm4vllm.accuracy.graders.sandbox import sandbox_lacks

NEXT = "\ndef check(candidate):\n    assert candidate(1) == 2\n    assert candidate(7) == 8\n"


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """Make graders ready by name, with the packages of this environment."""
    if why := sandbox_lacks():
        pytest.skip(why)
    if not os.environ.get("GRADER_SOURCES"):
        pytest.skip("GRADER_SOURCES names no folder with git directories of inference, mxeval and LiveCodeBench")

    def make(name):
        folder = tmp_path_factory.mktemp(name)
        for origin in grader(name).origins:
            _official(origin, folder / "official" / origin.name, folder, Path(os.environ["GRADER_SOURCES"]))
        return GraderRecord(
            name=name, script="", official=str(folder / "official"), python=sys.executable, commits={}, packages=""
        )

    return cache(make)


def square(program, kind="stdin"):
    problem = json.dumps(row("square", kind, packed=True))
    return {"question_id": "square", "problem": problem, "response": f"```python\n{program}\n```"}


def mbxp(program, test=NEXT, lang="python"):
    return {"lang": lang, "prompt": "", "entry_point": "next", "response": program, "test_code": test}


RIGHT_SQUARE = square("print(int(input()) ** 2)")
STDIN = {**attacks.PYTHON, **attacks.READERS}


@pytest.mark.parametrize("name", ["livecodebench", "livecodebench_v6"])
def test_no_program_of_livecodebench_writes_its_own_verdict(ready, name):
    tasks = [RIGHT_SQUARE, *map(square, STDIN.values()), RIGHT_SQUARE]
    verdicts = judge(ready(name), tasks)
    forged = [attack for attack, verdict in zip(STDIN, verdicts[1:], strict=False) if verdict.right]
    assert (forged, verdicts[0].right, verdicts[-1].right) == ([], True, True)


def test_no_method_of_livecodebench_writes_its_own_verdict(ready):
    head = "class Solution:\n    def square(self, n):\n"
    tasks = {
        name: square(head + "".join(f"        {line}\n" for line in program.splitlines()), "functional")
        for name, program in attacks.PYTHON.items()
    }
    tasks["equal-to-all"] = square(f"{attacks.EQUAL_TO_ALL}\n{head}        return Equal(1)", "functional")
    right = square(head + "        return n * n", "functional")
    verdicts = judge(ready("livecodebench"), [right, *tasks.values(), right])
    assert [name for name, verdict in zip(tasks, verdicts[1:], strict=False) if verdict.right] == []
    assert (verdicts[0].right, verdicts[-1].right) == (True, True)


def test_no_program_of_mbxp_in_python_writes_its_own_verdict(ready):
    tasks = {name: mbxp(f"{program}\ndef next(x):\n    return 0\n") for name, program in attacks.PYTHON.items()}
    tasks["equal-to-all"] = mbxp(f"{attacks.EQUAL_TO_ALL}\ndef next(x):\n    return Equal(1)\n")
    tasks["on-call"] = mbxp(
        "def next(x):\n" + "".join(f"    {line}\n" for line in attacks.PYTHON["results-in-frames"].splitlines())
    )
    right = mbxp("def next(x):\n    return x + 1\n")
    verdicts = judge(ready("mbxp"), [right, *tasks.values(), right])
    assert [name for name, verdict in zip(tasks, verdicts[1:], strict=False) if verdict.right] == []
    assert (verdicts[0].right, verdicts[-1].right) == (True, True)


@pytest.mark.parametrize(
    ("lang", "tool", "test", "right"),
    [
        ("javascript", "node", "if (next(1) !== 2) throw 'wrong';\n", "function next(x) { return x + 1; }\n"),
        ("cpp", "g++", "int main() { return next(1) == 2 ? 0 : 1; }\n", "int next(int x) { return x + 1; }\n"),
    ],
)
def test_no_program_of_mbxp_in_another_language_writes_its_own_verdict(ready, lang, tool, test, right):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} not found on PATH")
    programs = (right, attacks.OTHERS[lang], right)
    verdicts = judge(ready("mbxp"), [mbxp(program, test, lang) for program in programs], workers=1)
    assert [verdict.right for verdict in verdicts] == [True, False, True]


def test_values_of_every_kind_are_compared_as_in_one_process(ready):
    """Each program is right with its test in the same process, and so it is where both have a process each."""
    pairs = [
        (
            "def next(x):\n    return {x: (x, [x]), 'a': {1.5, None}}\n",
            "candidate(1) == {1: (1, [1]), 'a': {1.5, None}}",
        ),
        ("def next(x):\n    return map(str, range(x))\n", "list(candidate(3)) == ['0', '1', '2']"),
        ("def next(x):\n    return x * 10 ** 400 + 1j\n", "candidate(0) == 1j"),
        ("def next(*x, **named):\n    return x, named\n", "candidate(1, b=2) == ((1,), {'b': 2})"),
        ("def next(x):\n    return float('nan')\n", "candidate(1) != candidate(1)"),
        ("def next(x):\n    return b'\\xff' * x\n", "candidate(2) == b'\\xff\\xff'"),
        ("def next(x):\n    raise ValueError(x)\n", "raises(candidate)"),
        # The test uses what the program defines, or what it hands over: both run in one process.
        (
            "class Pair:\n    def __init__(self, a):\n        self.a = a\ndef next(x):\n    return x.a\n",
            "candidate(Pair(2)) == 2",
        ),
        ("def next(x):\n    x.append(1)\n", "changes(candidate)"),
    ]
    head = (
        "\ndef raises(candidate):\n    try:\n        candidate(1)\n    except ValueError:\n        return True\n"
        "def changes(candidate):\n    x = []\n    candidate(x)\n    return x == [1]\n"
    )
    tasks = []
    for program, expression in pairs:
        tasks.append(mbxp(program, f"{head}def check(candidate):\n    assert {expression}\n"))
        tasks.append(mbxp(program, f"{head}def check(candidate):\n    assert not ({expression})\n"))
    verdicts = judge(ready("mbxp"), tasks)
    assert [verdict.right for verdict in verdicts] == [True, False] * len(pairs), [verdict.why for verdict in verdicts]


def test_each_verdict_has_a_token_that_no_program_sees(ready):
    """A program cannot find it in its process, its files, its environment, or in what it is asked."""
    search = """
def next(x):
    import gc, os, re
    found = [repr(one)[:100] for one in gc.get_objects() if isinstance(one, dict) and "token" in one and "lang" in one]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for what in ("environ", "cmdline"):
            try:
                text = os.read(os.open(f"/proc/{pid}/{what}", os.O_RDONLY), 1 << 20).decode(errors="replace")
                found += re.findall(r"[0-9a-f]{32}", text)
            except OSError:
                pass
    if found:
        raise KeyError(found)
    return x + 1
"""
    (verdict,) = judge(ready("mbxp"), [mbxp(search)])
    assert (verdict.right, verdict.why) == (True, "passed")

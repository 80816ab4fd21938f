"""Verdicts on answers: the official script gives them, and a program that is held changes its own alone."""

import ast
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import attacks
import pytest
from square_problems import row, write_problems

from cm4vllm.accuracy.graders import catalogue, judging
from cm4vllm.accuracy.graders.catalogue import GRADERS, GraderRecord, grader, grader_lacks
from cm4vllm.accuracy.graders.judging import _official, judge, provide, require_known
from cm4vllm.accuracy.graders.sandbox import Limits, sandbox_lacks
from cm4vllm.accuracy.metric_families import Samples, rouge_gsm8k_and_mbxp
from cm4vllm.accuracy.scoring import SCORERS, lacks_of
from cm4vllm.accuracy.sentences import Sentences
from cm4vllm.common.errors import InstallError, SourceUnavailable, UsageError

RECIPE = Path(__file__).resolve().parents[3] / "script" / "get-mlperf-grader"
NEXT = "\ndef check(candidate):\n    assert candidate(1) == 2\n"
#: A program of ours in place of an official script: a verdict a line, or what the task says.
STAND_IN = """
import json, os, sys
for line in sys.stdin:
    task = json.loads(line)
    exec(task["do"])
    print(json.dumps({"right": task["right"], "token": task["token"]}), flush=True)
"""
ENDLESS = "while True: pass"


def grader_record(name, official):
    return GraderRecord(name=name, script="", official=str(official), python=sys.executable, commits={}, packages="")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A grader whose script is the stand-in."""
    if why := sandbox_lacks():
        pytest.skip(why)
    inside, official = tmp_path / "inside.py", tmp_path / "official"
    inside.write_text(STAND_IN)
    official.mkdir()
    known = replace(grader("math"), name="own", inside=inside, known=(), limits=Limits(seconds=1))
    monkeypatch.setitem(GRADERS, "own", known)
    monkeypatch.setattr(judging, "_START_S", 1.0)
    limited = judging._verdict

    def patient(process, asked, sockets, seconds):
        """Hold a task that never ends in time; the others may take longer, on a machine that stands still."""
        return limited(process, asked, sockets, seconds if asked["do"] == ENDLESS else 60.0)

    monkeypatch.setattr(judging, "_verdict", patient)
    return grader_record("own", official)


def task(right, do="pass"):
    return {"right": right, "do": do}


def test_an_answer_that_is_held_counts_as_wrong_and_the_next_are_judged(own, capsys):
    tasks = [task(True), task(True, ENDLESS), task(False), task(True, "os._exit(0)"), task(True), task(None)]
    verdicts = judge(own, tasks, workers=1)
    assert [verdict.right for verdict in verdicts] == [True, False, False, False, True, None]
    assert [verdict.held for verdict in verdicts] == [False, True, False, True, False, False]
    assert verdicts[1].why == "no verdict within 2 s"
    assert verdicts[3].why == "the script ended without a verdict"
    assert "held 2 of 6 answers" in capsys.readouterr().out


def test_an_answer_that_prints_without_an_end_is_held(own):
    flood, right = judge(own, [task(True, "while True: sys.stdout.write('x' * 65536)"), task(True)], workers=1)
    assert (flood.held, flood.why) == (True, "no verdict in 1,048,576 bytes of output")
    assert right.right


def test_a_verdict_without_its_token_counts_as_wrong(own):
    forged = "print(json.dumps({'right': True, 'token': TOKEN}), flush=True)"
    forgeries = (forged.replace("TOKEN", "'0' * 32"), forged.replace(", 'token': TOKEN", ""), "pass")
    stale, without, right = judge(own, [task(True, forgery) for forgery in forgeries], workers=1)
    assert [verdict.right for verdict in (stale, without, right)] == [False, False, True]
    assert stale.why == without.why == "the script ended without a verdict"


def test_a_known_answer_that_is_judged_otherwise_makes_the_grader_unusable(own, monkeypatch):
    known = (catalogue.Known({"right": False, "do": "pass", "lang": "ruby"}, right=True),)
    monkeypatch.setitem(GRADERS, "own", replace(GRADERS["own"], known=known))
    with pytest.raises(InstallError, match="does not work on this machine") as refused:
        require_known(own)
    assert "an answer in ruby that is right was judged otherwise" in refused.value.cause


def test_what_is_missing_is_named_before_anything_is_fetched(monkeypatch, tmp_path):
    for program in ("bwrap", "node", "php", "g++", "tsc"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox_lacks.cache_clear()
    try:
        (why,) = grader_lacks("mbxp")
        assert "ruby (for Ruby)" in why and "php" not in why
        assert grader_lacks("math") == ()
        with pytest.raises(InstallError, match="cannot run on this machine"):
            provide("mbxp", tmp_path / "made", RECIPE)
    finally:
        sandbox_lacks.cache_clear()
    with pytest.raises(UsageError, match="unknown grader"):
        grader("mbxp2")


@pytest.mark.parametrize("name", ["livecodebench", "livecodebench_v6"])
def test_all_that_is_missing_is_named_at_once(monkeypatch, tmp_path, name):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox_lacks.cache_clear()
    try:
        sandbox, tests = grader_lacks(name)
        assert "bwrap not found on PATH" in sandbox and "--livecodebench_path=FOLDER" in tests
        scorer = next(scorer for scorer in SCORERS.values() if (name,) in scorer.graders.values())
        assert lacks_of(scorer)["exact_match"] == (sandbox, tests)
    finally:
        sandbox_lacks.cache_clear()


def test_every_language_that_is_counted_has_known_answers_of_both_kinds():
    known = {(example.task["lang"], example.right) for example in grader("mbxp").known}
    languages = ("python", "javascript", "typescript", "php", "ruby", "cpp")
    assert known == {(lang, right) for lang in languages for right in (True, False)}


def test_the_programs_in_the_sandboxes_call_what_the_exchange_of_messages_has():
    """They import it by its name, as they are not part of the package: mypy does not see it."""
    exchange = ast.parse((catalogue.INSIDE / "exchange.py").read_text())
    known = {node.name for node in exchange.body if isinstance(node, ast.FunctionDef)}
    for path in catalogue.INSIDE.glob("*.py"):
        assert set(re.findall(r"\bexchange\.(\w+)", path.read_text())) <= known, path.name


@pytest.fixture(scope="module")
def sources():
    if not os.environ.get("GRADER_SOURCES"):
        pytest.skip("GRADER_SOURCES names no folder with git directories of the graders' sources")
    return Path(os.environ["GRADER_SOURCES"])


@pytest.fixture(scope="module")
def ready(sources, tmp_path_factory):
    """Make graders ready by name: the official files, with the packages of this environment."""
    if why := sandbox_lacks():
        pytest.skip(why)

    def make(name):
        folder = tmp_path_factory.mktemp(name)
        for origin in grader(name).origins:
            _official(origin, folder / "official" / origin.name, folder, sources)
        return grader_record(name, folder / "official")

    return cache(make)


def test_the_official_script_judges_programs(ready):
    answers = {
        "python_next": "def next(x):\n    return x + 1\n```\nThis is the next one.",
        "python_other": "def other(x):\n    return x\n",
        "python_exits": "import os\nos._exit(0)\n",
        "rust_next": "fn next() {}",
    }
    rows = [{"dataset": "MBXP", "id": name, "input": "", "output": NEXT} for name in answers]
    samples = Samples(list(answers.values()), rows, Sentences("punkt-untrained"), graders={"mbxp": ready("mbxp")})
    scored = rouge_gsm8k_and_mbxp(samples)
    # One of the three that the script counts; rust is none of its languages.
    assert scored.values == {"mbxp": pytest.approx(100 / 3)}
    assert rouge_gsm8k_and_mbxp(replace(samples, graders={})).values == {}


def test_a_source_without_the_commit_is_refused(tmp_path):
    (tmp_path / "mxeval" / "objects").mkdir(parents=True)
    (tmp_path / "mxeval" / "HEAD").write_text("ref: refs/heads/main\n")
    with pytest.raises(SourceUnavailable, match="does not hold the commit") as refused:
        _official(grader("mbxp").origins[1], tmp_path / "out", tmp_path, tmp_path)
    assert "--grader_src=FOLDER" in refused.value.remedy


@pytest.mark.long
@pytest.mark.parametrize("name", list(GRADERS))
def test_a_grader_is_made_ready_and_judges_as_it_should(name, sources, tmp_path):
    problems = tmp_path / "tests"
    write_problems(problems, GRADERS[name].problems)
    if why := grader_lacks(name, str(problems)):
        pytest.skip("; ".join(why))
    record = provide(name, tmp_path, RECIPE, sources, problems)
    assert {origin.name for origin in grader(name).origins} <= set(record.commits)
    if name == "math":
        answers = [rf"so \boxed{{{answer}}}" for answer in (*attacks.MATHEMATICS, r"0.5", r"\frac{2}{4}", r"\tfrac12")]
        verdicts = judge(record, [{"response": answer, "reference": r"\frac{1}{2}"} for answer in answers])
        assert [verdict.right for verdict in verdicts] == [*[False] * len(attacks.MATHEMATICS), True, False, True]


# --- no program given as an answer writes its own verdict; programs that are right, and wrong ones, keep theirs


FORGED_NEXT = "\ndef check(candidate):\n    assert candidate(1) == 2\n    assert candidate(7) == 8\n"


def square(program, kind="stdin"):
    problem = json.dumps(row("square", kind, packed=True))
    return {"question_id": "square", "problem": problem, "response": f"```python\n{program}\n```"}


def forged_mbxp(program, test=FORGED_NEXT, lang="python"):
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
    tasks = {name: forged_mbxp(f"{program}\ndef next(x):\n    return 0\n") for name, program in attacks.PYTHON.items()}
    tasks["equal-to-all"] = forged_mbxp(f"{attacks.EQUAL_TO_ALL}\ndef next(x):\n    return Equal(1)\n")
    tasks["on-call"] = forged_mbxp(
        "def next(x):\n" + "".join(f"    {line}\n" for line in attacks.PYTHON["results-in-frames"].splitlines())
    )
    right = forged_mbxp("def next(x):\n    return x + 1\n")
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
    verdicts = judge(ready("mbxp"), [forged_mbxp(program, test, lang) for program in programs], workers=1)
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
    tasks = [
        forged_mbxp(program, f"{head}def check(candidate):\n    assert {asked}\n")
        for program, expression in pairs
        for asked in (expression, f"not ({expression})")
    ]
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
    (verdict,) = judge(ready("mbxp"), [forged_mbxp(search)])
    assert (verdict.right, verdict.why) == (True, "passed")

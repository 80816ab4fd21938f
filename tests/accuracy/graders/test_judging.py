"""Verdicts on answers: the official script gives them, and a program that is held changes its own alone."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import attacks
import pytest
from square_problems import write_problems

from cm4vllm.accuracy.graders import catalogue, judging
from cm4vllm.accuracy.graders.catalogue import GRADERS, grader, grader_lacks
from cm4vllm.accuracy.graders.judging import judge, require_known
from cm4vllm.accuracy.graders.providing import _official, provide
from cm4vllm.accuracy.graders.records import GraderRecord
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
    return GraderRecord(
        name="own", script="own.py", official=str(official), python=sys.executable, commits={}, packages=""
    )


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
    stale, without, right = judge(
        own,
        [
            task(True, forged.replace("TOKEN", "'0' * 32")),
            task(True, forged.replace(", 'token': TOKEN", "")),
            task(True),
        ],
        workers=1,
    )
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
    assert known == {
        (lang, right)
        for lang in ("python", "javascript", "typescript", "php", "ruby", "cpp")
        for right in (True, False)
    }


@pytest.fixture(scope="module")
def sources():
    if not os.environ.get("GRADER_SOURCES"):
        pytest.skip("GRADER_SOURCES names no folder with git directories of inference, mxeval and prm800k")
    return Path(os.environ["GRADER_SOURCES"])


@pytest.fixture(scope="module")
def mbxp(sources, tmp_path_factory):
    """The official files, with the packages of this environment."""
    if why := sandbox_lacks():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("mbxp")
    for origin in grader("mbxp").origins:
        _official(origin, folder / "official" / origin.name, folder, sources)
    return GraderRecord(
        name="mbxp", script="", official=str(folder / "official"), python=sys.executable, commits={}, packages=""
    )


def test_the_official_script_judges_programs(mbxp):
    answers = {
        "python_next": "def next(x):\n    return x + 1\n```\nThis is the next one.",
        "python_other": "def other(x):\n    return x\n",
        "python_exits": "import os\nos._exit(0)\n",
        "rust_next": "fn next() {}",
    }
    rows = [{"dataset": "MBXP", "id": name, "input": "", "output": NEXT} for name in answers]
    samples = Samples(list(answers.values()), rows, Sentences("punkt-untrained"), graders={"mbxp": mbxp})
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

"""TEST01: answers of a run in performance mode beside those of the accuracy run, against the official verification."""

import itertools
import json
import random
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import InstallError, InvalidResult, RunFailed
from cm4vllm.compliance import test01
from cm4vllm.compliance.run_verdict import LoggedRun
from cm4vllm.compliance.verification import require_passed
from cm4vllm.records.compliance import ComplianceRecord
from cm4vllm.records.logs.answers import logged_data, read_answers
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.rules import Mode, Scenario, audit, terms

WHISPER = terms("v6.1", "whisper", Scenario.OFFLINE, Mode.PERFORMANCE)
SAID = {0: "salt and silk", 1: "ten tons", 2: "", 3: "late"}


def log(folder, answers):
    """Write an accuracy log of (sample, text) and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        {
            "seq_id": number,
            "qsl_idx": index,
            "data": np.array([WHISPER.labels.index(letter) for letter in text], np.int64).tobytes().hex().upper(),
            "token_count": len(text),
        }
        for number, (index, text) in enumerate(answers)
    ]
    path = folder / ACCURACY_LOG
    path.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")
    return path


#: Runs a script for each pair of logs; a zero byte follows each output.
FOR_EACH_PAIR = """
import runpy, sys
script, *logs = sys.argv[1:]
for baseline, tested in zip(logs[::2], logs[1::2]):
    sys.argv = [script, "--dtype", "int64", "-r", baseline, "-t", tested]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code
    print(end="\\0")
"""


@pytest.fixture(scope="module")
def official(tmp_path_factory, official_file):
    """The official verification of answers: give the text for each pair of logs."""
    path = tmp_path_factory.mktemp("test01") / "verify_accuracy.py"
    path.write_text(official_file("b66003e1", "compliance/TEST01/verify_accuracy.py"))

    def verify(pairs):
        words = [sys.executable, "-c", FOR_EACH_PAIR, path, *itertools.chain(*pairs)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]

    return verify


def varied(seed):
    """Return answers of an accuracy run and of a test in which some may differ."""
    draw = random.Random(seed)
    words = ["", "a", "ab", "ba", "b"]
    baseline = [(index, draw.choice(words)) for index in range(6)]
    tested = [(index, text if draw.random() < 0.9 else draw.choice(words)) for index, text in baseline * 2]
    draw.shuffle(tested)
    return baseline, tested[: draw.randint(1, 12)]


def test_the_text_is_that_of_the_official_verification(official, tmp_path):
    logs = [(seed, *varied(seed)) for seed in range(12)]
    pairs = [(log(tmp_path / f"{seed}-a", first), log(tmp_path / f"{seed}-b", second)) for seed, first, second in logs]
    compared = [test01.compare(logged_data(first), logged_data(second), 8) for first, second in pairs]
    assert [text for text, _ in compared] == official(pairs)
    assert {not differing for _, differing in compared} == {True, False}


def test_one_changed_first_character_fails_both(official, tmp_path):
    baseline = log(tmp_path / "a", SAID.items())
    tested = log(tmp_path / "b", [(1, "men tons"), (0, SAID[0])])
    text, differing = test01.compare(logged_data(baseline), logged_data(tested), 8)
    assert "TEST FAIL" in text and [text] == official([(baseline, tested)])
    assert "1 of 2 answers begin otherwise than in the accuracy run, first sample [1]" in differing


@pytest.fixture
def result(tmp_path, monkeypatch):
    """Make the run of a test beside a result's own runs; `rates` are those of the result and of the test."""
    rows = [{"output": SAID[index]} for index in SAID]
    monkeypatch.setattr(test01, "rows_of_samples", lambda _, indices: [rows[index] for index in indices])
    packages = tmp_path / "packages"
    (packages / "whisper" / "normalizers").mkdir(parents=True)
    (packages / "whisper" / "normalizers" / "__init__.py").write_text(
        "class EnglishTextNormalizer:\n    __call__ = lambda self, text: text\n"
    )

    def make(tested, *, rates=(100.0, 95.0), valid=(True, True), given=packages):
        places = {"performance": (rates[0], valid[0]), "TEST01": (rates[1], valid[1])}
        measured = {
            name: SimpleNamespace(samples_per_second=rate, valid=is_valid, reasons=("too short",))
            for name, (rate, is_valid) in places.items()
        }
        monkeypatch.setattr(test01, "read_performance", lambda folder: measured[folder.name])
        log(tmp_path / "accuracy", SAID.items())
        (tmp_path / "performance").mkdir(exist_ok=True)
        path = log(tmp_path / "TEST01", tested)
        settings = SimpleNamespace(terms=WHISPER, dataset=None)
        return LoggedRun(read_answers(path), settings, audit("TEST01", "whisper"), path.parent, given)

    return make


def test_equal_answers_and_rates_pass(result):
    verification = test01.verify(result([(0, "salt and cork"), (2, "")]))
    assert verification.passed and not verification.accuracy_texts
    assert verification.texts["verify_performance.txt"] == (
        "Verifying performance.\nReference score = 100.0\nTest score = 95.0\nTEST PASS\n"
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rates": (100.0, 89.0)}, "89 samples/s beside 100 of the result"),
        ({"rates": (100.0, 111.0)}, "111 samples/s"),
        ({"valid": (True, False)}, "the test's run INVALID: too short"),
        ({"valid": (False, True)}, "the result's run INVALID"),
    ],
)
def test_other_rates_and_invalid_runs_fail(result, more, words):
    verification = test01.verify(result([(0, SAID[0])], **more))
    assert not verification.passed and "TEST FAIL" in verification.texts["verify_performance.txt"]
    assert words in verification.checks[1].found


def test_other_answers_pass_where_their_scores_agree(result):
    verification = test01.verify(result([(0, "zalt and silk"), (1, "ten tons")]))
    assert not verification.passed  # one word of five: 20 % apart
    assert "scores apart: accuracy 100.0 and 80.0" in verification.checks[0].found
    assert set(verification.accuracy_texts) == {"baseline_accuracy.txt", "compliance_accuracy.txt", "accuracy.txt"}
    assert re.fullmatch(
        r"Word Error Rate: 0\.0%, accuracy=100\.0%\n", verification.accuracy_texts["baseline_accuracy.txt"]
    )
    joined = test01.verify(result([(0, "saltand silk"), (1, "ten tons")]))
    assert joined.passed and "begin otherwise" not in joined.checks[0].found
    same = test01.verify(result([(0, " salt and silk"), (1, "ten tons")]))  # begins with a space, and scores alike
    assert same.passed and "TEST FAIL" in same.texts["verify_accuracy.txt"]
    assert "the scores of both agree" in same.checks[0].found


def test_other_answers_need_the_normaliser_and_a_test_needs_the_results_runs(result):
    with pytest.raises(InstallError, match="normaliser"):
        test01.verify(result([(0, "zalt")], given=None))
    run = result([(0, SAID[0])])
    (run.folder.parent / "accuracy" / ACCURACY_LOG).unlink()
    (run.folder.parent / "accuracy").rmdir()
    with pytest.raises(RunFailed, match="needs the accuracy run"):
        test01.verify(run)


@pytest.mark.parametrize("notice", ["", REHEARSAL_NOTICE])
def test_another_speed_alone_fails_a_result_and_not_a_rehearsal(result, notice):
    def record(**more):
        verdict = test01.verify(result(more.pop("tested", [(0, "salt and cork")]), **more))
        kept = {"test": "TEST01", "round": "v6.1", "benchmark": "whisper", "scenario": Scenario.OFFLINE}
        kept |= {"answers": 1, "file": "", "log_sha256": "", "source": "", "notice": notice}
        return ComplianceRecord(**kept, passed=verdict.passed, checks=verdict.checks)

    require_passed(record())
    slow = record(rates=(100.0, 89.0))
    assert not slow.passed
    if notice:
        require_passed(slow)
    else:
        with pytest.raises(InvalidResult) as refused:
            require_passed(slow)
        assert "--rerun" in refused.value.remedy
    for wrong in (record(valid=(True, False)), record(tested=[(0, "xalt and corn")], rates=(100.0, 89.0))):
        with pytest.raises(InvalidResult):
            require_passed(wrong)

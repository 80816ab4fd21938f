"""TEST07 and TEST09: our decisions and the official ones on generated logs."""

import subprocess
import sys

import pytest
from compliance_logs import entry

from cm4vllm.compliance import test07, test09
from cm4vllm.records.logs.answers import read_answers


def lengths_log(lengths):
    return [entry([7] * length, index=index) for index, length in enumerate(lengths)]


def decided(path, lengths, least, most):
    answers = read_answers(path)
    return test09.verdict(answers, least=least, most=most, samples=len(lengths)).text.splitlines()[-1]


@pytest.mark.parametrize(
    ("lengths", "verdict"),
    [
        ([9, 11], "TEST PASS"),
        ([10], "TEST PASS"),
        ([9, 9], "TEST PASS"),
        ([11, 11], "TEST PASS"),
        ([8, 9], "TEST FAIL"),
        ([11, 12], "TEST FAIL"),
        ([0, 20], "TEST PASS"),
        ([], "TEST FAIL"),
    ],
)
def test_the_mean_decides_as_in_the_official_verification(tmp_path, write_log, official, lengths, verdict):
    log = write_log(lengths_log(lengths))
    assert decided(log, lengths, 9.0, 11.0) == verdict
    words = ["-c", log.parent, "-o", tmp_path / "out", "--min-output-tokens", "9", "--max-output-tokens", "11"]
    done = subprocess.run([sys.executable, official("newest", "TEST09"), *words], cwd=tmp_path, capture_output=True)
    if not lengths:  # the official verification refuses an empty log before it decides
        assert done.returncode == 1
        return
    assert verdict in (tmp_path / "out/TEST09/verify_output_len.txt").read_text()
    assert done.returncode == (verdict == "TEST FAIL")


def test_a_log_that_lacks_samples_fails_though_its_mean_is_right(write_log):
    log = write_log(lengths_log([10, 10]))
    assert decided(log, [10, 10], 9, 11) == "TEST PASS"
    assert decided(log, [10, 10, 10], 9, 11) == "TEST FAIL"
    twice = write_log([*lengths_log([10]), *lengths_log([10])])
    assert decided(twice, [10, 10], 9, 11) == "TEST FAIL"


@pytest.mark.parametrize(
    ("score", "verdict"),
    [(60.698, "TEST PASS"), (99.0, "TEST PASS"), (60.69, "TEST FAIL"), (0.0, "TEST FAIL"), (None, "TEST FAIL")],
)
def test_the_threshold_decides_as_in_the_official_verification(tmp_path, write_log, official, score, verdict):
    text = test07.verdict(score, 990, least=60.698, samples=990).text
    assert verdict in text.splitlines() and text.count("TEST ") == 1
    log = write_log([entry([1])])
    said = "nothing" if score is None else f"{{'exact_match': {score}}}"
    scorer = tmp_path / "scorer.py"
    scorer.write_text(f"print({said!r})")
    words = ["--accuracy-script", f"{sys.executable} {scorer}", "--accuracy-threshold", "60.698"]
    words = [sys.executable, official("newest", "TEST07"), "-c", log.parent, "-o", tmp_path / "out", *words]
    subprocess.run(words, check=True, cwd=tmp_path, capture_output=True)
    assert verdict in (tmp_path / "out/TEST07/verify_accuracy.txt").read_text()


def test_a_log_of_test07_that_lacks_samples_fails_though_its_score_is_right():
    verdict = test07.verdict(99.0, 989, least=60.698, samples=990)
    assert [check.passed for check in verdict.checks] == [True, False]
    assert verdict.text.endswith("All samples logged: False\nTEST FAIL\n")

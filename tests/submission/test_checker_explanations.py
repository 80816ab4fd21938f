import ast
import subprocess

import pytest

from cm4vllm.results.checks import CHECKS
from cm4vllm.results.log_folders import PROBLEMS
from cm4vllm.submission.checker.checker_explanations import _MEANINGS, codes_of, disagreements, explained

#: Sums of other messages, and what a result of a language model, without a measurement of its power, never meets.
NOT_EXPLAINED = (
    "%s",
    "{}",
    "",
    "has issues",
    "SUMMARY",
    "NoResults",
    "Some ",
    "Not all checks",
    "caused exception",
    "\t",
    "equal issue",
    "disallowed model",
    "TTFT/TPOT latency limits missing",
    "ower",
    "ptd",
    "Execution occurred",
    "invalid division",
    "Root contains",
    "extra files",
    "ranging",
)


def test_every_meaning_is_a_code_that_there_is() -> None:
    assert {code for _, codes in _MEANINGS for code in codes} <= {*CHECKS, *PROBLEMS}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("open/A/x/mlperf_log_detail.txt qsl_rng_seed is wrong, expected=1, found=2", "LOG-SEEDS"),
        ("open/A/x Test duration less than 600s in user config. expected=600000, found=1000", "LOG-MIN-DURATION"),
        ("Failed extra check for TTFT and TPOT. Obtained: TTFT 99-tile: 1, TPOT 99-tile: 2.", "LATENCY-LIMIT"),
        ("systems/a.json, field cooling requires a meaningful response but is empty", "SYSTEM-KEYS"),
        ("open/A/results/x accuracy not valid", "ACCURACY-TARGET"),
        ("open/A/results/x/accuracy accuracy not met: expected=20.103376, found=20.0913", "ACCURACY-TARGET"),
        ("open/A/results/x/accuracy expected to have the following extra files (['images'])", "RESULT-FILES"),
        ("Yaml file not found in directory closed/A/results/x/rgat/Offline/", "FILE-MISSING"),
        ("closed/A/x/TEST07/performance/run_1/mlperf_log_detail.txt Test duration less than 600s", "LOG-MIN-DURATION"),
        ("closed/A/compliance/x contains broken symbolic links", "FILE-UNEXPECTED"),
        ("closed/A/results/x/TEST07/verify_performance.txt is missing in closed/A/results/x/TEST07", "COMPLIANCE"),
        ("closed/A: has not calibration file. One of a or b is required", "CALIBRATION-MISSING"),
    ],
)
def test_a_message_is_explained_by_the_code_of_its_rule(message: str, code: str) -> None:
    assert codes_of(message)[0] == code
    assert explained(message).startswith(f"{message} [{code}")


def test_a_sum_of_others_is_left_as_it_is() -> None:
    assert explained("SUMMARY: submission has errors") == "SUMMARY: submission has errors"


@pytest.mark.parametrize(
    "message",
    [
        "crashed: UnboundLocalError: cannot access local variable 'compliance_perf_valid'",
        "closed/A/results/x/yolo-99/offline/TEST01/performance/run_1 "
        "caused exception in check_performance_dir: 'yolo-99'",
    ],
)
def test_a_failure_of_the_checker_is_no_finding(message: str) -> None:
    assert codes_of(message) == []
    assert "the checker itself failed" in explained(message)


def test_a_default_of_the_checker_is_no_finding() -> None:
    assert codes_of("accuracy_sample_count not found for model whisper, using performance_sample_count") == []
    assert codes_of("Execution of check endpoints_model_check skipped for closed/A/compliance/x/Offline/TEST01.") == []


def test_rules_that_one_checker_alone_calls_broken_are_named() -> None:
    both, old = "a qsl_rng_seed is wrong, expected=1", "open/A contains files with spaces in their names: b"
    assert disagreements({"new": [both], "old": [both, old, "SUMMARY: submission has errors"]}) == [
        "only old refuses: FILE-UNEXPECTED"
    ]
    assert disagreements({"new": [both], "old": [both]}) == disagreements({"one": [both]}) == []


def test_the_official_messages_are_explained(inference) -> None:  # type: ignore[no-untyped-def]
    if inference.git is None:
        pytest.skip("the source is no git directory")
    git = ["git", f"--git-dir={inference.git}"]
    listing = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", "b66003e1", "tools/submission"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    files = [name for name in listing if name.endswith(("_check.py", "checker_old.py"))]
    messages = set()
    for name in files:
        source = subprocess.run([*git, "show", f"b66003e1:{name}"], check=True, capture_output=True, text=True).stdout
        messages |= {
            node.args[0].value
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "error"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        }
    assert len(messages) > 60
    unknown = [
        message
        for message in messages
        if not codes_of(message)
        and message not in NOT_EXPLAINED
        and not any(part and part not in ("%s", "{}") and part in message for part in NOT_EXPLAINED)
    ]
    assert sorted(unknown) == []

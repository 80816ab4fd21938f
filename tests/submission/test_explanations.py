from __future__ import annotations

import ast
import subprocess

import pytest

from cm4vllm.results.checks import CHECKS
from cm4vllm.results.reading import PROBLEMS
from cm4vllm.submission.explanations import _MEANINGS, codes_of, disagreements, explained

#: Sums of other messages, and what a result of a language model, without a measurement of its power, never meets.
NOT_EXPLAINED = ("%s", "{}", "", "has issues", "SUMMARY", "NoResults", "Some ", "Not all checks",
                 "caused exception", "\t", "network mode", "equal issue", "disallowed model",
                 "TTFT/TPOT latency limits missing", "ower", "ptd", "Execution occurred", "invalid division",
                 "Root contains", "extra files", "ranging")


def test_every_meaning_is_a_code_that_there_is() -> None:
    assert {code for _, codes in _MEANINGS for code in codes} <= {*CHECKS, *PROBLEMS}


@pytest.mark.parametrize(("message", "code"), [
    ("open/A/x/mlperf_log_detail.txt qsl_rng_seed is wrong, expected=1, found=2", "LOG-SEEDS"),
    ("open/A/x Test duration less than 600s in user config. expected=600000, found=1000", "LOG-MIN-DURATION"),
    ("Failed extra check for TTFT and TPOT. Obtained: TTFT 99-tile: 1, TPOT 99-tile: 2.", "LATENCY-LIMIT"),
    ("systems/a.json, field cooling requires a meaningful response but is empty", "SYSTEM-KEYS"),
    ("open/A/results/x accuracy not valid", "ACCURACY-TARGET"),
    ("closed/A: has not calibration file. One of a or b is required", "CALIBRATION-MISSING"),
])  # fmt: skip
def test_a_message_is_explained_by_the_code_of_its_rule(message: str, code: str) -> None:
    assert codes_of(message)[0] == code
    assert explained(message).startswith(f"{message} [{code}")


def test_a_sum_of_others_is_left_as_it_is() -> None:
    assert explained("SUMMARY: submission has errors") == "SUMMARY: submission has errors"


def test_rules_that_one_checker_alone_calls_broken_are_named() -> None:
    both, old = "a qsl_rng_seed is wrong, expected=1", "open/A contains files with spaces in their names: b"
    assert disagreements({"new": [both], "old": [both, old, "SUMMARY: submission has errors"]}) == [
        "only old refuses: FILE-UNEXPECTED"]
    assert disagreements({"new": [both], "old": [both]}) == disagreements({"one": [both]}) == []


def test_the_official_messages_are_explained(inference) -> None:  # type: ignore[no-untyped-def]
    if inference.git is None:
        pytest.skip("the source is no git directory")
    git = ["git", f"--git-dir={inference.git}"]
    listing = subprocess.run([*git, "ls-tree", "-r", "--name-only", "b66003e1", "tools/submission"], check=True,
                             capture_output=True, text=True).stdout.split()
    files = [name for name in listing if name.endswith(("_check.py", "checker_old.py"))]
    messages = set()
    for name in files:
        source = subprocess.run([*git, "show", f"b66003e1:{name}"], check=True, capture_output=True, text=True).stdout
        messages |= {node.args[0].value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
                     and isinstance(node.func, ast.Attribute) and node.func.attr == "error" and node.args
                     and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)}
    assert len(messages) > 60
    unknown = [one for one in messages if not codes_of(one) and one not in NOT_EXPLAINED
               and not any(part and part not in ("%s", "{}") and part in one for part in NOT_EXPLAINED)]
    assert sorted(unknown) == []

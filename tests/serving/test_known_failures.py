"""The table of known failures, against logs.

recorded/logs holds the ends of what vLLM 0.32.0's CPU build, or podman, wrote when it was started wrongly, each named
after the failure. recorded/composed holds lines put together from the texts in the sources of vLLM 0.32.0, PyTorch,
huggingface_hub and podman, and from public reports, for what cannot be made to fail on a CPU; a number tells several
logs of one failure apart.
"""

import re
from pathlib import Path

import pytest

from cm4vllm.serving.supervision.known_failures import KNOWN_FAILURES, known_failure
from cm4vllm.serving.supervision.logs import telling_lines

HERE = Path(__file__).parent / "recorded"
RECORDED = sorted((HERE / "logs").glob("*.log"))
COMPOSED = sorted((HERE / "composed").glob("*.log"))


def failure_of(log):
    return re.sub(r"-\d+$", "", log.stem)


@pytest.mark.parametrize("log", RECORDED, ids=lambda log: log.stem)
def test_what_vllm_wrote_is_told_and_known(log):
    told = telling_lines(log)
    assert 0 < len(told.splitlines()) <= 2
    assert known_failure(told).name == log.stem.partition("-unknown")[0]


@pytest.mark.parametrize("log", COMPOSED, ids=lambda log: log.stem)
def test_what_a_gpu_or_a_hub_would_make_it_write_is_known(log):
    assert known_failure(telling_lines(log)).name == failure_of(log)


def test_a_root_cause_is_shown_and_the_line_that_repeats_it_only_where_it_is_alone():
    for log in COMPOSED:
        repeated = [line for line in log.read_text().splitlines() if "Engine core initialization failed" in line]
        alone = log.stem in ("unexplained", "unexplained-2", "bus-error-2", "crash-3")
        assert ("Engine core" in telling_lines(log)) is (bool(repeated) and alone), log


def test_every_failure_has_a_log_or_is_known_by_how_the_process_ended():
    tried = {failure_of(log) for log in [*RECORDED, *COMPOSED]}
    assert {failure.name for failure in KNOWN_FAILURES} - tried == {"killed"}
    assert known_failure("it ended by itself: killed by SIGKILL").name == "killed"
    assert known_failure("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down").name == "killed"
    assert known_failure("it ended by itself: killed by SIGILL").name == "instruction"


def test_each_repetition_in_a_pattern_has_a_bound():
    patterns = [pattern for failure in KNOWN_FAILURES for pattern in failure.patterns]
    assert [pattern for pattern in patterns if re.search(r"(?<!\\)[*+]", pattern)] == []


def test_names_and_remedies_are_each_of_its_own():
    names, remedies = {failure.name for failure in KNOWN_FAILURES}, {failure.remedy for failure in KNOWN_FAILURES}
    assert len(names) == len(remedies) == len(KNOWN_FAILURES)


def test_the_arguments_that_vllm_logs_are_no_failure():
    line = "(APIServer pid=1) INFO 11-21 04:36:00 [utils.py:1] non-default args: {'trust_remote_code': True}"
    assert known_failure(line.replace("True", "False")) is None

"""Lines as vLLM 0.32.0 wrote them."""

import re
from pathlib import Path

import pytest

from cm4vllm.serving.supervision.known_failures import KNOWN_FAILURES, known_failure
from cm4vllm.serving.supervision.logs import progress_line, telling_lines

LOG = """\
(APIServer pid=12) INFO 11-21 01:22:33 [utils.py:1] non-default args: {'port': 8000}
(EngineCore pid=20) ERROR 11-21 01:22:40 [core.py:9] EngineCore failed to start.
(EngineCore pid=20) ERROR 11-21 01:22:40 [core.py:9] Traceback (most recent call last):
(EngineCore pid=20) ERROR 11-21 01:22:40 [core.py:9]   File "core.py", line 1, in run
(EngineCore pid=20) ERROR 11-21 01:22:40 [core.py:9] ValueError: No available memory for the cache blocks.
(APIServer pid=12) Traceback (most recent call last):
(APIServer pid=12)   File "serve.py", line 3, in main
(APIServer pid=12) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


PYDANTIC = """\
E.ValidationError: 1 validation error for M
  Value error, too long
    For further information visit https://example.org
"""
ENDED = """\
one

two
(EngineCore pid=20) INFO 11-21 01:22:33 [core.py:1] [shutdown] EngineCore: start mode=abort timeout=0s
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LOG, "ValueError: No available memory for the cache blocks."),
        (PYDANTIC, "E.ValidationError: 1 validation error for M Value error, too long"),
        (ENDED, "one\ntwo"),  # without an error the last lines
    ],
)
def test_the_root_cause_is_told_without_prefixes_and_repetitions(tmp_path, text, told):
    (tmp_path / "log").write_text(text)
    assert telling_lines(tmp_path / "log") == told


def test_a_missing_log_tells_nothing(tmp_path):
    assert telling_lines(tmp_path / "log") == ""
    assert progress_line(tmp_path / "log") == "its process starts"


def test_progress_is_the_last_line_in_short(tmp_path):
    line = "\x1b[1m(Worker pid=3)\x1b[0m INFO 11-21 01:22:33 [a.py:1] Loading " + "x" * 200
    (tmp_path / "log").write_text(f"{line}\n\n")
    assert progress_line(tmp_path / "log").startswith("Loading xxx")
    assert len(progress_line(tmp_path / "log")) == 80


def test_the_loading_of_weights_is_told_while_other_lines_come(tmp_path):
    bar = "Loading safetensors checkpoint shards:  {}% Completed | {}/15 [00:{}<00:10,  1.38it/s]"
    lines = [bar.format(0, 0, "00"), bar.format(40, 6, "07"), "W1121 01:22:33 torch.py:53] Triton not available"]
    (tmp_path / "log").write_text("\r".join(lines) + "\n")
    assert progress_line(tmp_path / "log").startswith("Loading safetensors checkpoint shards:  40% Completed | 6/15")


# --- the table of known failures, against logs
# recorded/logs holds the ends of what vLLM 0.32.0's CPU build, or podman, wrote when it was started wrongly, each named
# after the failure. recorded/composed holds lines put together from the texts in the sources of vLLM 0.32.0, PyTorch,
# huggingface_hub and podman, and from public reports, for what cannot be made to fail on a CPU; a number tells several
# logs of one failure apart.


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


def test_names_and_remedies_are_each_of_its_own_and_each_repetition_in_a_pattern_has_a_bound():
    names, remedies = {failure.name for failure in KNOWN_FAILURES}, {failure.remedy for failure in KNOWN_FAILURES}
    assert len(names) == len(remedies) == len(KNOWN_FAILURES)
    patterns = [pattern for failure in KNOWN_FAILURES for pattern in failure.patterns]
    assert [pattern for pattern in patterns if re.search(r"(?<!\\)[*+]", pattern)] == []
    line = "(APIServer pid=1) INFO 11-21 04:36:00 [utils.py:1] non-default args: {'trust_remote_code': False}"
    assert known_failure(line) is None

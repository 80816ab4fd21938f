"""The client's event log, and the steady state of runs whose logs were made for it: steady, drifting, step, short."""

import json
import os

import pytest

from cm4vllm.common.errors import CmError
from cm4vllm.endpoints.events import read_events
from cm4vllm.endpoints.steady_state import steady_state
from cm4vllm.rules import PointTerms

SIZE = 20
MS = 1_000_000
TERMS = PointTerms(
    concurrency=4,
    regions=("Low",),
    least_seconds=0.0,
    samples_of_a_pass=SIZE,
    window_passes=4,
    offline=False,
    streamed=True,
)


def words(text):
    return len(text.split())


def write_log(path, levels, *, before=0, cut=False):
    """Write the events of one pass for each level of TPOT in ms: 11 words an answer, the first one alone.

    `before` are samples ahead of the performance run, which do not count; with `cut` the last line has no end.
    """
    clock, lines = 0, []

    def event(kind, uuid="", data=None, after=0):
        nonlocal clock
        clock += int(after * MS)
        lines.append(
            json.dumps({"event_type": kind, "timestamp_ns": clock, "sample_uuid": uuid, "turn": None, "data": data})
        )

    def sample(uuid, tpot):
        event("sample.issued", uuid, ["PromptData", None, [1, 2], None, None, None, None, None])
        event("sample.recv_first", uuid, after=5)
        event("sample.complete", uuid, ["TextModelOutput", ["w", " w" * 10], None], after=10 * tpot)

    for number in range(before):
        sample(f"before-{number}", 50)
    event("session.start_performance_tracking")
    for block, level in enumerate(levels):
        for number in range(SIZE):
            # A spread of 2 %, the same in each pass.
            sample(f"{block}-{number}", level * (0.98 + 0.002 * number))
    event("session.stop_performance_tracking")
    sample("after", 50)
    path.write_text("\n".join(lines) + ("" if cut else "\n"))
    return path


def answered(samples):
    return sum(sample.complete_ns is not None for sample in samples)


def test_times_and_tokens_are_those_of_the_events(tmp_path):
    samples = read_events(write_log(tmp_path / "events.jsonl", [10], before=3), words)
    assert answered(samples) == len(samples) == SIZE
    first = samples[0]
    assert (first.ttft_ns, first.tpot_ns) == (5 * MS, 9.8 * MS)
    assert (first.tokens, first.tokens_after_first) == (11, 10)


@pytest.mark.parametrize(
    ("levels", "status", "verdict"),
    [
        pytest.param([10] * 8, "windowable", "STEADY STATE", id="steady"),
        pytest.param([10 * 1.15**n for n in range(9)], "insufficient_passes", "drifting_up", id="drifting"),
        pytest.param([10] * 6 + [15] * 6, "windowable", "anomaly", id="step"),
        pytest.param([10] * 4, "insufficient_passes", "not found", id="short"),
    ],
)
def test_a_run_has_the_status_of_its_events(tmp_path, levels, status, verdict):
    state = steady_state(read_events(write_log(tmp_path / "events.jsonl", levels), words), TERMS)
    assert (state.status, state.verdict) == (status, verdict)


def test_a_line_that_was_cut_off_is_left_out_and_another_one_is_refused(tmp_path):
    path = write_log(tmp_path / "events.jsonl", [10], cut=True)
    path.write_text(path.read_text()[:-20])
    assert answered(read_events(path, words)) == SIZE
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(CmError, match="line 1 of .* is no event"):
        read_events(path, words)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            '{"event_type": "sample.complete", "timestamp_ns": 1, "data": ' + "[" * 10**5 + "]" * 10**5 + "}",
            "nested too deep",
        ),
        (f'{{"event_type": "sample.issued", "timestamp_ns": {10**400}}}', "timestamp_ns"),
        ('{"event_type": "sample.issued", "timestamp_ns": -1}', "timestamp_ns"),
        ('{"event_type": "sample.issued", "timestamp_ns": "1"}', "timestamp_ns"),
        ('{"event_type": ["sample.issued"], "timestamp_ns": 1}', "event_type"),
        ('["sample.issued", 1]', "object"),
        ("\udcff".encode(errors="surrogateescape"), "malformed"),
    ],
    ids=["deep", "large", "negative", "text", "list", "array", "bytes"],
)
def test_an_odd_line_is_named_with_its_number_and_the_field(tmp_path, line, why):
    path = write_log(tmp_path / "events.jsonl", [10])
    odd = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(path.read_bytes() + odd + b"\n")
    with pytest.raises(CmError, match=r"line \d+ of .*events.jsonl is no event of the client") as refused:
        read_events(path, words)
    assert why in refused.value.cause
    assert "\n" not in refused.value.cause


def test_a_pipe_in_the_place_of_the_log_is_no_log(tmp_path):
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(CmError, match="cannot be read"):
        read_events(tmp_path / "events.jsonl", words)

"""The client's event log, and the steady state of runs whose logs were made for it: steady, drifting, step, short."""

import json
import os
import random

import pytest

from cm4vllm.common.errors import CmError
from cm4vllm.endpoints.events import SampleTimes, read_events
from cm4vllm.endpoints.steady_state import steady_state
from cm4vllm.rules import PointTerms

SIZE = 20
MS = 1_000_000


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


def test_a_line_that_was_cut_off_is_left_out_and_another_one_is_refused(tmp_path):
    path = write_log(tmp_path / "events.jsonl", [10], cut=True)
    path.write_text(path.read_text()[:-20])
    assert answered(read_events(path, words)) == SIZE
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(CmError, match="line 1 of .* is no event"):
        read_events(path, words)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CmError, match="cannot be read"):
        read_events(tmp_path / "pipe", words)


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


# --- the steady state of points, from event logs made for it


PASS_SIZE = 200
NS = 1_000_000_000


def terms(least_seconds=0.0, concurrency=4):
    return PointTerms(
        concurrency=concurrency,
        regions=("Low",),
        least_seconds=least_seconds,
        samples_of_a_pass=PASS_SIZE,
        window_passes=4,
        offline=False,
        streamed=True,
    )


def log(*levels, partial=0, seed=1):
    """A log of one pass for each level of TPOT in ms, with 5 % of noise, a sample issued every 10 ms."""
    random_numbers = random.Random(seed)
    samples = []
    for level, count in [*((level, PASS_SIZE) for level in levels), (levels[-1], partial)]:
        for _ in range(count):
            issued = len(samples) * NS // 100
            tpot = level * 1e6 * random_numbers.gauss(1, 0.05)
            samples.append(SampleTimes(issued, issued + NS // 50, issued + NS // 50 + int(20 * tpot), 21, 20))
    return samples


def test_a_steady_run_is_windowable_after_its_first_pass():
    state = steady_state(log(*[10] * 8), terms())
    assert (state.status, state.verdict) == ("windowable", "STEADY STATE")
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 7)
    assert state.window.n_samples == 7 * PASS_SIZE
    assert state.window.duration_s == pytest.approx(7 * PASS_SIZE / 100 - 0.01)
    assert state.state == {"tpot_p50": "Plateau", "tpot_p90": "Plateau"}
    assert state.figures.tpot_p90_ms == pytest.approx(10.64, rel=0.01)
    assert state.figures.ttft_p90_ms == pytest.approx(20)
    assert state.figures.system_tps == pytest.approx(7 * PASS_SIZE * 21 / state.window.duration_s)
    # What comes after the last whole pass is in no window, and one that is shorter than the rules ask is not official.
    assert steady_state(log(*[10] * 8, partial=PASS_SIZE - 1), terms()).window.n_samples == 7 * PASS_SIZE
    short = steady_state(log(*[10] * 8), terms(least_seconds=600))
    assert (short.status, short.verdict) == ("insufficient_duration", "STEADY STATE")


@pytest.mark.parametrize("passes", [1, 4])
def test_fewer_than_four_passes_after_the_first_are_never_windowable(passes):
    state = steady_state(log(*[10] * passes), terms())
    assert (state.status, state.verdict, state.window) == ("insufficient_passes", "not found", None)


def test_less_than_one_pass_is_a_part_of_the_dataset():
    state = steady_state(log(10)[:-1], terms())
    assert (state.status, state.verdict) == ("partial_dataset", "not found")


@pytest.mark.parametrize(("step", "verdict"), [(1.15, "drifting_up"), (1 / 1.15, "drifting_down")])
def test_a_run_that_drifts_has_no_window(step, verdict):
    state = steady_state(log(*[10 * step**n for n in range(9)]), terms())
    assert (state.status, state.verdict, state.window) == ("insufficient_passes", verdict, None)


def test_a_window_of_a_run_that_rises_later_is_flagged():
    state = steady_state(log(*[10] * 6, *[10 * 1.05**n for n in range(1, 9)]), terms())
    assert (state.status, state.verdict) == ("windowable", "drifting_up")
    assert set(state.state.values()) == {"Plateau"}


def test_a_step_keeps_the_first_level_and_discloses_the_second():
    state = steady_state(log(*[10] * 6, *[15] * 6), terms())
    assert (state.status, state.verdict) == ("windowable", "anomaly")
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 5)
    assert state.anomaly.super_pass == 6
    assert state.anomaly.change_percent == pytest.approx(50, abs=2)


def test_a_block_has_as_many_passes_as_are_in_flight():
    state = steady_state(log(*[10] * 12), terms(concurrency=PASS_SIZE + 1))
    assert state.window.super_pass_size == 2 * PASS_SIZE
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 5)


def test_a_run_without_a_window_says_why_in_words():
    assert steady_state(log(*[10] * 3), terms()).words == (
        "insufficient_passes, not found: 2 passes after the first, and a window takes 4"
    )
    restless = steady_state(log(10, 10, 14, 10, 14, 10, 14), terms()).words
    assert restless.startswith(
        "insufficient_passes, not found: over 4 of the 6 passes after the first, TPOT varies by 1"
    )
    assert restless.endswith("% at least; 8% are allowed, without a trend")
    assert steady_state(log(*[10] * 8), terms()).words == "windowable, STEADY STATE"

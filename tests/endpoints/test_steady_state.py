"""The steady state of points, from event logs made for it."""

import random

import pytest

from cm4vllm.endpoints.events import SampleTimes
from cm4vllm.endpoints.steady_state import steady_state
from cm4vllm.rules import PointTerms

SIZE = 200
NS = 1_000_000_000


def terms(least_seconds=0.0, concurrency=4):
    return PointTerms(
        concurrency=concurrency,
        regions=("Low",),
        least_seconds=least_seconds,
        samples_of_a_pass=SIZE,
        window_passes=4,
        offline=False,
        streamed=True,
    )


def log(*levels, partial=0, seed=1):
    """A log of one pass for each level of TPOT in ms, with 5 % of noise, a sample issued every 10 ms."""
    random_numbers = random.Random(seed)
    samples = []
    for level, count in [*((level, SIZE) for level in levels), (levels[-1], partial)]:
        for _ in range(count):
            issued = len(samples) * NS // 100
            tpot = level * 1e6 * random_numbers.gauss(1, 0.05)
            samples.append(SampleTimes(issued, issued + NS // 50, issued + NS // 50 + int(20 * tpot), 21, 20))
    return samples


def test_a_steady_run_is_windowable_after_its_first_pass():
    state = steady_state(log(*[10] * 8), terms())
    assert (state.status, state.verdict) == ("windowable", "STEADY STATE")
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 7)
    assert state.window.n_samples == 7 * SIZE
    assert state.window.duration_s == pytest.approx(7 * SIZE / 100 - 0.01)
    assert state.state == {"tpot_p50": "Plateau", "tpot_p90": "Plateau"}
    assert state.figures.tpot_p90_ms == pytest.approx(10.64, rel=0.01)
    assert state.figures.ttft_p90_ms == pytest.approx(20)
    assert state.figures.system_tps == pytest.approx(7 * SIZE * 21 / state.window.duration_s)


def test_a_steady_run_that_is_too_short_for_the_rules_has_no_official_window():
    state = steady_state(log(*[10] * 8), terms(least_seconds=600))
    assert (state.status, state.verdict) == ("insufficient_duration", "STEADY STATE")


@pytest.mark.parametrize("passes", [1, 2, 3, 4])
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
    state = steady_state(log(*[10] * 12), terms(concurrency=SIZE + 1))
    assert state.window.super_pass_size == 2 * SIZE
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 5)


def test_samples_after_the_last_whole_pass_are_in_no_window():
    assert steady_state(log(*[10] * 8, partial=SIZE - 1), terms()).window.n_samples == 7 * SIZE


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

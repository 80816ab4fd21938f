"""The steady state of runs made for it: steady, short, drifting, with a step; and the words for each."""

import random

import pytest

from cm4vllm.endpoints.events import SampleTimes
from cm4vllm.endpoints.steady_state import steady_state
from cm4vllm.rules import PointTerms, endpoints_rules

WINDOW = endpoints_rules().window

PASS_SIZE = 200
NS = 1_000_000_000


def terms(least_seconds=600.0, concurrency=4):
    return PointTerms(
        concurrency=concurrency,
        regions=("Low",),
        least_seconds=least_seconds,
        samples_of_a_pass=PASS_SIZE,
        window_passes=4,
        offline=False,
        streamed=True,
    )


def log(*levels, partial=0, seed=1, seconds=160, ttft=(), tokens=20):
    """Return the samples of one pass for each level of TPOT in ms, with 5 % of noise, issued evenly over its seconds.

    `ttft` are the levels of TTFT in ms, 20 where there are none.
    """
    draw, samples = random.Random(seed), []
    for level, first, count in [
        *((level, first, PASS_SIZE) for level, first in zip(levels, ttft or [20] * len(levels), strict=True)),
        (levels[-1], 20, partial),
    ]:
        for _ in range(count):
            issued = len(samples) * seconds * NS // PASS_SIZE
            started = issued + int(first * 1e6 * draw.gauss(1, 0.05))
            answered = started + int(tokens * level * 1e6 * draw.gauss(1, 0.05))
            samples.append(SampleTimes(issued, started, answered, tokens + 1, tokens))
    return samples


def test_a_steady_run_is_windowable_after_its_first_pass():
    state = steady_state(log(*[10] * 8), terms(), WINDOW)
    assert (state.status, state.verdict) == ("windowable", "STEADY STATE")
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 7)
    assert state.window.n_samples == 7 * PASS_SIZE
    assert state.window.duration_s == pytest.approx(7 * 160 - 0.8)
    assert state.state == {"tpot_p50": "Plateau", "tpot_p90": "Plateau"}
    assert state.drift == {}
    assert state.figures.tpot_p90_ms == pytest.approx(10.64, rel=0.01)
    assert state.figures.ttft_p90_ms == pytest.approx(21.28, rel=0.01)
    assert state.figures.system_tps == pytest.approx(7 * PASS_SIZE * 20 / state.window.duration_s)
    assert state.words == "windowable, STEADY STATE"


def test_the_last_block_may_have_fewer_samples():
    state = steady_state(log(*[10] * 5, partial=PASS_SIZE - 1), terms(), WINDOW)
    assert (state.window.super_pass_end, state.window.n_samples) == (5, 5 * PASS_SIZE - 1)


def test_a_window_is_long_enough_for_the_detector_and_for_the_concurrency():
    state = steady_state(log(*[10] * 6), terms(least_seconds=1200), WINDOW)
    assert (state.status, state.verdict) == ("insufficient_duration", "STEADY STATE")
    assert state.words == (
        "insufficient_duration, STEADY STATE: TPOT is steady over 5 passes, but their 799.2 s (13.3 min) are too "
        "short: a window takes at least 1,200.0 s (20.0 min), of a point at this concurrency by the rules"
    )


def test_a_rehearsal_has_a_window_that_is_too_short():
    """A run of 12 s: the window is there with its figures, and nobody takes it for a steady state."""
    state = steady_state(log(*[10] * 5, seconds=2.5), terms(), WINDOW)
    assert (state.status, state.verdict) == ("insufficient_duration", "not found")
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 4)
    assert state.figures.tpot_p90_ms == pytest.approx(10.64, rel=0.01)
    assert state.words == (
        "insufficient_duration, not found: TPOT is steady over 4 passes, but their 10.0 s are too short: a window "
        "takes at least 600.0 s (10.0 min), of a point at this concurrency by the rules"
    )


@pytest.mark.parametrize(
    ("run", "seconds", "reason"),
    [
        (log(*[10] * 8, seconds=110), 600, "as any window of the official detector"),
        # Answers of 160 s.
        (log(*[8000] * 8, seconds=100), 5 * 170, "5 times the 90th percentile of the latency"),
        # A variation of 7.5 % asks for 9 passes, whose issues take 79.6 s each.
        (log(10, *[10.75, 9.25] * 4, seconds=80), 9 * 79.6, "for a mean TPOT that is known to 5%"),
    ],
)
def test_the_longest_of_the_least_durations_counts(run, seconds, reason):
    state = steady_state(run, terms(least_seconds=0), WINDOW)
    assert state.least.all_s == pytest.approx(seconds, rel=0.01)
    short = steady_state(run[: 6 * PASS_SIZE], terms(least_seconds=0), WINDOW)
    assert (short.status, short.verdict) == ("insufficient_duration", "not found")
    assert short.words.endswith(reason)


def test_passes_of_another_level_at_the_start_are_left_out_up_to_half_of_the_run():
    assert steady_state(log(16, 13, 11, *[10] * 9), terms(), WINDOW).window.super_pass_start == 3
    state = steady_state(log(*[16] * 7, *[10] * 5), terms(), WINDOW)
    assert (state.warm_up, state.blocks) == (6, 6)


@pytest.mark.parametrize("passes", [1, 4])
def test_fewer_than_four_passes_after_the_first_are_never_windowable(passes):
    state = steady_state(log(*[10] * passes), terms(), WINDOW)
    assert (state.status, state.verdict, state.window) == ("insufficient_passes", "not found", None)
    assert state.words == (
        f"insufficient_passes, not found: {passes - 1} passes after the warm-up of 1, and a window takes 4"
    )


def test_less_than_one_pass_is_a_part_of_the_dataset():
    state = steady_state(log(10)[:-1], terms(), WINDOW)
    assert (state.status, state.verdict) == ("partial_dataset", "not found")
    assert state.words == "partial_dataset, not found: the run has fewer samples than one pass over the dataset"
    assert steady_state([], terms(), WINDOW) == state


def test_a_run_without_any_answer_has_no_window():
    silent = [SampleTimes(number * NS) for number in range(8 * PASS_SIZE)]
    state = steady_state(silent, terms(), WINDOW)
    assert (state.status, state.verdict, state.state) == ("insufficient_passes", "not found", {})
    assert state.words == "insufficient_passes, not found: no 4 successive passes after the warm-up of 1 have a TPOT"


@pytest.mark.parametrize(("step", "way"), [(1.15, "Drifting Up"), (1 / 1.15, "Drifting Down")])
def test_a_run_that_drifts_all_the_time_has_no_window(step, way):
    state = steady_state(log(*[10 * step**n for n in range(12)]), terms(), WINDOW)
    assert (state.status, state.verdict, state.window) == ("insufficient_passes", "not found", None)
    assert state.state == state.drift == {"tpot_p50": way, "tpot_p90": way}


def test_a_small_drift_keeps_the_window_and_is_disclosed():
    """Over 11 passes TPOT rises by 4 %: significant, and too little to end the plateau."""
    state = steady_state(log(*[10 * 1.004**n for n in range(12)]), terms(), WINDOW)
    assert (state.status, state.verdict) == ("windowable", "drifting_up")
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 11)
    assert set(state.state.values()) == {"Plateau"}


def test_a_window_of_a_run_that_rises_later_is_flagged():
    state = steady_state(log(*[10] * 12, *[10 * 1.05**n for n in range(1, 7)]), terms(), WINDOW)
    assert (state.status, state.verdict) == ("windowable", "drifting_up")
    assert set(state.state.values()) == {"Plateau"}
    assert state.words == (
        "windowable, drifting_up: from the window's start to the end of the run, tpot_p50, tpot_p90 rise"
    )


@pytest.mark.parametrize(("step", "verdict"), [(1.1, "drifting_up"), (1 / 1.1, "STEADY STATE")])
def test_a_rise_of_ttft_is_flagged_and_a_fall_is_not(step, verdict):
    state = steady_state(log(*[10] * 12, ttft=[20 * step**n for n in range(12)]), terms(), WINDOW)
    assert (state.status, state.verdict) == ("windowable", verdict)
    assert set(state.drift) == {"ttft_p50", "ttft_p90"}


def test_a_step_keeps_the_first_level_and_discloses_the_second():
    state = steady_state(log(*[10] * 20, *[15] * 6), terms(), WINDOW)
    assert (state.status, state.verdict) == ("windowable", "anomaly")
    assert (state.window.super_pass_start, state.window.super_pass_end) == (1, 19)
    # The noise of a pass can move it by one.
    assert state.anomaly.super_pass == 19
    assert state.anomaly.change_percent == pytest.approx(50, abs=2)
    assert state.words == "windowable, anomaly: from about pass 19 on, TPOT changes by +50%"


def test_a_step_before_the_last_quarter_is_taken_for_the_end_of_the_warm_up():
    """As the official detector does: the level is the median of the second half of the run."""
    state = steady_state(log(*[10] * 7, *[15] * 6), terms(), WINDOW)
    assert (state.warm_up, state.window.super_pass_start, state.verdict) == (6, 7, "STEADY STATE")


@pytest.mark.parametrize(("change", "anomaly"), [(1.046, False), (1.055, True)])
def test_a_second_level_is_one_that_differs_by_more_than_the_bound(change, anomaly):
    """A pass between both levels ends the first plateau, whatever the second one is."""
    state = steady_state(log(*[10] * 8, 20, *[10 * change] * 8), terms(), WINDOW)
    assert (state.window.super_pass_end, state.anomaly is not None) == (7, anomaly)


def test_a_plateau_that_is_too_short_is_skipped_for_a_later_one():
    state = steady_state(log(10, *[10] * 4, 20, *[10] * 8, seconds=80), terms(), WINDOW)
    assert (state.status, state.verdict, state.skipped) == ("windowable", "STEADY STATE", 1)
    assert (state.window.super_pass_start, state.window.super_pass_end) == (6, 13)
    assert state.words == "windowable, STEADY STATE: plateaus before the window that are too short: 1"


def test_a_block_is_a_pass_however_many_are_in_flight():
    state = steady_state(log(*[10] * 8), terms(concurrency=PASS_SIZE + 1), WINDOW)
    assert state.window.super_pass_size == PASS_SIZE


def test_a_run_without_a_window_says_why_in_words():
    restless = steady_state(log(10, 10, 14, 10, 14, 10, 14), terms(), WINDOW)
    assert restless.least_variation == pytest.approx(2 / 12, abs=0.005)
    assert restless.words == (
        "insufficient_passes, not found: over any 4 of the 4 passes after the warm-up of 3, TPOT varies by 16.7% or "
        "more; 8% are allowed"
    )

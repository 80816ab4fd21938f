"""Intervals hold what they promise: on samples of a queue that are correlated, and not on their independence."""

import numpy as np
import pytest

from cm4vllm.records.sample_times import FIELDS
from cm4vllm.results.comparing import uncertainty
from cm4vllm.results.comparing.uncertainty import Verdict, shift
from cm4vllm.results.figures import Basis, Figure, Source

#: Repetitions of each trial, and samples of each run.
TRIALS, SAMPLES = 40, 12_000


def latencies(seed, *, correlation=0.9):
    """Latencies of about 100 ms whose logarithms follow each other as a queue's do: the next depends on the last."""
    draw = np.random.default_rng(seed)
    noise = draw.normal(0, 0.3 * np.sqrt(1 - correlation**2), SAMPLES)
    values = [last := float(draw.normal(0, 0.3))]
    for value in noise[1:].tolist():
        last = correlation * last + value
        values.append(last)
    return 100 * np.exp(np.array(values))


def figure(value, interval):
    return Figure("ttft_p50", value, "ms", Source("log", ""), interval, "" if interval else "no samples")


@pytest.fixture(scope="session")
def runs():
    return [latencies(seed) for seed in range(TRIALS)]


TRUE = {0.5: 100.0, 0.99: 100 * float(np.exp(0.3 * 2.3263))}


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_the_interval_of_a_percentile_holds_the_true_one(runs, share):
    intervals = [
        uncertainty.percentile(float(np.quantile(values, share)), values, share, seed=seed)
        for seed, values in enumerate(runs)
    ]
    held = sum(interval is not None and interval.low <= TRUE[share] <= interval.high for interval in intervals)
    assert held >= 0.93 * TRIALS
    # Taken as independent, the same samples would give an interval that misses it far more often.
    narrow = [
        uncertainty.from_percentiles(
            float(np.quantile(values, share)),
            {part: float(np.quantile(values, part)) for part in (0.0, 0.5, 0.9, 0.97, 0.99, 0.999, 1.0)},
            SAMPLES,
            share,
        )
        for values in runs
    ]
    assert sum(interval is not None and interval.low <= TRUE[share] <= interval.high for interval in narrow) < held


def test_runs_of_the_same_latency_hardly_ever_differ_and_another_one_does(runs):
    def verdict(first_run, other, seed):
        first, second = (
            uncertainty.mean(float(values.mean()), values, seed=seed + place)
            for place, values in enumerate((first_run, other))
        )
        return shift(figure(float(first_run.mean()), first), figure(float(other.mean()), second)).verdict

    same = [verdict(run, other, 2 * seed) for seed, (run, other) in enumerate(zip(runs[::2], runs[1::2], strict=True))]
    slower = [
        verdict(run, other * 1.15, 2 * seed)
        for seed, (run, other) in enumerate(zip(runs[::2], runs[1::2], strict=True))
    ]
    assert same.count(Verdict.REAL) <= 2
    assert slower.count(Verdict.REAL) >= 0.9 * len(slower)


def test_the_interval_of_a_rate_follows_the_spread_of_the_run():
    ends = np.cumsum(np.random.default_rng(1).exponential(0.01, SAMPLES))
    steady = uncertainty.rate(100.0, ends, np.ones(SAMPLES), seed=1)
    # A server that stops for a while each time: the same mean rate, in lumps.
    half = SAMPLES // 2
    lumps = np.sort(np.concatenate([ends[:half] / 3, ends[half:] / 3 + ends[-1] / 2]))
    uneven = uncertainty.rate(100.0, lumps, np.ones(SAMPLES), seed=1)
    assert steady is not None and uneven is not None
    assert 2 < steady.high - steady.low < 12 < 3 * 12 < uneven.high - uneven.low
    assert steady.low < 100 < steady.high and steady.basis is Basis.SAMPLES


@pytest.mark.parametrize(
    ("samples", "share", "words"),
    [
        (64, 0.5, "64 samples, an interval needs 100"),
        (999, 0.99, "999 samples, an interval needs 1,000"),
        (1000, 0.99, ""),
        (100, 0.5, ""),
    ],
)
def test_too_few_samples_give_no_interval_and_say_how_many_would(samples, share, words):
    assert uncertainty.too_few(samples, share) == words
    made = uncertainty.percentile(1.0, np.random.default_rng(0).uniform(0.5, 1.5, samples), share, seed=1)
    assert (made is None) is bool(words)


def test_a_change_is_unknown_without_intervals_and_likely_by_percentiles_alone():
    known = {0.0: 10.0, 0.5: 100.0, 0.9: 150.0, 0.97: 180.0, 0.99: 200.0, 0.999: 300.0, 1.0: 400.0}
    interval = uncertainty.from_percentiles(200.0, known, 24576, 0.99)
    far = uncertainty.from_percentiles(260.0, {share: 1.3 * value for share, value in known.items()}, 24576, 0.99)
    near = uncertainty.from_percentiles(201.0, {share: 1.005 * value for share, value in known.items()}, 24576, 0.99)
    assert interval and far and near
    assert shift(figure(200, interval), figure(260, far)).verdict is Verdict.LIKELY
    assert shift(figure(200, interval), figure(201, near)).verdict is Verdict.WITHIN
    assert shift(figure(200, interval), figure(260, None)).why == "no samples"
    assert shift(figure(200, None), figure(200, None)).verdict is Verdict.SAME
    assert shift(figure(0, interval), figure(5, far)).change is None


def test_the_samples_of_a_run_give_the_interval_of_each_figure():
    random = np.random.default_rng(1)
    rows = np.zeros(2000, FIELDS)
    rows["tokens"] = 11
    rows["issued_ns"] = np.sort(random.uniform(0, 100e9, 2000))
    rows["first_ns"] = rows["issued_ns"] + random.uniform(10e6, 20e6, 2000)
    rows["last_ns"] = rows["first_ns"] + 100e6

    def interval_of(name, value, unit):
        estimate, why = uncertainty.from_samples(Figure(name, value, unit, Source("log", name)), rows)
        assert estimate is not None and not why
        return estimate

    rate = interval_of("tokens_per_second", 220.0, "tokens/s")
    assert 190 < rate.low < 220 < rate.high < 250
    first = interval_of("ttft_p99", 19.9, "ms")
    assert 19.6 < first.low < 19.9 < first.high < 20.2
    assert interval_of("tpot_p99", 10.0, "ms").basis is Basis.SAMPLES
    burst = rows.copy()
    burst["last_ns"][1:] = burst["last_ns"][0]
    burst["last_ns"][-1] *= 1000
    assert uncertainty.from_samples(Figure("tokens_per_second", 220.0, "tokens/s", Source("log", "")), burst) == (
        None,
        "in long parts of the run no answer ended",
    )
    rows["first_ns"] = -1
    assert uncertainty.from_samples(Figure("ttft_p99", 19.9, "ms", Source("log", "ttft_p99")), rows) == (
        None,
        "the client's record has no times of tokens",
    )


def test_the_interval_of_a_change_is_that_of_its_bootstrap():
    draw = np.random.default_rng(3)
    samples = [draw.lognormal(np.log(value), 0.5, 4000) for value in (100.0, 120.0)]
    first, other = (
        figure(value, uncertainty.percentile(value, values, 0.5, seed=place))
        for place, (value, values) in enumerate(zip((100.0, 120.0), samples, strict=True))
    )
    change = shift(first, other)
    assert change.verdict is Verdict.REAL and change.low is not None and change.high is not None
    medians = [np.median(draw.choice(values, (2000, len(values))), axis=1) for values in samples]
    low, high = np.quantile(medians[1] / medians[0], [0.005, 0.995])
    assert np.log1p(change.high) - np.log1p(change.low) == pytest.approx(np.log(high / low), rel=0.25)
    assert shift(first, figure(100.5, first.interval)).verdict is Verdict.WITHIN

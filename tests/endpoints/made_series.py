"""Runs of a point by their seeds: plateaus, drifts, warm-ups, level shifts, oscillation, ties, outliers, gaps."""

import math
import random
from collections.abc import Iterator

from cm4vllm.endpoints.events import SampleTimes
from cm4vllm.rules import PointTerms

#: Samples of a pass over the dataset.
SIZE = 12
MS, NS = 1_000_000, 1_000_000_000


def terms(seed: int) -> PointTerms:
    """Return the terms of the run with this seed: 600 s or 1,200 s at least."""
    high = seed % 2
    return PointTerms(
        concurrency=64 if high else 8,
        regions=("High",) if high else ("Low",),
        least_seconds=1200 if high else 600,
        samples_of_a_pass=SIZE,
        window_passes=4,
        offline=False,
        streamed=True,
    )


def made_run(seed: int) -> list[SampleTimes]:
    """Return the samples of the run with this seed; all times are whole ns, so that any machine makes the same."""
    draw = random.Random(seed)
    passes = draw.choice((draw.randint(1, 7), draw.randint(5, 14), draw.randint(10, 30)))
    levels, ttfts = list(_levels(draw, passes)), list(_levels(draw, passes, calm=0.6))
    base, length = draw.choice((5 * MS, 50 * MS, 8000 * MS)), draw.choice((5, 60, 130, 200, 320, 700)) * NS
    noise, slow = draw.choice((0, 0.002, 0.01, 0.05, 0.2)), draw.choice((1.0, 1.0, 1.3, 3.0))
    lost, whole = draw.choice((0, 0, 0, 0.02, 0.3)), draw.random() < 0.7
    samples, start = [], draw.randrange(NS)
    for level, ttft in zip(levels, ttfts, strict=True):
        tail = draw.random() < 0.9
        for number in range(SIZE):
            tpot = base * level * (slow if tail and number % 6 == 5 else 1) * (1 + noise * draw.uniform(-1, 1))
            issued = start + number * length // SIZE + draw.choice((0, draw.randrange(NS)))
            samples.append(_sample(draw, issued, int(40 * MS * ttft * (1 + noise * draw.uniform(-1, 1))), tpot, lost))
        start += int(length * draw.choice((1, 1, draw.uniform(0.8, 1.2))))
    return samples if whole else samples[: len(samples) - draw.randrange(SIZE)]


def _sample(draw: random.Random, issued: int, ttft: int, tpot: float, lost: float) -> SampleTimes:
    """Return a sample, now and then without a first chunk, without its end, or without a token after the first."""
    tokens = draw.randint(4, 20)
    first = None if draw.random() < lost / 3 else issued + ttft
    complete = None if draw.random() < lost / 3 else issued + ttft + int(tpot) * tokens
    after = 0 if draw.random() < lost / 3 else tokens
    return SampleTimes(issued, first, complete, after + 1, after)


def _levels(draw: random.Random, passes: int, calm: float = 0.0) -> Iterator[float]:
    """Yield the level of each pass around 1: one shape of several, with or without noise from pass to pass."""
    shape = _constant if draw.random() < calm else draw.choice(SHAPES)
    noise = draw.choice((0, 0, 0.002, 0.01, 0.03, 0.07))
    for level in shape(draw, passes):
        yield max(0.05, level * (1 + noise * draw.uniform(-1, 1)))


def _constant(_draw: random.Random, passes: int) -> list[float]:
    return [1.0] * passes


def _drift(draw: random.Random, passes: int) -> list[float]:
    total = draw.choice((0.03, 0.05, 0.06, 0.1, 0.3, 1.0)) * draw.choice((1, -0.6))
    return [1 + total * place / max(1, passes - 1) for place in range(passes)]


def _late_drift(draw: random.Random, passes: int) -> list[float]:
    calm, step = draw.randint(4, 12), draw.choice((0.004, 0.01, 0.04, -0.01, -0.03))
    return [1 + step * max(0, place - calm) for place in range(passes)]


def _ramp(draw: random.Random, passes: int) -> list[float]:
    away, pace = draw.uniform(-0.8, 1.5), draw.uniform(0.5, 4)
    return [1 + away * math.exp(-place / pace) for place in range(passes)]


def _stairs(draw: random.Random, passes: int) -> list[float]:
    levels, level = list[float](), 1.0
    while len(levels) < passes:
        levels += [level] * draw.randint(1, 10)
        level *= 1 + draw.choice((-0.3, -0.053, -0.047, 0.03, 0.047, 0.053, 0.15, 0.5))
    return levels[:passes]


def _oscillation(draw: random.Random, passes: int) -> list[float]:
    height, period = draw.choice((0.02, 0.06, 0.08, 0.1, 0.14)), draw.choice((2, 3, 5, 8))
    return [1 + height * math.cos(2 * math.pi * place / period) for place in range(passes)]


def _ties(draw: random.Random, passes: int) -> list[float]:
    values = draw.choice(((1.0, 1.01), (1.0, 1.02, 1.04), (1.0, 1.06), (0.92, 1.08)))
    return [draw.choice(values) for _ in range(passes)]


def _sorted_ties(draw: random.Random, passes: int) -> list[float]:
    return sorted(_ties(draw, passes), reverse=draw.random() < 0.5)


def _outliers(draw: random.Random, passes: int) -> list[float]:
    return [draw.choice((1.2, 2.0, 0.5)) if draw.random() < 0.12 else 1.0 for _ in range(passes)]


def _walk(draw: random.Random, passes: int) -> list[float]:
    levels, step = [1.0], draw.choice((0.005, 0.02, 0.05))
    while len(levels) < passes:
        levels.append(max(0.2, levels[-1] + draw.uniform(-step, step)))
    return levels


SHAPES = (
    _constant,
    _constant,
    _drift,
    _late_drift,
    _ramp,
    _ramp,
    _stairs,
    _stairs,
    _oscillation,
    _ties,
    _sorted_ties,
    _outliers,
    _walk,
)

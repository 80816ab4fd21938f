"""The plan of a curve: its points, what each measures, how long it takes, and which of them carry an accuracy run."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, permutations

import numpy as np

from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record
from cm4vllm.rules import EndpointsBenchmark, EndpointsRules, PointTerms, Regions

#: The server may be faster in the run than in the probe: so much longer is the planned window than the rules ask for.
_MARGIN = 1.1
#: Seconds of the window of a rehearsal, where the passes that the rules ask for take fewer.
_REHEARSAL_S = 10.0


class PlannedPoint(Record, frozen=True, kw_only=True):
    """A point: samples are whole passes over the dataset; seconds are expected from the server's rates."""

    terms: PointTerms
    passes: int
    samples: int
    seconds: float
    accuracy: bool
    accuracy_seconds: float

    @property
    def concurrency(self) -> int:
        """Requests in flight."""
        return self.terms.concurrency

    @property
    def all_seconds(self) -> float:
        """Expected seconds of the performance run and, where it has one, of the accuracy run."""
        return self.seconds + (self.accuracy_seconds if self.accuracy else 0)


class CurvePlan(Record, frozen=True, kw_only=True):
    """The points in the order of their concurrency, a dedicated Offline run last."""

    benchmark: str
    regions: Regions
    points: tuple[PlannedPoint, ...]
    elected_offline: bool


def plan_curve(
    rules: EndpointsRules,
    benchmark: EndpointsBenchmark,
    rates: Mapping[int, float],
    *,
    c_min: int,
    c_max: int,
    points: Sequence[int] = (),
    count: int = 0,
    elected_offline: bool = True,
    at_full_length: bool = True,
) -> CurvePlan:
    """Return the plan of a curve of `count` points (the least allowed by default), or of the given `points`.

    `rates` are the samples/s of the server by concurrency, as probes measured them. Each region gets the point that
    takes the least time in it; the other points halve the widest gaps. With `elected_offline` the highest point is the
    Offline result too, else a run of all samples at once follows. Each point has the passes that the window of the
    steady state needs; with `at_full_length` the window takes the seconds that the rules ask for, else those of a
    rehearsal. Raises UsageError.
    """
    chosen = tuple(sorted(set(points)))
    if chosen:
        c_min, c_max = chosen[0], chosen[-1]
    curve = rules.regions(c_min=c_min, c_max=c_max)
    point = partial(_planned_point, rules, benchmark, rates, curve, at_full_length=at_full_length)
    chosen = chosen or _chosen_concurrencies(curve, point, count or rules.curve.least_points)
    require_coverage(rules, curve, chosen)
    with_accuracy = _with_accuracy(curve, chosen, point, elected_offline=elected_offline)
    planned = [point(concurrency, accuracy=concurrency in with_accuracy) for concurrency in chosen]
    if not elected_offline:
        planned.append(point(max(benchmark.samples, c_max), accuracy=True, offline=True))
    return CurvePlan(benchmark=benchmark.name, regions=curve, points=tuple(planned), elected_offline=elected_offline)


def placed_points(curve: Regions, given: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the points of a curve as far as they can be placed before the rates of the server are known.

    In each region the highest concurrency takes the least time, where more in flight never makes the server slower.
    """
    if given:
        return tuple(given)
    return _with_gaps_halved({curve.c_min, curve.c_max, curve.low.end, curve.medium.end}, count)


def coverage_words(rules: EndpointsRules, curve: Regions, points: Sequence[int]) -> str:
    """Return what the rules do not allow in these points of a curve in a sentence; empty where all is well."""
    least, most = rules.curve.least_points, rules.curve.most_points
    chosen = sorted(set(points))
    faults = [
        f"leaves {region.name} ({region.start} to {region.end}) without a point"
        for region in curve.required
        if not any(concurrency in region for concurrency in chosen)
    ]
    if not least <= len(chosen) <= most:
        faults.append(f"has {len(chosen)} points, where {least} to {most} are allowed")
    faults += [
        f"has a point at {concurrency}, above {curve.margin.end}"
        for concurrency in chosen
        if concurrency > curve.margin.end
    ]
    return f"--points={','.join(map(str, points))} {'; '.join(faults)}" if faults else ""


def require_coverage(rules: EndpointsRules, curve: Regions, points: Sequence[int]) -> None:
    """Raise UsageError where the rules do not allow these points."""
    if words := coverage_words(rules, curve, points):
        raise UsageError(
            words,
            cause=f"{'; '.join(map(str, curve.required))} ({rules.curve.source})",
            remedy="leave --points out: the points are then placed so that each region has one",
        )


def rate_at(rates: Mapping[int, float], concurrency: int) -> float:
    """Return samples/s: between two that were measured by their logarithms, outside of them the nearest one."""
    measured = np.log(sorted(rates.items()))
    return math.exp(np.interp(math.log(concurrency), measured[:, 0], measured[:, 1]))


def _planned_point(
    rules: EndpointsRules,
    benchmark: EndpointsBenchmark,
    rates: Mapping[int, float],
    curve: Regions,
    concurrency: int,
    *,
    at_full_length: bool,
    accuracy: bool = False,
    offline: bool = False,
) -> PlannedPoint:
    """Return a point as it is planned: the blocks before the window, and the window."""
    terms, window = rules.point_terms(benchmark, concurrency, curve, offline=offline), rules.window
    rate, size = rate_at(rates, concurrency), terms.samples_of_a_pass
    least_seconds = terms.least_seconds
    if not offline:  # the window takes several latencies; their mean is that of Little's law
        least_seconds = max(least_seconds, window.duration.latencies * concurrency / rate)
    of_the_seconds = math.ceil((_MARGIN * least_seconds if at_full_length else _REHEARSAL_S) * rate / size)
    # While the first requests in flight are answered, the server is not yet steady.
    before = max(window.warm_up.least, math.ceil(concurrency / size))
    passes = before + max(window.passes, of_the_seconds)
    if offline:
        passes = max(1, of_the_seconds) if at_full_length else 1
    samples = passes * size
    return PlannedPoint(
        terms=terms,
        passes=passes,
        samples=samples,
        seconds=samples / rate,
        accuracy=accuracy,
        accuracy_seconds=benchmark.accuracy_samples / rate,
    )


def _chosen_concurrencies(curve: Regions, point: Callable[..., PlannedPoint], count: int) -> tuple[int, ...]:
    """Return the lowest and the highest concurrency, the cheapest of the regions between, and what halves the gaps."""
    chosen = {curve.c_min, curve.c_max}
    for region in (curve.low, curve.medium):
        inside = range(region.start, region.end + 1)
        if inside and not any(concurrency in region for concurrency in chosen):
            chosen.add(min(inside, key=lambda concurrency: point(concurrency, accuracy=True).all_seconds))
    return _with_gaps_halved(chosen, count)


def _with_gaps_halved(chosen: set[int], count: int) -> tuple[int, ...]:
    """Return `count` points: those, and what halves the widest gaps between them."""
    points = set(chosen)
    while len(points) < count and (middle := next_point(sorted(points))) is not None:
        points.add(middle)
    return tuple(sorted(points))


def next_point(chosen: Sequence[int]) -> int | None:
    """Return the concurrency in the (logarithmic) middle of the widest gap that has room; None if no gap has room."""
    gaps = [(high / low, low, high) for low, high in pairwise(chosen) if high - low > 1]
    if not gaps:
        return None
    _, low, high = max(gaps)
    return min(max(round(math.sqrt(low * high)), low + 1), high - 1)


def _with_accuracy(
    curve: Regions, chosen: Sequence[int], point: Callable[..., PlannedPoint], *, elected_offline: bool
) -> frozenset[int]:
    """Return the points that carry an accuracy run: a different one for each region, together in the least time.

    The highest point carries one where it is elected as the Offline result.
    """
    seconds: Mapping[int, float] = {concurrency: point(concurrency).accuracy_seconds for concurrency in chosen}
    candidates = [
        sorted((c for c in chosen if c in region), key=seconds.__getitem__)[: len(curve.required)]
        for region in curve.required
    ]
    pool = sorted({concurrency for of_region in candidates for concurrency in of_region} | {curve.c_max})
    fitting = [
        places
        for places in permutations(pool, len(curve.required))
        if all(place in region for place, region in zip(places, curve.required, strict=True))
        and (not elected_offline or curve.c_max in places)
    ]
    if not fitting:
        raise UsageError(
            "no different point for the accuracy run of each region",
            cause=f"{'; '.join(map(str, curve.required))}; points {', '.join(map(str, chosen))}",
        )
    return frozenset(min(fitting, key=lambda places: sum(seconds[place] for place in places)))

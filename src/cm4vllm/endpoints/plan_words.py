"""The plan of a curve in words: regions, points and minutes, one more point, moved ends; and the measured ones."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.number_texts import percent
from cm4vllm.common.records import read_record
from cm4vllm.common.terminal_text import columns
from cm4vllm.common.units import four_digits
from cm4vllm.endpoints.curve_plan import coverage_words, next_point
from cm4vllm.endpoints.records import CurveRecord, PointRecord, run_change
from cm4vllm.hardware.readiness import OTHERS
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.rules import EndpointsRules, Regions, RulesUsed, SeedSet

_HEAD = ("point", "concurrency", "foreseen, min", "measured, min", "difference", "used by others")


def regions_line(curve: Regions) -> str:
    """Return the regions in a line."""
    return f"regions: {'; '.join(map(str, curve.required))}"


def plan_lines(rules: EndpointsRules, record: CurveRecord) -> Iterator[str]:
    """Yield a planned curve in lines: regions, points with the minutes of their clients, the sum, and alternatives."""
    plan = record.plan
    yield regions_line(plan.regions)
    for number, point in enumerate(plan.points, 1):
        of = "Offline" if point.terms.offline else ", ".join(point.terms.regions) or "no region"
        elected = plan.elected_offline and point.concurrency == plan.regions.c_max
        yield (
            f"point {number}: concurrency {point.concurrency:,} ({of}{', elected Offline' * elected}), "
            f"{point.samples:,} samples in {point.passes:,} passes{', with accuracy' * point.accuracy}: "
            f"{record.foreseen_s(point) / 60:,.1f} min"
        )
    probed = ", ".join(
        f"{four_digits(probe.samples_per_second)} samples/s at {probe.concurrency:,}"
        for probe in sorted(record.probes, key=lambda probe: probe.concurrency)
    )
    minutes = sum(map(record.foreseen_s, plan.points)) / 60
    yield f"{len(plan.points)} points: {minutes:,.0f} min expected, by the probes of {record.found_at[:10]} ({probed})"
    if (others := max((probe.others or 0.0 for probe in record.probes), default=0.0)) >= OTHERS:
        yield (
            f"other programs used up to {percent(others)} of the processors during the probes: the minutes are those "
            "of a machine that stays as busy"
        )
    fixed = [point.concurrency for point in plan.points if not point.terms.offline]
    yield from one_more_point(rules, fixed, {point.concurrency: record.foreseen_s(point) for point in plan.points})
    yield from moved_ends(rules, fixed)


def one_more_point(
    rules: EndpointsRules, points: Sequence[int], seconds: Mapping[int, float] | None = None
) -> Iterator[str]:
    """Yield a line on what one more point would gain; `seconds` are those foreseen of the points, where they are known.

    Its own minutes are those of its two neighbours: it lies between them.
    """
    if len(points) >= rules.curve.most_points or (added := next_point(points)) is None:
        return
    low, high = max(point for point in points if point < added), min(point for point in points if point > added)
    cost = f"; about {(seconds[low] + seconds[high]) / 120:,.1f} min" if seconds else ""
    yield (
        f"one more point (--point_count={len(points) + 1}) would lie at {added:,} and split the widest step, {low:,} "
        f"to {high:,} ({high / low:,.3g} times), into {added / low:,.3g} and {high / added:,.3g} times{cost}"
    )


def moved_ends(rules: EndpointsRules, points: Sequence[int]) -> Iterator[str]:
    """Yield a line for each end of the curve on the regions that it would have with the end moved to the next point."""
    yield _moved_end_words(rules, "lowest", points[1:])
    yield _moved_end_words(rules, "highest", points[:-1])


def _moved_end_words(rules: EndpointsRules, end: str, points: Sequence[int]) -> str:
    begin = f"with {points[0 if end == 'lowest' else -1]:,} as the {end} point"
    try:
        curve = rules.regions(c_min=points[0], c_max=points[-1])
    except UsageError as error:
        return f"{begin} the curve would not be allowed: {error.cause}"
    words = [*map(str, curve.required[1:]), coverage_words(rules, curve, points) or "each region keeps a point"]
    return f"{begin}: {'; '.join(words)}"


def remeasured_lines(folder: Path, commit: str, rules: EndpointsRules, seeds: SeedSet) -> Iterator[str]:
    """Yield a line for each change of client, seeds or rules, with the kept probes and points that are measured again.

    `folder` is that of a job's results; the client's `commit`, rules and seeds are those of its next command.
    """
    used = RulesUsed.of(rules)
    changed: dict[str, list[str]] = {}
    for place in kept_runs(folder):
        with contextlib.suppress(CmError):  # what cannot be read is measured again anyhow
            if change := run_change(read_record(place / POINT_FILE, PointRecord), commit, used, seeds):
                changed.setdefault(change, []).append(place.name)
    for change, names in changed.items():
        yield f"measured again: {', '.join(names)}; {change}"


def kept_runs(folder: Path) -> list[Path]:
    """Return the run folders of the probes and points below the folder of a job's results, in their order."""
    files = [*folder.glob(f"curve/probe-*/{POINT_FILE}"), *folder.glob(f"points/point-*/{POINT_FILE}")]
    return sorted((file.parent for file in files), key=lambda place: (place.parent.name, len(place.name), place.name))


def foreseen_table(record: CurveRecord, measured: Mapping[int, PointRecord]) -> str:
    """Return a table of the minutes foreseen and measured, and the part of the processors that others used.

    `measured` has the points by their numbers.
    """
    rows = [_HEAD]
    for number, point in enumerate(record.plan.points, 1):
        if number in measured:
            foreseen, seconds, others = record.foreseen_s(point), measured[number].wall_s, measured[number].others
            minutes = (f"{foreseen / 60:,.2f}", f"{seconds / 60:,.2f}", f"{seconds / foreseen - 1:+.0%}")
            busy = "not known" if others is None else percent(others)
            rows.append((str(number), f"{point.concurrency:,}", *minutes, busy))
    return "\n".join(columns(rows, numbers=range(len(_HEAD))))

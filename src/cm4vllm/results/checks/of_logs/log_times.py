"""The times in logs: in order, of one clock, not shorter than the work that they time, and as a server makes them.

A client that holds early first tokens back, and reports them later, lowers TPOT, which is (last - first token) divided
by the tokens between, by the time it holds them. A finding says what was measured, never why.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.clock import present
from cm4vllm.records.logs.impossible_values import impossible_window, out_of_order
from cm4vllm.results.checks.subjects import Part, measured_results, results, with_tests
from cm4vllm.results.figures import Figures
from cm4vllm.results.model import Performance, Result

_AGAIN = "measure again, and publish that run"
_AS_WRITTEN = "publish the log as LoadGen wrote it"
#: Rounds are half a year apart, each with seeds of its own.
_ROUND = timedelta(days=183)
#: Clocks of machines, and time zones that a log does not state.
_ZONES = timedelta(hours=26)
#: Local times are whole multiples of this from UTC.
_ZONE_S = 900.0
#: Seconds by which the local time of a run's end may be before LoadGen's own clock, and after it: test_datetime has
#: whole seconds, and power_end is taken some time before it is logged (in 7,725 published logs: 42 s before, 2.4 s
#: after).
_BEFORE_S, _AFTER_S = 60.0, 5.0
#: In s, by how much a time may be short of a duration that has six digits.
_SLACK_S = 0.05
_DIGITS = 1e-5
#: (p95 - p50) / p50 of TTFT below this is narrower than any published server has it: of 326 runs of language models in
#: rounds v4.1 and v5.1 the narrowest has 0.23.
NARROW = 0.01
#: From this on TPOT spreads, by the same measure.
SPREAD = 0.02
#: The distance within which the smallest TTFT is just above a round time, as a part of that time.
_JUST_ABOVE = 0.003
#: Two percentiles that differ by less than this part are one value, where those above them spread.
_SPIKE = 0.002
_SOURCE = "loadgen/logging.cc, TPOT is the time after the first token divided by the tokens after it"


@check("LOG-ORDER", source="loadgen/logging.cc", remedy=_AS_WRITTEN, stage=Stage.TREE, each=with_tests)
def in_order(part: Part) -> Iterator[Fault]:
    """The entries of a log are in the order in which LoadGen wrote them."""
    if part.detail is not None and (value := out_of_order(part.detail)):
        yield Fault(value.what, part.log, value.key, value.value, value.expected)


@check("LOG-TIMES", source="loadgen/loadgen.cc", remedy=_AGAIN, stage=Stage.TREE, each=results)
def times(result: Result) -> Iterator[Fault]:
    """The times in a log are in order: the run lasted at least as long as its result says."""
    if result.performance is not None:
        yield from _times(result.performance)
    for part in (part for part in result.logged if part is not result.performance):
        yield from _clock(part)


def _times(part: Performance) -> Iterator[Fault]:
    if part.detail is None or (window := part.window) is None:
        return
    if value := impossible_window(part.detail):
        yield Fault(value.what, part.log, value.key, value.value, value.expected)
        if window.seconds < 0:
            return
    else:
        yield from _clock(part)
    start = _day(part.settings.get("test_datetime"))
    if start and abs(start - window.begin) > _ZONES:
        yield Fault(
            "the log names two different days",
            part.log,
            "test_datetime",
            start.isoformat(),
            window.begin.isoformat(),
            severity=Severity.WARNING,
        )


def _clock(part: Part) -> Iterator[Fault]:
    """Compare the time that each entry has, in ms since LoadGen started, with the local times in the log."""
    window, stamps = part.window, part.detail.times_ms if part.detail else {}
    if window is None or "power_end" not in stamps:
        return
    elapsed = stamps["power_end"] / 1e3
    results = [stamp for key, stamp in stamps.items() if key.startswith("result_")]
    duration = part.duration if isinstance(part, Performance) else None
    if elapsed + _SLACK_S < window.seconds:
        yield Fault(
            "the entries of the log span less time than the run",
            part.log,
            "time_ms",
            f"{elapsed:.1f} s",
            f"{window.seconds:.1f} s",
        )
    elif duration and results and min(results) / 1e3 + _SLACK_S < duration * (1 - _DIGITS):
        yield Fault(
            "the result was logged before the run could end",
            part.log,
            "time_ms",
            f"{min(results) / 1e3:.1f} s",
            f"{duration:.1f} s or more",
        )
    elif start := _day(part.settings.get("test_datetime")):
        apart = (window.end - start).total_seconds() - elapsed
        apart = (apart + _BEFORE_S) % _ZONE_S - _BEFORE_S
        if apart > _AFTER_S:
            yield Fault(
                "the entries of the log are of another clock than its dates",
                part.log,
                "time_ms of power_end",
                f"{elapsed:.1f} s after test_datetime",
                f"{elapsed + apart:.1f} s, or that and a time zone",
            )


@check(
    "RUN-DATES",
    source="inference_policies/submission_rules.adoc, schedule of a round",
    remedy=_AGAIN,
    stage=Stage.TREE,
    each=results,
)
def dates(result: Result) -> Iterator[Fault]:
    """The runs of a result are of one round, later than the LoadGen that made them, and not of the future."""
    now, dated = present(), [(run, _day(run.settings.get("test_datetime"))) for run in result.logged]
    first = dated[0][1] if dated else None
    for part, day in dated:
        if day is None:
            continue
        built = _day(part.detail.values.get("loadgen_build_date_utc")) if part.detail else None
        for wrong, fault, bound in (
            (day > now + _ZONES, "the run is of the future", now),
            (built and day < built - _ZONES, "the run is older than its LoadGen", built),
            (first and abs(day - first) > _ROUND, "the runs of the result are not of one round", first),
        ):
            if wrong and bound:
                yield Fault(fault, part.log, "test_datetime", day.isoformat(), f"near {bound.isoformat()[:10]}")
                break


def _day(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)).replace(tzinfo=UTC)
    except ValueError:
        return None


@check(
    "TTFT-SHAPE",
    source=_SOURCE,
    remedy="make the client report first tokens at once, as they arrive",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=measured_results,
)
def shape(_: Result, part: Performance) -> Iterator[Fault]:
    """Times to the first token spread as those of a server do: neither all alike, nor cut off at a round time, nor many
    of one value.
    """
    figures, field = part.figures, "result_first_token_*_latency_ns"
    low, p50, p90, p95, p99 = (figures.value(f"ttft_{name}") for name in ("min", "p50", "p90", "p95", "p99"))
    if low is None or p50 is None or p90 is None or p95 is None or p99 is None or not (p50 and low):
        return
    tpot = _relative_spread(figures, "tpot")
    wide = (p95 - p50) / p50
    if wide < NARROW and tpot is not None and tpot > SPREAD:
        yield Fault(
            "most times to the first token are alike while TPOT spreads",
            part.log,
            field,
            f"TTFT (p95 - p50)/p50 {wide:.2%}, TPOT {tpot:.2%}",
            f"TTFT {NARROW:.0%} or more",
        )
    elif (p90 - p50) / p50 < _SPIKE and (p99 - p50) / p50 > 10 * _SPIKE:
        yield Fault(
            "two fifths of the times to the first token have one value",
            part.log,
            field,
            f"p50 {p50:,.1f} ms, p90 {p90:,.1f} ms, p99 {p99:,.1f} ms",
            "p90 above p50",
        )
    edge = low // 100 * 100  # a round time, in ms
    if edge and (low - edge) / edge < _JUST_ABOVE and low > 0.5 * p50:
        yield Fault(
            "the smallest time to the first token lies just above a round time",
            part.log,
            field,
            f"min {low:,.3f} ms, p50 {p50:,.1f} ms",
            f"no edge at {edge:g} ms",
        )


def _relative_spread(figures: Figures, name: str) -> float | None:
    p50, p95 = figures.value(f"{name}_p50"), figures.value(f"{name}_p95")
    return None if p50 is None or p95 is None or not p50 else (p95 - p50) / p50

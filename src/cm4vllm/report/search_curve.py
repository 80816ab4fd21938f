"""The picture of a search for the target rate: p99 of each limit over the rate of its probes.

The search's own record is read by its fields, as any reader of search.json would: it is written by a package above.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cm4vllm.common.files import bytes_of
from cm4vllm.report.canvas import Axis, Canvas, Picture, Table
from cm4vllm.report.formatting import ms, percent, qps

__all__ = ["SEARCH_FILE", "search_curves"]

SEARCH_FILE = "search.json"
#: Percent of a limit above which a percentile stands at the edge of the picture; its table has the number.
MOST = 400.0


class _Limit(msgspec.Struct, frozen=True):
    name: str
    limit_ms: float
    p99_ms: float | None = None


class _Probe(msgspec.Struct, frozen=True):
    rate: float
    queries: int
    verdict: str
    limits: list[_Limit]


class _Interval(msgspec.Struct, frozen=True):
    low: float
    high: float


class _Search(msgspec.Struct, frozen=True):
    scenario: str
    rate: float
    stopped: str
    probes: list[_Probe]
    interval: _Interval | None = None
    drift: str = ""


def search_curves(out: Path, scenario: str) -> list[Picture]:
    """Return the picture of each search of a scenario below OUT/search; none where no search was made."""
    curves = []
    for path in sorted(out.glob(f"search/**/{SEARCH_FILE}")):
        try:
            record = msgspec.json.decode(bytes_of(path), type=_Search)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError):
            continue  # one under way, or of another version
        points = [(probe, limit) for probe in record.probes for limit in probe.limits if limit.p99_ms is not None]
        if record.scenario == scenario and points:
            curves.append(_curve(record, points, path.relative_to(out).as_posix()))
    return curves


def _curve(record: _Search, points: list[tuple[_Probe, _Limit]], file: str) -> Picture:
    """Draw p99 as a part of its limit, so that the limits of TTFT and TPOT are one line."""
    names = list(dict.fromkeys(limit.name for _, limit in points))
    shares = [100 * (limit.p99_ms or 0.0) / limit.limit_ms for _, limit in points]
    rates = [probe.rate for probe, _ in points]
    canvas = Canvas.over([*rates, record.rate], [110.0, min(max(shares), MOST)], rows=2)
    canvas.y = Axis(0, canvas.y.high, canvas.y.begin, canvas.y.end)
    canvas.axes("queries/s", "p99, % of its limit" + (f"; above {MOST:g} at the edge" if max(shares) > MOST else ""))
    canvas.level(100, "mark-limit", "limit")
    for place, name in enumerate(names[:2], 1):
        ordered = sorted(
            (probe.rate, 100 * (limit.p99_ms or 0.0) / limit.limit_ms) for probe, limit in points if limit.name == name
        )
        canvas.line(ordered, f"line-{place}")
        canvas.dots(ordered, f"bar-{place}")
    if record.rate:
        canvas.marks([(record.rate, "mark-p99", f"found: {qps(record.rate)}")])
    rows = tuple(
        (
            qps(probe.rate),
            limit.name,
            ms(limit.p99_ms or 0.0),
            ms(limit.limit_ms),
            percent((limit.p99_ms or 0.0) / limit.limit_ms),
            f"{probe.queries:,}",
            probe.verdict,
        )
        for probe, limit in sorted(points, key=lambda point: point[0].rate)
    )
    interval = record.interval
    true = f"; interval of the true rate: {qps(interval.low)} to {qps(interval.high)}" if interval else ""
    words = f"{len(record.probes)} probes found {qps(record.rate)} queries/s{true}; {record.stopped}"
    words += f"; {record.drift}" if record.drift else ""
    head = ("queries/s", "limit", "p99, ms", "limit, ms", "of it", "queries", "verdict")
    return Picture(
        "Search for the target rate",
        words,
        tuple(canvas.shapes),
        (Table(head, rows),),
        f"{file}: probes",
        tuple((f"line-{place}", f"{name} p99") for place, name in enumerate(names[:2], 1)),
    )

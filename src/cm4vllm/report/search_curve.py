"""The picture of a search for the target rate: p99 of each limit over the rate of its probes."""

from __future__ import annotations

from pathlib import Path

from cm4vllm.common.errors import CmError
from cm4vllm.common.records import read_record
from cm4vllm.report.canvas import Axis, Canvas, Picture, Table
from cm4vllm.report.formatting import ms, percent, qps
from cm4vllm.results.rate_search_record import SEARCH_FILE, LimitRecord, ProbeRecord, SearchRecord

__all__ = ["search_curves"]

#: Percent of a limit above which a percentile stands at the edge of the picture; its table has the number.
MOST = 400.0


def search_curves(out: Path, scenario: str) -> list[Picture]:
    """Return the picture of each search of a scenario below OUT/search; none where no search was made."""
    curves = []
    for path in sorted(out.glob(f"search/**/{SEARCH_FILE}")):
        try:
            record = read_record(path, SearchRecord)
        except CmError:
            continue  # one under way, or of another version
        points = [(probe, limit) for probe in record.probes for limit in probe.limits if limit.p99_ms is not None]
        if record.scenario == scenario and points:
            curves.append(_curve(record, points, path.relative_to(out).as_posix()))
    return curves


def _curve(record: SearchRecord, points: list[tuple[ProbeRecord, LimitRecord]], file: str) -> Picture:
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

"""A curve while its points are measured, as data: the points so far, the client under way, and the time foreseen."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from cm4vllm.common.records import Record, read_record
from cm4vllm.endpoints.client import read_summary
from cm4vllm.endpoints.records import CurveRecord, PointRecord
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.results.endpoints.endpoints_harness import times


class MeasuredPoint(Record, frozen=True, kw_only=True):
    """A point that has been measured: its client's output tokens/s, and 1000 over the 90th percentile of TPOT in ms."""

    number: int
    concurrency: int
    tokens_per_second: float
    tokens_per_second_per_user: float | None
    steady_state: str


class CurveStatus(Record, frozen=True, kw_only=True):
    """The points measured so far, and the client under way: point `number` of `count`, at `concurrency`.

    `done` of `total` samples are answered, those of its accuracy run among them; both are 0 while the client starts.
    `elapsed_s` are the seconds since its start. `foreseen_s` are those foreseen of each point, in their order.
    """

    points: tuple[MeasuredPoint, ...]
    number: int
    count: int
    concurrency: int
    foreseen_s: tuple[float, ...]
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0

    def after(self, done: int, total: int, elapsed_s: float) -> CurveStatus:
        """Return the status when `done` of `total` samples are answered."""
        return replace(self, done=done, total=total, elapsed_s=round(elapsed_s, 1))


def curve_status(record: CurveRecord, number: int, folder: Path) -> CurveStatus:
    """Return the status of a curve at the start of a point; `folder` has the run folders of the points before it."""
    kept = [earlier for earlier in range(1, number) if (folder / f"point-{earlier}" / POINT_FILE).is_file()]
    return CurveStatus(
        points=tuple(_measured(folder / f"point-{earlier}", earlier) for earlier in kept),
        number=number,
        count=len(record.plan.points),
        concurrency=record.plan.points[number - 1].concurrency,
        foreseen_s=tuple(round(record.foreseen_s(point), 1) for point in record.plan.points),
    )


def _measured(folder: Path, number: int) -> MeasuredPoint:
    record = read_record(folder / POINT_FILE, PointRecord)
    summary = read_summary(folder)
    tpot = next((value for name, value, _ in times(summary, ("percentiles",)) if name == "tpot_p90"), None)
    return MeasuredPoint(
        number=number,
        concurrency=record.terms.concurrency,
        tokens_per_second=float(summary["tps"]),
        tokens_per_second_per_user=1000 / tpot if tpot else None,
        steady_state=record.steady_state.status if record.steady_state else "",
    )

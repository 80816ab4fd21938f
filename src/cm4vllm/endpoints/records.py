"""Records of a point and of a curve, beside the client's own files; and the status of a curve under way, as data."""

from pathlib import Path
from statistics import median
from typing import ClassVar, Self

from msgspec.structs import replace

from cm4vllm.common.bounded_documents import read_object
from cm4vllm.common.records import Record, read_record
from cm4vllm.endpoints.client_config import ClientRun
from cm4vllm.endpoints.curve_plan import CurvePlan, PlannedPoint
from cm4vllm.endpoints.steady_state import SteadyState
from cm4vllm.records.server import ServerRecord
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.results.endpoints.endpoints_harness import SUMMARY, times
from cm4vllm.rules import EndpointsBenchmark, PointTerms, Regions, RulesUsed, SeedSet

#: The record of a curve, in the folder of its probes.
CURVE_FILE = "curve.json"


class PointPlan(Record, frozen=True, kw_only=True):
    """A point as it is to be measured. `curve` is None for a probe, which is of no curve.

    `dataset_rows` and `dataset_sha256` are those of a stored or given dataset, 0 and empty where the client is to fetch
    its own; the record of the point then has those of the file that it read.
    """

    benchmark: EndpointsBenchmark
    terms: PointTerms
    curve: Regions | None
    run: ClientRun
    offline: str
    dataset_sha256: str
    dataset_rows: int
    server: ServerRecord


class PointRecord(PointPlan, frozen=True, kw_only=True):
    """The record of one point. It is written last: a run folder without it is of a run that was interrupted.

    `identity` is the digest of all that the result depends on. `wall_s` are the seconds from the start of the client to
    its end, `duration_s` those of the performance run in it. `node` has what was detected of the node of a server that
    this run started, by the checker's keys. `in_flight` are the requests in flight on average, `others` the part of
    this machine's processors that other programs used, in [0..1], None where that is not known. `files` has the SHA-256
    of each file of the client.
    """

    SCHEMA: ClassVar[int] = 4

    model: str
    model_sha256: str
    client_commit: str
    identity: str
    files: dict[str, str]
    started_at: str
    wall_s: float
    duration_s: float
    samples_per_second: float
    steady_state: SteadyState | None = None
    node: dict[str, int | str] = {}
    in_flight: float | None = None
    rules: RulesUsed = RulesUsed()
    others: float | None = None


def run_change(record: PointRecord, commit: str, rules: RulesUsed, seeds: SeedSet) -> str:
    """Return in words how client, rules and seeds of a run differ from those of now; empty where they do not."""
    if record.client_commit != commit:
        return f"its client is another: {record.client_commit[:12] or 'not known'}, now {commit[:12]}"
    if (record.run.seeds.scheduler, record.run.seeds.sample_index) != (seeds.scheduler, seeds.sample_index):
        return f"its seeds are those of the set {record.run.seeds.name}, now {seeds.name}"
    if record.rules.measuring_sha256 != rules.measuring_sha256:
        return f"its rules of curve, lengths or window are those of {record.rules.dated or 'an earlier version'}"
    return ""


class Probe(Record, frozen=True, kw_only=True):
    """A short run: samples/s at a concurrency, and the seconds that the client took beside the run itself.

    `others` is the part of this machine's processors that other programs used, in [0..1]; None where it is not known.
    """

    concurrency: int
    samples: int
    samples_per_second: float
    overhead_s: float
    others: float | None = None


class CurveRecord(Record, frozen=True, kw_only=True):
    """A planned curve, the probes that it is based on, and the digest of its inputs."""

    plan: CurvePlan
    probes: tuple[Probe, ...]
    identity: str
    found_at: str
    rules: RulesUsed = RulesUsed()

    def foreseen_s(self, point: PlannedPoint) -> float:
        """Return the expected seconds of a point's client, from its start to its end.

        Beside its run it takes the median of what it took in the probes: its first start of all takes longer.
        """
        return point.all_seconds + median(probe.overhead_s for probe in self.probes)


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

    def after(self, done: int, total: int, elapsed_s: float) -> Self:
        """Return the status when `done` of `total` samples are answered."""
        return replace(self, done=done, total=total, elapsed_s=round(elapsed_s, 1))


def curve_status(record: CurveRecord, number: int, folder: Path) -> CurveStatus:
    """Return the status of a curve at the start of a point; `folder` has the run folders of the points before it."""
    places = {earlier: folder / f"point-{earlier}" for earlier in range(1, number)}
    return CurveStatus(
        points=tuple(_measured_point(place, n) for n, place in places.items() if (place / POINT_FILE).is_file()),
        number=number,
        count=len(record.plan.points),
        concurrency=record.plan.points[number - 1].concurrency,
        foreseen_s=tuple(round(record.foreseen_s(point), 1) for point in record.plan.points),
    )


def _measured_point(folder: Path, number: int) -> MeasuredPoint:
    record, summary = read_record(folder / POINT_FILE, PointRecord), read_object(folder / SUMMARY)
    tpot = next((value for name, value, _ in times(summary, ("percentiles",)) if name == "tpot_p90"), None)
    return MeasuredPoint(
        number=number,
        concurrency=record.terms.concurrency,
        tokens_per_second=float(summary["tps"]),
        tokens_per_second_per_user=1000 / tpot if tpot else None,
        steady_state=record.steady_state.status if record.steady_state else "",
    )

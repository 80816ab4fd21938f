"""Records of a point and of a curve, beside the client's own files."""

from statistics import median
from typing import ClassVar

from cm4vllm.common.records import Record
from cm4vllm.endpoints.client_config import ClientRun
from cm4vllm.endpoints.curve_plan import CurvePlan, PlannedPoint
from cm4vllm.endpoints.steady_state import SteadyState
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import EndpointsBenchmark, PointTerms, Regions

#: The record of a curve, in the folder of its probes.
CURVE_FILE = "curve.json"


class PointRecord(Record, frozen=True, kw_only=True):
    """The record of one point. It is written last: a run folder without it is of a run that was interrupted.

    `identity` is the digest of all that the result depends on. `wall_s` are the seconds from the start of the client to
    its end, `duration_s` those of the performance run in it. `curve` is None for a probe, which is of no curve.
    `node` has what was detected of the node of a server that this run started, by the checker's keys. `dataset_rows`
    and `dataset_sha256` are those of the given dataset, 0 and empty where the client fetched its own. `files` has the
    SHA-256 of each file of the client.
    """

    SCHEMA: ClassVar[int] = 3

    benchmark: EndpointsBenchmark
    terms: PointTerms
    curve: Regions | None
    run: ClientRun
    offline: str
    model: str
    model_sha256: str
    dataset_sha256: str
    dataset_rows: int
    server: ServerRecord
    client_commit: str
    identity: str
    files: dict[str, str]
    started_at: str
    wall_s: float
    duration_s: float
    samples_per_second: float
    steady_state: SteadyState | None = None
    node: dict[str, int | str] = {}


class Probe(Record, frozen=True, kw_only=True):
    """A short run: samples/s at a concurrency, and the seconds that the client took beside the run itself."""

    concurrency: int
    samples: int
    samples_per_second: float
    overhead_s: float


class CurveRecord(Record, frozen=True, kw_only=True):
    """A planned curve, the probes that it is based on, and the digest of its inputs."""

    plan: CurvePlan
    probes: tuple[Probe, ...]
    identity: str
    found_at: str

    def foreseen_s(self, point: PlannedPoint) -> float:
        """Return the expected seconds of a point's client, from its start to its end.

        Beside its run it takes the median of what it took in the probes: its first start of all takes longer.
        """
        return point.all_seconds + median(probe.overhead_s for probe in self.probes)

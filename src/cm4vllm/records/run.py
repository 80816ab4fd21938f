"""run.json: the record of one LoadGen run, beside its logs."""

from pathlib import Path

from cm4vllm import DUMMY_NOTICE, REHEARSAL_NOTICE, SIMULATED_NOTICE, STAND_IN_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record
from cm4vllm.common.units import SamplesPerSecond
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.client import ClientRecord
from cm4vllm.records.energy import RunEnergy
from cm4vllm.records.metrics import ServerMetrics
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import Mode, Scenario, Terms

#: The name of the record's file in a run's folder.
RUN_FILE = "run.json"

#: The name of LoadGen's own settings in a run's folder, which user.conf adds to.
MLPERF_CONF = "mlperf.conf"

#: The name of the record of a run that failed, in `<folder>.failed`.
FAILURE_FILE = "failure.json"

#: The words that LoadGen's name of a system on other machines must contain (constants of the official checker,
#: NETWORK_MODE_REQUIRED_SUBSTRING_IN_SUT_NAME).
NETWORK_SUT = "Network SUT"
#: The end of the name of a counter in MachineLoad.throttled that counts how often, and not for how many seconds.
TIMES = " (times)"
#: The begin of the counters of a control group's quota.
QUOTA = "this program: the CPU quota"


class RunSettings(Record, frozen=True, kw_only=True):
    """All that one LoadGen run depends on: the input of the process that runs LoadGen.

    `terms` is what the rules say of it. `user_conf` is the text of user.conf. `samples` is the size of the query sample
    library: the whole dataset, or its first samples in a rehearsal. `max_in_flight` bounds concurrent requests in the
    Offline scenario alone.
    `stream_interval` says how answers are asked for: 0 whole, k as a stream with a chunk for every k tokens, of which
    the first always comes alone. `num_workers` is the number of client processes; 0 has the self-check decide. Only
    tests leave the `self_check` out.
    `shortened` says why a rehearsal's run has fewer queries than it would have had; empty where it has them all.
    `compliance_test` names the compliance test whose run it is, and `audit_config` is the text of its audit.config;
    both are empty in the runs of a result.
    With `network` the system is on other machines, and LoadGen gets its name from them, as the network division asks.
    """

    rehearsal: bool
    terms: Terms
    user_conf: str
    samples: int
    max_tokens: int
    min_tokens: int
    max_in_flight: int
    stream_interval: int = 1
    num_workers: int = 0
    self_check: bool = True
    target_qps: float
    target_qps_source: str
    model: ModelRecord
    dataset: DatasetRecord
    server: ServerRecord
    shortened: str = ""
    compliance_test: str = ""
    audit_config: str = ""
    network: bool = False

    @property
    def title(self) -> str:
        """The run in words: its scenario, and its mode or its compliance test."""
        return f"{self.scenario} {self.compliance_test or self.mode}"

    @property
    def round(self) -> str:
        """Return the round, such as `v6.1`."""
        return self.terms.round

    @property
    def benchmark(self) -> str:
        """Return the benchmark's name of the rules."""
        return self.terms.benchmark

    @property
    def scenario(self) -> Scenario:
        """Return the scenario of the run."""
        return self.terms.scenario

    @property
    def mode(self) -> Mode:
        """Return the mode of the run: performance or accuracy."""
        return self.terms.mode

    @property
    def notices(self) -> list[str]:
        """Statements about the run that every page and record of it must carry."""
        simulated = self.server.simulated is not None
        return [
            *([SIMULATED_NOTICE] if simulated else []),
            *([STAND_IN_NOTICE] if self.model.is_stand_in else []),
            *([DUMMY_NOTICE] if self.model.is_dummy and not simulated else []),
            *([REHEARSAL_NOTICE] if self.rehearsal else []),
        ]

    @property
    def notice(self) -> str:
        """All notices in one line; empty for a result with the model's own weights."""
        return "; ".join(self.notices)

    @property
    def logs_answers(self) -> bool:
        """Return True if LoadGen logs the answers themselves: in an accuracy run, and in that of a compliance test."""
        return self.mode is Mode.ACCURACY or bool(self.audit_config)

    @property
    def expected_qps(self) -> float:
        """The queries/s that the run can come to: `target_qps`; 0 for a run that no rate paces or sizes."""
        return self.target_qps if self.terms.needs_rate else 0.0


class MachineLoad(Record, frozen=True, kw_only=True):
    """Work of this machine during a run, in processor-seconds of all its processors (proc(5), /proc/stat).

    `busy_s` is all work, `own_s` that of the client's processes and of the server's, None where those are not known.
    `stolen_s` is what the hypervisor gave to others while this machine had work. `throttled` says which processors and
    GPUs were slowed down and why, each with its seconds, or how often where the kernel counts no time.
    """

    processors: int
    wall_s: float
    busy_s: float
    stolen_s: float
    own_s: float | None = None
    throttled: dict[str, float] = {}

    @property
    def busy(self) -> float:
        """The part of the machine that worked, in [0..1]."""
        return self._part(self.busy_s)

    @property
    def own(self) -> float | None:
        """The part of the machine that server and client used, in [0..1]; None where it is not known."""
        return None if self.own_s is None else self._part(self.own_s)

    @property
    def others(self) -> float | None:
        """The part of the machine that other processes used, in [0..1]; None where it is not known."""
        return None if self.own_s is None else self._part(max(0.0, self.busy_s - self.own_s))

    @property
    def stolen(self) -> float:
        """The part of the machine that the hypervisor took, in [0..1]."""
        return self._part(self.stolen_s)

    def _part(self, seconds: float) -> float:
        return seconds / (self.processors * self.wall_s) if self.wall_s else 0.0


class Piece(Record, frozen=True, kw_only=True):
    """One LoadGen process's part of an accuracy run that was stopped and continued: its answers, and their digest.

    `duration_s` is the time from its first query to its last answer.
    """

    began_at: str
    answers: int
    duration_s: float
    sha256: str


class FailureRecord(Record, frozen=True, kw_only=True):
    """A run that failed, beside what is left of its logs. `client` is None where it had not started."""

    settings: RunSettings
    started_at: str
    ended_at: str
    what: str
    cause: str
    remedy: str
    exit_code: int
    client: ClientRecord | None = None


class RunRecord(Record, frozen=True, kw_only=True):
    """One LoadGen run that ended. It exists only where the run's logs are whole.

    `notice` is REHEARSAL_NOTICE in a rehearsal and empty otherwise. `files` maps each log's name to the SHA-256 it had
    when the run ended, before any truncation. `versions` names the packages that took part. `server_metrics` is None
    for a server that has no metrics. `node_loads` are the loads of the nodes of a server over several, its head first;
    `machine_load` is that of the client's machine, whether it is one of them or not. `pieces` are those in which the
    answers of an accuracy run came, none where it was made at once. `accepted_restarts` says which servers at
    --api_server were started again between the first answer of an accuracy run and its last, as
    --accept_restarted_server accepts. `energy` is that of the counters of this machine in a performance run, None in
    records of versions that did not read them.
    """

    notice: str
    settings: RunSettings
    settings_sha256: str
    started_at: str
    ended_at: str
    duration_s: float
    loadgen_version: str
    versions: dict[str, str]
    client: ClientRecord
    server_metrics: ServerMetrics | None = None
    machine_load: MachineLoad | None = None
    node_loads: list[MachineLoad] = []
    energy: RunEnergy | None = None
    files: dict[str, str]
    pieces: list[Piece] = []
    accepted_restarts: list[str] = []

    @property
    def samples_per_second(self) -> SamplesPerSecond:
        """The samples/s that were completed over its whole duration, or over that of all its pieces."""
        if self.pieces:
            answers = sum(piece.answers for piece in self.pieces)
            return SamplesPerSecond(answers / sum(piece.duration_s for piece in self.pieces))
        return SamplesPerSecond(self.client.completed / self.duration_s)

    @property
    def faults(self) -> tuple[str, ...]:
        """Reasons why this run is no valid result, even if LoadGen says VALID: a failed request is work not done."""
        failed = self.client.failed
        fault = f"{failed:,} of {self.client.requests:,} requests failed" if failed else ""
        reused = self.server_metrics.reason_of_reuse if self.server_metrics else ""
        cached = self.client.cached_prompt_tokens or (self.client.text.cached_prompt_tokens if self.client.text else 0)
        if cached and not reused:
            reused = (
                f"the server says that it took {cached:,} prompt tokens from a cache: nothing may be reused "
                "between queries"
            )
        return tuple(filter(None, (fault, reused, self._other_models())))

    def _other_models(self) -> str:
        """Return in words that answers name other models than those of the probe, or several."""
        named, probed = self.client.models, self.settings.server.answered_by
        if not (set(named) - {probed} if probed else len(named) > 1):
            return ""
        words = ", ".join(f"{name} ({answers:,})" for name, answers in named.items())
        return f"the answers name the model {words}" + (
            f", and those of the probe {probed}: a result is of one model" if probed else ": a result is of one model"
        )


def fewer_open_requests(*, at_once: bool) -> str:
    """Return in words, with the flag, what a run needs that has fewer requests open."""
    return "fewer requests in flight: --max_in_flight" if at_once else "a lower rate: --server_target_qps"


def require_run(folder: Path, remedy: str) -> None:
    """Raise UsageError, with the remedy, where a folder holds no run."""
    if not (folder / RUN_FILE).is_file():
        raise UsageError(f"{folder} holds no run", cause=f"no {RUN_FILE} in it", remedy=remedy)

"""run.json: the record of one LoadGen run, beside its logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm import DUMMY_NOTICE, REHEARSAL_NOTICE, SIMULATED_NOTICE, STAND_IN_NOTICE
from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record
from cm4vllm.common.units import SamplesPerSecond
from cm4vllm.hardware.counted_energy import RunEnergy
from cm4vllm.rules import Mode, Scenario, Terms
from cm4vllm.serving.answers.stated import FORMAT_TOKENS
from cm4vllm.serving.metrics_records import ServerMetrics
from cm4vllm.serving.records import ServerRecord

__all__ = [
    "ADDED_TTFT",
    "FAILURE_FILE",
    "HEADROOM",
    "RUN_FILE",
    "ClientRecord",
    "FailureRecord",
    "FinishReasons",
    "Piece",
    "ProcessRecord",
    "RunRecord",
    "RunSettings",
    "SelfCheck",
    "Spread",
    "TextCounts",
    "fewer",
    "given_run_folder",
]

#: The name of the record's file in a run's folder.
RUN_FILE = "run.json"

#: The name of the record of a run that failed, in `<folder>.failed`.
FAILURE_FILE = "failure.json"

#: Times the load that the client must be able to carry, so that the server and not the client is what is measured.
HEADROOM = 1.5
#: The part of a TTFT limit that the client may add to it.
ADDED_TTFT = 0.01


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
        return self.terms.round

    @property
    def benchmark(self) -> str:
        return self.terms.benchmark

    @property
    def scenario(self) -> Scenario:
        return self.terms.scenario

    @property
    def mode(self) -> Mode:
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


class Spread(Record, frozen=True, kw_only=True):
    """Times in ms: their median, their 99th percentile, the greatest."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class ProcessRecord(Record, frozen=True, kw_only=True):
    """One process of the client during the run: LoadGen's, or a worker's.

    `issue_lag` is the time between LoadGen's call and the moment a query is written to its connection, in the Server
    scenario; `loop_lag` how late a worker's event loop ran what was due; `end_lag`, of a few streams, the time from the
    last token to the end of the answer, which is the server's. The garbage collector is off: `gc_pauses` is 0 unless
    something turned it on. `watching_s` is the part of `cpu_s` in which LoadGen's process reported how far it is.
    """

    name: str
    cpu_s: float
    wall_s: float
    peak_memory_mib: float
    gc_pauses: int = 0
    gc_longest_ms: float = 0.0
    loop_lag: Spread | None = None
    issue_lag: Spread | None = None
    end_lag: Spread | None = None
    watching_s: float = 0.0

    @property
    def cpu_share(self) -> float:
        """The share of one processor that the process used; 1 is a whole processor."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


class SelfCheck(Record, frozen=True, kw_only=True):
    """The client's own capacity, measured before the run against a server in memory.

    It answers `tokens` tokens a query at once. Server: queries came at `qps`; `added_ttft` is the time to first token,
    all of it the client's and that server's. Offline: queries followed each other as fast as they could.
    `capacity_qps` is what the client can carry: at `qps`, divided by the share of a processor that its busiest process
    used. `server_share` is that of the server in memory: near 1, the capacity is a lower bound.
    """

    workers: int
    tokens: int
    queries: int
    qps: float
    capacity_qps: float
    busiest: str
    busiest_share: float
    server_share: float
    added_ttft: Spread | None = None


class FinishReasons(Record, frozen=True, kw_only=True):
    """Whole answers by their finish_reason: ended by a token, or at max_tokens or the model's length."""

    stop: int
    length: int


class TextCounts(Record, frozen=True, kw_only=True):
    """Answers of a server that gives text alone, counted by its `usage` and by the model's own tokenizer.

    `answers` were compared: all of an accuracy run, a sample of a performance run, none where the server counts none.
    `apart` is the sum over them of the tokens by which both differ; of an answer that ended by itself the server may
    count one more, the token that ended it, which is in no text. `least_more` is by how many more tokens the server
    counts each of them at least: tokens of a format that are in no text. `first_tokens` are in the first pieces of
    their texts. `unsent` says what an answer shows of generated tokens that were not sent. `prompts_changed` are
    prompts whose text the tokenizer reads as other ids. Versions before wrote the last three here.
    """

    answers: int
    server_tokens: int
    tokenizer_tokens: int
    apart: int
    least_more: int = 0
    first_tokens: int = 0
    unsent: str = ""
    prompts_changed: int = 0
    prompt_tokens: int = 0
    server_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0

    @property
    def format_tokens(self) -> int:
        """The tokens of each answer that the server counts and that are in no text: a constant few, or 0."""
        return self.least_more if self.least_more <= FORMAT_TOKENS else 0

    @property
    def difference(self) -> float | None:
        """The part of the server's tokens by which both differ, but for format_tokens; None without a comparison."""
        apart = self.apart - self.answers * self.format_tokens
        return apart / self.server_tokens if self.server_tokens else None

    def plus(self, other: TextCounts) -> TextCounts:
        """Return the counts of both, which are each of one answer at least, or of none."""
        least = [counts.least_more for counts in (self, other) if counts.answers]
        return TextCounts(
            answers=self.answers + other.answers,
            server_tokens=self.server_tokens + other.server_tokens,
            tokenizer_tokens=self.tokenizer_tokens + other.tokenizer_tokens,
            apart=self.apart + other.apart,
            least_more=min(least, default=0),
            first_tokens=self.first_tokens + other.first_tokens,
            unsent=self.unsent or other.unsent,
        )


class ClientRecord(Record, frozen=True, kw_only=True):
    """The client's record of a run. `failures` holds one line for each kind of failure, with its count.

    `finish_reasons` is None in records of versions that did not read them. `reported_tokens` were reported to LoadGen:
    fewer than `completion_tokens` where the benchmark's reference leaves out the first one of each answer.
    `at_once` counts the streams that came whole, which something between server and client had collected.
    `connections` counts those that were opened, the slowest in `longest_connect_s`. `kept` of the requests were
    answered in an earlier piece of the run, and the server was not asked for them again. `text` is None where the
    server lists token ids. The server states `server_prompt_tokens` and `cached_prompt_tokens`; it counts each prompt
    by `least_more` to `most_more` more tokens than were sent, None where it counts none. `models` counts the answers by
    the names of the model in them. `first_tokens` came with the first event of their answers; 0 of answers in text.
    """

    requests: int
    completed: int
    failed: int
    retries: int
    prompt_tokens: int
    completion_tokens: int
    finish_reasons: FinishReasons | None = None
    failures: dict[str, int] = {}
    reported_tokens: int = 0
    at_once: int = 0
    text: TextCounts | None = None
    connections: int = 0
    longest_connect_s: float = 0.0
    server_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    least_more: int | None = None
    most_more: int | None = None
    first_tokens: int = 0
    models: dict[str, int] = {}
    kept: int = 0
    processes: list[ProcessRecord] = []
    self_check: SelfCheck | None = None

    @property
    def end_lag_ms(self) -> float | None:
        """The time from the last token to the end of an answer, median of a few; None where answers came whole."""
        return max((process.end_lag.p50_ms for process in self.processes if process.end_lag), default=None)

    @property
    def first_event_tokens(self) -> float:
        """The mean number of tokens that came with the first event of an answer; 0 where it is not known."""
        if self.text is not None:
            return self.text.first_tokens / self.text.answers if self.text.answers else 0.0
        asked = self.completed - self.kept
        return self.first_tokens / asked if asked else 0.0

    @property
    def more_words(self) -> str:
        """By how many more tokens the server counts each prompt than were sent, in words; empty where by none."""
        least, most = self.least_more, self.most_more
        if least is None or most is None or most <= 0:
            return ""
        return f"{least:,} more in each" if least == most else f"{least:,} to {most:,} more in each"


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
        reused = self.server_metrics.reused if self.server_metrics else ""
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


def fewer(*, at_once: bool) -> str:
    """Return in words, with the flag, what a run needs that has fewer requests open."""
    return "fewer requests in flight: --max_in_flight" if at_once else "a lower rate: --server_target_qps"


def given_run_folder(env: Mapping[str, Any], key: str, remedy: str) -> Path:
    """Return the folder of a run that the environment names. Raises UsageError where it holds no run."""
    folder = Path(env[key]).absolute()
    if not (folder / RUN_FILE).is_file():
        raise UsageError(f"{folder} holds no run", cause=f"no {RUN_FILE} in it", remedy=remedy)
    return folder

"""Measured results: submissions, their systems and results, every figure with its unit and the file it was read from.

The same objects stand for our own run folders (run_folders) and for any submission tree (trees). None and empty stand
for what is not known; what could not be read is a finding among the submission's `problems`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar

from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.units import Milliseconds, Quantity, SamplesPerSecond, Seconds, TokensPerSecond
from cm4vllm.records.accuracy import AccuracyRecord
from cm4vllm.records.campaign import CampaignRecord
from cm4vllm.records.compliance import ComplianceRecord
from cm4vllm.records.doubts import client_doubts
from cm4vllm.records.logs.detail_log import DetailLog, Window
from cm4vllm.records.logs.figures import metric_names
from cm4vllm.records.power.session import PowerSession, is_power_session
from cm4vllm.records.run import RunRecord
from cm4vllm.records.weights.checkpoint import Weights
from cm4vllm.results.figures import Figure, Figures, Latency
from cm4vllm.results.file_listing import Listing
from cm4vllm.rules import Audit, Mode, Terms, audit, benchmark_of, loadgen_scenario, terms_of_test

Q = TypeVar("Q", bound=Quantity)


@dataclass(frozen=True)
class Conditions:
    """The sampling parameters of a run and how the client sent its queries, for readers without the record of the run.

    `doubts` are those of the client as an instrument, `logs` the SHA-256 of each log before truncation. `answers` holds
    three bytes of the SHA-256 of each answer, in the order of the dataset, in base64; it is empty where the answers are
    not known.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    logs: Mapping[str, str] = field(default_factory=dict)
    answers: str = ""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The facts that both kinds of runs have: the logs of a run, and our record of it where there is one.

    `folder` holds the logs, `log` is the path of the detail log as sources name it. `settings` are those that LoadGen
    used, without `effective_`. `terms` is what the rules say of the run, None where they do not know it. `detail` has
    the entries of the log. `conditions` are filled in a capsule, whose results have no `run`.
    """

    log: str
    loadgen_version: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    figures: Figures
    folder: Path = Path()
    errors: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    terms: Terms | None = None
    run: RunRecord | None = None
    detail: DetailLog | None = None

    def beside(self, name: str) -> str:
        """Return the path of a file beside the log, as sources and findings name it."""
        return str(PurePosixPath(self.log).parent / name)

    place = property(attrgetter("log"))  # as findings name the run

    @property
    def window(self) -> Window | None:
        """The measured window; None where the log does not state it."""
        return self.detail.window if self.detail else None

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults that our record of the run names."""
        return self.run.faults if self.run else ()

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seeds of the run: qsl, sample index, schedule; None for one that is missing in the log."""
        return tuple(self.settings.get(f"{name}_rng_seed") for name in ("qsl", "sample_index", "schedule"))


@dataclass(frozen=True, kw_only=True)
class Performance(_Run):
    """One performance run: what LoadGen's detail log says of it, and our record of it.

    `loadgen_valid` is LoadGen's own verdict, with nothing in its log against it; `loadgen_reasons` says what is.
    `harness` says which one measured; that of endpoints has no log, and its `log` is the summary.
    """

    mode: ClassVar[Mode] = Mode.PERFORMANCE

    loadgen_scenario: str
    loadgen_valid: bool
    loadgen_reasons: tuple[str, ...]
    harness: str = "LoadGen"

    @property
    def valid(self) -> bool:
        """Return True if LoadGen calls the result valid, and our record of the run names no fault."""
        return self.loadgen_valid and not self.faults

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the run is not valid."""
        return (*self.loadgen_reasons, *self.faults)

    @property
    def client_doubts(self) -> tuple[str, ...]:
        """The reasons to doubt our client as an instrument in this run."""
        return tuple(client_doubts(self.run)) if self.run else self.conditions.doubts

    @property
    def metric(self) -> Figure | None:
        """The figure by which results of the scenario are compared; None where it is missing in the log."""
        names = metric_names(self.loadgen_scenario, tokens="tokens_per_second" in self.figures)
        return next((self.figures[name] for name in names if name in self.figures), None)

    @property
    def tokens_per_second(self) -> TokensPerSecond | None:
        return self._record_of_kind("tokens_per_second", TokensPerSecond)

    @property
    def samples_per_second(self) -> SamplesPerSecond | None:
        return self._record_of_kind("samples_per_second", SamplesPerSecond)

    @property
    def scheduled_samples_per_second(self) -> SamplesPerSecond | None:
        return self._record_of_kind("scheduled_samples_per_second", SamplesPerSecond)

    @property
    def duration(self) -> Seconds | None:
        return self._record_of_kind("duration", Seconds)

    @property
    def samples(self) -> int:
        return int(self.figures.value("samples") or 0)

    @property
    def queries(self) -> int:
        return int(self.figures.value("queries") or 0)

    @property
    def min_duration(self) -> Seconds:
        """The duration that LoadGen was configured to reach."""
        return Seconds(self._setting("min_duration_ms") / 1e3)

    @property
    def target_qps(self) -> float:
        """The rate that LoadGen was configured with; 0 where the scenario has none."""
        return self._setting("target_qps")

    @property
    def one_by_one(self) -> bool:
        """Return True if each query followed the answer to the previous one: LoadGen then has a target latency."""
        return self.terms is not None and self.terms.one_by_one

    @property
    def latencies(self) -> tuple[Latency, ...]:
        """TTFT and TPOT with their limits; empty if LoadGen does not measure them, as in Offline.

        The latency of whole answers is among them where that has a limit.
        """
        limits = self.terms.limits.by_name if self.terms and self.terms.limits else {}
        latencies = []
        for name in ("TTFT", "TPOT", *(limits.keys() - {"TTFT", "TPOT"})):
            p99, mean = (self._record_of_kind(f"{name.lower()}_{part}", Milliseconds) for part in ("p99", "mean"))
            if p99 is not None:
                latencies.append(Latency(name, p99, mean, Milliseconds(limits[name]) if name in limits else None))
        return tuple(latencies)

    @property
    def target_source(self) -> str:
        """The source of the target QPS of our run."""
        return (
            "LoadGen's default"
            if self.run is None or not self.run.settings.target_qps
            else self.run.settings.target_qps_source or "its source is not stated"
        )

    def _setting(self, name: str) -> float:
        value = self.settings.get(name)
        return float(value) if isinstance(value, int | float) else 0.0

    def _record_of_kind(self, name: str, kind: type[Q]) -> Q | None:
        value = self.figures.value(name)
        return None if value is None else kind(value)


@dataclass(frozen=True, kw_only=True)
class Accuracy(_Run):
    """One accuracy run and its scores.

    `figures` are those of accuracy.txt, by the label there, the last of each; `stated` are all, in their order. `hash`
    is the digest of the log before truncation, which that file names. `record` is ours of the scores, None while the
    log has not been scored.
    """

    mode: ClassVar[Mode] = Mode.ACCURACY

    hash: str = ""
    record: AccuracyRecord | None = None
    stated: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class ComplianceTest:
    """The run of one compliance test and the verdict on it, by our own records."""

    folder: Path
    run: RunRecord
    record: ComplianceRecord

    def belongs_to(self, run: RunRecord) -> bool:
        """Return True if the test used the run's model, server and LoadGen, and the run's dataset or the test's own."""
        test = audit(self.record.test, self.record.benchmark)
        return self._made_with(self.run, test) == self._made_with(run, test)

    @staticmethod
    def _made_with(run: RunRecord, test: Audit) -> tuple[object, ...]:
        settings = run.settings
        return (
            terms_of_test(settings.terms, test),
            settings.rehearsal,
            settings.model.name,
            settings.model.sha256,
            None if test.own_dataset else (settings.dataset.sha256, settings.samples),
            settings.max_tokens,
            settings.min_tokens,
            settings.server.named,
            settings.server.packages,
            run.loadgen_version,
        )


@dataclass(frozen=True)
class Result:
    """One scenario of one model on one system: a performance run, an accuracy run, or both.

    `model` is the folder's name, `benchmark` that of the benchmark it is a result of, which model_mapping.json may name
    in the open division. `scenario` is spelled as the rules spell it. `compliance` names the tests there are.
    `measurements` is the file of that name, `user_conf` the text of user.conf, `readme` that of README.md; `files`
    names the files of a tree that they were read from, under the same words. `tests` are runs of compliance tests by
    our own records, with the verdicts on them; `test_runs` the logs of such runs in a tree, by the test's name.
    `uncovered` says why the rules have nothing for a result of a tree, and
    is empty where they are applied.
    """

    round: str
    division: str
    submitter: str
    system: str
    model: str
    benchmark: str
    scenario: str
    folder: str
    performance: Performance | None
    accuracy: Accuracy | None
    measurements: Mapping[str, Any] = field(default_factory=dict)
    user_conf: str = ""
    compliance: tuple[str, ...] = ()
    readme: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[ComplianceTest, ...] = ()
    test_runs: Mapping[str, Performance] = field(default_factory=dict)
    uncovered: str = ""

    place = property(attrgetter("folder"))  # as findings name the result

    @property
    def inferred_from(self) -> str:
        """LoadGen's scenario of the performance log where that is another scenario than the result's; else empty.

        The log's figures are then those of that scenario. What the official checkers publish is computed from them, for
        edge systems alone (get_inferred_result).
        """
        ran = self.performance.loadgen_scenario if self.performance else ""
        return ran if ran and loadgen_scenario(self.scenario) not in ("", ran) else ""

    def file(self, name: str) -> str:
        """Return the path by which a finding names a file of the result: the result's folder if `files` lacks it."""
        return self.files.get(name, self.folder)

    @property
    def mapped(self) -> bool:
        """Return True if the model is not the benchmark's own, and only mapped to it (open division)."""
        return self.benchmark not in (self.model, benchmark_of(self.round, self.model, {}))

    @property
    def covered(self) -> bool:
        """Return True if the rules of its benchmark were applied to the result."""
        return not self.uncovered and self.performance is not None

    @property
    def parts(self) -> dict[Mode, Performance | Accuracy]:
        """The runs that were read, by mode."""
        return {part.mode: part for part in (self.performance, self.accuracy) if part is not None}

    @property
    def logged(self) -> tuple[Performance | Accuracy, ...]:
        """The runs that were read, and those of its compliance tests in a tree."""
        return (*self.parts.values(), *self.test_runs.values())

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """Our records of the runs."""
        return tuple(part.run for part in self.parts.values() if part.run)

    @property
    def run(self) -> RunRecord:
        """Our record of one of the two runs; a check compares the fields that both share."""
        return self.runs[0]


@dataclass(frozen=True)
class System:
    """A system and its description, key by key as systems/<name>.json has it."""

    name: str
    description: Mapping[str, Any]
    file: str

    place = property(attrgetter("file"))  # as findings name the system


@dataclass(frozen=True)
class ServedWeights:
    """A folder of weights that is at hand, and the results that they are said to be of.

    `weights` is None where they cannot be read; `problem` and `cause` say why.
    """

    folder: Path
    results: tuple[Result, ...]
    weights: Weights | None
    problem: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Submission:
    """The results of one submitter in one round and division. `root` is the folder that files are named from.

    `round` is empty where neither the records nor the seeds of the logs tell it. `campaign` is the record of the
    command that made our own runs. `weights` are those at hand while a tree is checked; `listing` holds the files of a
    tree.
    """

    root: Path
    round: str
    division: str
    submitter: str
    systems: tuple[System, ...]
    results: tuple[Result, ...]
    problems: tuple[Finding, ...] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    campaign: CampaignRecord | None = None
    weights: tuple[ServedWeights, ...] = ()
    listing: Listing = field(default_factory=Listing)

    @property
    def place(self) -> str:
        """The path below the root that findings on the submission name."""
        return f"{self.division}/{self.submitter}"

    @property
    def home(self) -> Path:
        """The submitter's folder in a tree."""
        return self.root / self.place

    @cached_property
    def sessions(self) -> Mapping[str, PowerSession]:
        """The power sessions of the results, each by the folder of its result."""
        folders = {result.folder: self.root / result.folder / "performance" for result in self.results}
        return {name: PowerSession(folder) for name, folder in folders.items() if is_power_session(folder)}

    def system(self, name: str) -> System | None:
        """Return the description of a system; None if there is none."""
        return next((system for system in self.systems if system.name == name), None)

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """Our records of all runs."""
        return tuple(run for result in self.results for run in result.runs)

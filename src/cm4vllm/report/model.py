"""One typed model of a campaign's records, from which the pages, the README texts and the final table are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from cm4vllm import NO_SUBMITTER
from cm4vllm.accuracy.records import ACCURACY_FILE, AccuracyRecord
from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.records import Record, read_record
from cm4vllm.common.units import Milliseconds
from cm4vllm.hardware.records import MachineFacts
from cm4vllm.loadgen.logs import PerformanceResult, read_performance
from cm4vllm.loadgen.records import RUN_FILE, RunRecord
from cm4vllm.report.records import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.rules import BenchmarkTerms, Division, Mode, Scenario, benchmark_terms
from cm4vllm.serving.records import ServerRecord
from cm4vllm.submission.records import CHECKER_FILE, CheckerRecord

__all__ = ["Accuracy", "Invalid", "Latency", "Measurement", "Performance", "Report", "load"]

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Latency:
    """The 99th percentile and the mean of TTFT or TPOT, and the limit that the benchmark sets for the percentile."""

    name: str
    p99: Milliseconds
    mean: Milliseconds | None
    limit: Milliseconds | None

    @property
    def met(self) -> bool | None:
        """Whether the percentile is below the limit (the checker compares with <); None where there is no limit."""
        return None if self.limit is None else self.p99 < self.limit

    @property
    def headroom(self) -> float | None:
        """The part of the limit that is left, in [..1]; negative when it is exceeded."""
        return None if self.limit is None else 1 - self.p99 / self.limit


@dataclass(frozen=True)
class Performance:
    """A performance run: its record, and what LoadGen's own logs say of it."""

    folder: Path
    run: RunRecord
    result: PerformanceResult
    latencies: tuple[Latency, ...]

    @property
    def target_source(self) -> str:
        """Where the target QPS comes from."""
        if not self.run.settings.target_qps:
            return "LoadGen's default"
        return self.run.settings.target_qps_source or "its source is not stated"

    @property
    def valid(self) -> bool:
        """Whether LoadGen calls the result valid, and we know of nothing against the run."""
        return self.result.valid and not self.run.faults

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not valid, one reason each."""
        return (*self.result.reasons, *self.run.faults)


@dataclass(frozen=True)
class Accuracy:
    """An accuracy run and its scores; `record` is None while its log has not been scored."""

    folder: Path
    run: RunRecord
    record: AccuracyRecord | None


@dataclass(frozen=True)
class Measurement:
    """One scenario of one model on one system: one or two runs."""

    scenario: Scenario
    performance: Performance | None
    accuracy: Accuracy | None

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return tuple(part.run for part in (self.performance, self.accuracy) if part is not None)

    @property
    def run(self) -> RunRecord:
        """The run that stands for both; what they share is checked when they are read."""
        return self.runs[0]


@dataclass(frozen=True)
class Invalid:
    """A scenario whose result is not valid, and why."""

    scenario: Scenario
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """All that is known of one system's runs of one model; None and {} stand for what was not recorded.

    `out` is the campaign's folder, `folder` the one of these runs: runs/<system>/<model>.
    """

    out: Path
    folder: Path
    benchmark: BenchmarkTerms
    measurements: tuple[Measurement, ...]
    campaign: CampaignRecord | None = None
    system: dict[str, str] = field(default_factory=dict)
    machine: MachineFacts | None = None
    started_server: ServerRecord | None = None
    checker: CheckerRecord | None = None

    @property
    def system_name(self) -> str:
        """The name of the system's folder."""
        return self.folder.parent.name

    @property
    def system_title(self) -> str:
        return self.system.get("system_name") or self.system_name

    @property
    def run(self) -> RunRecord:
        return self.measurements[0].run

    @property
    def rehearsal(self) -> bool:
        return self.run.settings.rehearsal

    @property
    def notice(self) -> str:
        return self.run.notice

    @property
    def round(self) -> str:
        return self.run.settings.round

    @property
    def model(self) -> ModelRecord:
        return self.run.settings.model

    @property
    def dataset(self) -> DatasetRecord:
        return self.run.settings.dataset

    @property
    def server(self) -> ServerRecord:
        """The server that was measured: as the campaign recorded it, or as the first run saw it."""
        return self.started_server or self.run.settings.server

    @property
    def mapped(self) -> bool:
        """Whether the model is not the benchmark's own, and so only mapped to it (open division)."""
        return self.model.name != self.benchmark.name

    @property
    def division(self) -> Division | None:
        return self.campaign.division if self.campaign else None

    @property
    def submitter(self) -> str:
        return self.campaign.submitter if self.campaign else ""

    @property
    def submitter_stated(self) -> str:
        """The submitter's name, or `not stated` where nobody gave one."""
        return "not stated" if self.submitter in ("", NO_SUBMITTER) else self.submitter

    @property
    def tree(self) -> Path | None:
        """The submission tree, where it has been built."""
        if self.campaign is None:
            return None
        tree = self.out / "submission" / self.campaign.division / self.campaign.submitter
        return tree if tree.is_dir() else None

    @property
    def page(self) -> Path:
        return self.out / "summary.html"

    @property
    def invalid_results(self) -> tuple[Invalid, ...]:
        """The scenarios whose results are not valid, with the reasons."""
        found = []
        for m in self.measurements:
            performance = m.performance.reasons if m.performance and not m.performance.valid else ()
            accuracy = m.accuracy.run.faults if m.accuracy else ()
            if (m.performance and not m.performance.valid) or accuracy:
                found.append(Invalid(m.scenario, (*performance, *(f"accuracy run: {fault}" for fault in accuracy))))
        return tuple(found)


def load(out: Path, *, system: str = "", model: str = "") -> Report:
    """Read the records and logs of a campaign from its folder of results, and check that they fit together.

    `system` and `model` choose among the folders under runs/; by default those of campaign.json, or the only ones.
    Raises SubmissionError when there is no run, when it is not clear which runs are meant, or when an invariant of
    report.invariants is broken; CmError when a file is not what it should be.
    """
    from cm4vllm.report.invariants import check

    campaign = _optional(out / CAMPAIGN_FILE, CampaignRecord)
    folder = _chosen(
        out, system or (campaign.system if campaign else ""), model or (campaign.model if campaign else "")
    )
    measurements = tuple(_measurements(folder))
    measured = measurements[0].run.settings.terms
    report = Report(
        out=out, folder=folder, benchmark=benchmark_terms(measured.round, measured.benchmark),
        measurements=measurements, campaign=campaign, system=_system(out / "system" / "system.json"),
        machine=_optional(out / "system" / "machine.json", MachineFacts),
        started_server=_optional(out / "server" / "server.json", ServerRecord),
        checker=_checker(out / CHECKER_FILE, measurements),
    )
    check(report)
    return report


def _optional(path: Path, cls: type[R]) -> R | None:
    return read_record(path, cls) if path.exists() else None


def _checker(path: Path, measurements: tuple[Measurement, ...]) -> CheckerRecord | None:
    """Return the checkers' verdict, unless it is older than a run: then it is on results that are no more."""
    record = _optional(path, CheckerRecord)
    last = max(datetime.fromisoformat(run.ended_at).timestamp() for m in measurements for run in m.runs)
    return None if record is None or path.stat().st_mtime < last else record


def _system(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        return {key: str(value) for key, value in msgspec.json.decode(path.read_bytes(), type=dict).items()}
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SubmissionError(f"{path} is not a system description", cause=str(error)) from error


def _chosen(out: Path, system: str, model: str) -> Path:
    """Return the one folder runs/<system>/<model> that is meant and holds a run."""
    found = sorted({path.parents[2] for path in out.glob(f"runs/*/*/*/*/{RUN_FILE}")})
    meant = [f for f in found if (not system or f.parent.name == system) and (not model or f.name == model)]
    if len(meant) == 1:
        return meant[0]
    asked = f" of system {system or 'any'}, model {model or 'any'}" if system or model else ""
    there = ", ".join(f"{f.parent.name}/{f.name}" for f in found)
    if not meant:
        raise SubmissionError(
            f"no complete run{asked} in {out}", cause=f"there is: {there}" if there else "no run.json under its runs/",
            remedy="run a measurement with this --output_dir first",
        )
    raise SubmissionError(f"several systems or models in {out}", cause=there, remedy="name the one you mean")


def _measurements(folder: Path) -> Iterator[Measurement]:
    for scenario in Scenario:
        performance = _performance(folder / scenario / Mode.PERFORMANCE)
        accuracy = _accuracy(folder / scenario / Mode.ACCURACY)
        if performance or accuracy:
            yield Measurement(scenario, performance, accuracy)


def _run(folder: Path) -> RunRecord | None:
    run = _optional(folder / RUN_FILE, RunRecord)
    if run and (run.settings.mode, run.settings.scenario) != (folder.name, folder.parent.name):
        raise SubmissionError(
            f"{folder / RUN_FILE} is the record of another run",
            cause=f"it says {run.settings.scenario}, {run.settings.mode}", remedy="remove the folder and run it again",
        )
    return run


def _performance(folder: Path) -> Performance | None:
    run = _run(folder)
    if run is None:
        return None
    result = read_performance(folder)
    limits = run.settings.terms.limits
    latencies = (
        ("TTFT", result.ttft_p99, result.ttft_mean, limits.ttft_ms if limits else None),
        ("TPOT", result.tpot_p99, result.tpot_mean, limits.tpot_ms if limits else None),
    )
    return Performance(folder, run, result, tuple(
        Latency(name, p99, mean, None if limit is None else Milliseconds(limit))
        for name, p99, mean, limit in latencies if p99 is not None
    ))


def _accuracy(folder: Path) -> Accuracy | None:
    run = _run(folder)
    return None if run is None else Accuracy(folder, run, _optional(folder / ACCURACY_FILE, AccuracyRecord))

"""The contents of the pages, the README texts and the final table: checked results, and facts about them."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cm4vllm import NO_SUBMITTER, SIMULATED_POWER_NOTICE
from cm4vllm.common.checking.findings import refuse
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.records import read_optional
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.campaign import CampaignRecord
from cm4vllm.records.checker import CHECKER_FILE, CheckerRecord
from cm4vllm.records.machine import MachineFacts
from cm4vllm.records.run import RunRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.results.checks import findings
from cm4vllm.results.judgement.published_rank import Place
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.recorded_power import recorded_power
from cm4vllm.results.run_folders import chosen_folder, read_runs
from cm4vllm.rules import BenchmarkTerms, Division, benchmark_terms


@dataclass(frozen=True)
class Report:
    """The checked results of one system's runs of one model, and the further facts of the campaign.

    `out` is the campaign's folder, `folder` the one of these runs: runs/<system>/<model>. None and {} stand for
    what was not recorded. `places` are among the published results, where these were given.
    """

    out: Path
    folder: Path
    submission: Submission
    benchmark: BenchmarkTerms
    machine: MachineFacts | None = None
    started_server: ServerRecord | None = None
    checker: CheckerRecord | None = None
    system: dict[str, str] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    @property
    def results(self) -> tuple[Result, ...]:
        return self.submission.results

    @property
    def campaign(self) -> CampaignRecord | None:
        return self.submission.campaign

    @property
    def system_title(self) -> str:
        return self.system.get("system_name") or self.folder.parent.name

    @property
    def run(self) -> RunRecord:
        return self.submission.runs[0]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, in the order of the scenarios."""
        return self.submission.runs

    @property
    def rehearsal(self) -> bool:
        return self.run.settings.rehearsal

    @property
    def notice(self) -> str:
        """The marks of every page: those of the runs, and that of power that was simulated."""
        simulated = any(
            (power := recorded_power(result.performance)) and power.simulated
            for result in self.results
            if result.performance
        )
        return "; ".join(filter(None, [SIMULATED_POWER_NOTICE if simulated else "", self.run.notice]))

    @property
    def shortened(self) -> dict[str, str]:
        """The runs of a rehearsal that have fewer queries than they would have had, with the reasons."""
        return {run.settings.title: run.settings.shortened for run in self.runs if run.settings.shortened}

    @property
    def round(self) -> str:
        return self.submission.round

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
        """Return True if the model is not the benchmark's own, and so only mapped to it (open division)."""
        return self.model.name != self.benchmark.name

    @property
    def division(self) -> Division | None:
        return self.campaign.division if self.campaign else None

    @property
    def submitter(self) -> str:
        return self.submission.submitter

    @property
    def submitter_stated(self) -> str:
        """The submitter's name, or `not stated` where none was given."""
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
    def invalid_results(self) -> list[str]:
        """A line for each scenario whose result is not valid, with the reasons."""
        invalid = []
        for result in self.results:
            performance = result.performance
            reasons = performance.reasons if performance and not performance.valid else ()
            faults = result.accuracy.faults if result.accuracy else ()
            if (performance and not performance.valid) or faults:
                why = [*reasons, *(f"accuracy run: {fault}" for fault in faults)]
                invalid.append(f"{result.scenario}: {'; '.join(why)}")
        return invalid


def load(out: Path, *, system: str = "", model: str = "") -> Report:
    """Read the results of a campaign from its folder, and refuse them where a check finds an error.

    `system` and `model` choose among the folders under runs/; by default those of campaign.json, or the only ones.
    Raises SubmissionError when there is no run, when it is not clear which runs are meant, or with all errors that the
    checks of results.checks find; CmError when a record beside the runs is not what it should be.
    """
    folder = chosen_folder(out, system=system, model=model)
    submission = read_runs(out, folder)
    refuse(findings(submission), out)
    first = submission.runs[0].settings.terms
    described = submission.system(folder.parent.name)
    return Report(
        out=out,
        folder=folder,
        submission=submission,
        benchmark=benchmark_terms(first.round, first.benchmark),
        machine=read_optional(out / "system" / "machine.json", MachineFacts),
        started_server=read_optional(out / "server" / "server.json", ServerRecord),
        checker=_checker(out, submission),
        system={key: str(value) for key, value in described.description.items()} if described else {},
    )


def _checker(out: Path, submission: Submission) -> CheckerRecord | None:
    """Return the checkers' verdict, unless it is older than a run or on another tree: then it is on what is no more."""
    path, tree = out / CHECKER_FILE, out / "submission"
    record = read_optional(path, CheckerRecord)
    last = max(datetime.fromisoformat(run.ended_at).timestamp() for run in submission.runs)
    if record is None or path.stat().st_mtime < last:
        return None
    return None if record.tree_sha256 and tree.is_dir() and sha256_of_tree(tree) != record.tree_sha256 else record

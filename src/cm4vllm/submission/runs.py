"""The recorded runs that a submission tree is made of, checked before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from cm4vllm.accuracy.records import AccuracyRecord
from cm4vllm.loadgen.detail_log import DETAIL_LOG
from cm4vllm.loadgen.logs import ACCURACY_LOG, SUMMARY_LOG
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.results import run_folders
from cm4vllm.results.checks import findings
from cm4vllm.results.findings import refuse
from cm4vllm.rules import Scenario

__all__ = ["ACCURACY_LOG", "LOGS", "ScenarioRuns", "read_runs"]

LOGS = (DETAIL_LOG, SUMMARY_LOG)


@dataclass(frozen=True)
class ScenarioRuns:
    """One scenario's two runs, their folders, and the scores of the accuracy run."""

    scenario: Scenario
    performance: RunRecord
    accuracy: RunRecord
    scores: AccuracyRecord
    performance_folder: Path
    accuracy_folder: Path


def read_runs(folder: Path, scenarios: Iterable[Scenario], *, submitter: str, division: str) -> list[ScenarioRuns]:
    """Read the runs of `scenarios` below `folder` (OUT/runs/<system>/<model>), whole and checked.

    `submitter` and `division` are those of the submission that is to be made. Raises SubmissionError with all errors
    that the checks of results.checks find.
    """
    out = folder.parents[2]
    wanted = tuple(scenarios)
    submission = replace(run_folders.read_runs(out, folder, wanted), submitter=submitter, division=division)
    refuse(findings(submission, submitted=True), out)
    return [
        ScenarioRuns(scenario, performance.run, accuracy.run, accuracy.record, performance.folder, accuracy.folder)
        for scenario, result in zip(wanted, submission.results, strict=True)
        if (performance := result.performance) and (accuracy := result.accuracy)
        and performance.run and accuracy.run and accuracy.record
    ]

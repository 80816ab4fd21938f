"""The recorded runs that a submission tree is made of, checked before anything is made of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.checking.findings import refuse
from cm4vllm.common.progress import warn
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import SUMMARY_LOG
from cm4vllm.records.run import RunRecord
from cm4vllm.results import run_folders
from cm4vllm.results.checks import findings
from cm4vllm.results.model import ComplianceTest
from cm4vllm.rules import Scenario

LOGS = (DETAIL_LOG, SUMMARY_LOG)


@dataclass(frozen=True)
class ScenarioRuns:
    """One scenario's performance run, the folders of its two runs, and the compliance tests."""

    scenario: Scenario
    performance: RunRecord
    performance_folder: Path
    accuracy_folder: Path
    tests: tuple[ComplianceTest, ...] = ()


def read_runs(folder: Path, scenarios: Iterable[Scenario], *, submitter: str, division: str) -> list[ScenarioRuns]:
    """Read the runs of `scenarios` below `folder` (OUT/runs/<system>/<model>), whole and checked.

    `submitter` and `division` are those of the submission that is to be made. Raises SubmissionError with all errors
    that the checks of results.checks find.
    """
    out = folder.parents[2]
    wanted = tuple(scenarios)
    submission = replace(run_folders.read_runs(out, folder, wanted), submitter=submitter, division=division)
    refuse(findings(submission, Stage.SUBMITTED), out)
    return [
        ScenarioRuns(
            scenario,
            performance.run,
            performance.folder,
            accuracy.folder,
            tuple(_belonging(result.tests, performance.run)),
        )
        for scenario, result in zip(wanted, submission.results, strict=True)
        if (performance := result.performance) and (accuracy := result.accuracy) and performance.run
    ]


def _belonging(tests: Iterable[ComplianceTest], run: RunRecord) -> Iterator[ComplianceTest]:
    """Yield the compliance tests of a scenario that were made with what its performance run was made with."""
    for test in tests:
        if test.belongs_to(run):
            yield test
        else:
            warn(
                f"{test.record.test} of {run.settings.scenario} is not part of the submission: it was made with "
                f"another model, dataset, server or LoadGen than the performance run\n--compliance={test.record.test} "
                "makes it again"
            )

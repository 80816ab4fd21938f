"""The recorded runs of a campaign, read and held against each other before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.accuracy.records import ACCURACY_FILE, AccuracyRecord
from cm4vllm.common.errors import CmError, SubmissionError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import Record, read_record
from cm4vllm.loadgen.records import RUN_FILE, RunRecord
from cm4vllm.rules import Mode, Scenario

__all__ = ["ACCURACY_LOG", "LOGS", "ScenarioRuns", "read_runs"]

ACCURACY_LOG = "mlperf_log_accuracy.json"
LOGS = ("mlperf_log_detail.txt", "mlperf_log_summary.txt")
_AGAIN = "run it again with --rerun"

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class ScenarioRuns:
    """One scenario's two runs, their folders, and the scores of the accuracy run."""

    scenario: Scenario
    performance: RunRecord
    accuracy: RunRecord
    scores: AccuracyRecord
    performance_folder: Path
    accuracy_folder: Path


def read_runs(folder: Path, scenarios: Iterable[Scenario]) -> list[ScenarioRuns]:
    """Read the runs of `scenarios` below `folder` (runs/<system>/<model>) and check that they belong together.

    Raises SubmissionError for a record that is missing or contradicts another, and for a log that is not the one that
    its record describes.
    """
    runs = [_scenario(folder / scenario, scenario) for scenario in scenarios]
    if not runs:
        raise SubmissionError(f"no recorded runs in {folder}", remedy="run the benchmark first")
    every = [(run.performance_folder, run.performance) for run in runs]
    every += [(run.accuracy_folder, run.accuracy) for run in runs]
    for where, record in every[1:]:
        _same(every[0], (where, record))
    return runs


def _scenario(folder: Path, scenario: Scenario) -> ScenarioRuns:
    performance = _run(folder / Mode.PERFORMANCE, scenario, Mode.PERFORMANCE)
    accuracy = _run(folder / Mode.ACCURACY, scenario, Mode.ACCURACY)
    where = folder / Mode.ACCURACY
    scores = _record(where / ACCURACY_FILE, AccuracyRecord)
    if scores.log_sha256 != accuracy.files.get(ACCURACY_LOG):
        raise SubmissionError(f"the scores in {where} are those of another log than the one beside them",
                              cause=f"{ACCURACY_FILE} names the log's sha256 {scores.log_sha256}, {RUN_FILE} names "
                              f"{accuracy.files.get(ACCURACY_LOG)}",
                              remedy="score the run again: --tags=process,mlperf,accuracy")
    if scores.notice != accuracy.notice:
        raise SubmissionError(f"{ACCURACY_FILE} and {RUN_FILE} in {where} disagree on whether this is a rehearsal",
                              remedy="score the run again: --tags=process,mlperf,accuracy")
    if not scores.notice and scores.samples != scores.samples_expected:
        raise SubmissionError(f"the accuracy run in {where} is not whole",
                              cause=f"it covers {scores.samples} of {scores.samples_expected} samples", remedy=_AGAIN)
    if not (where / "accuracy.txt").is_file():
        raise SubmissionError(f"{where / 'accuracy.txt'} is missing", remedy="score the run again")
    return ScenarioRuns(scenario, performance, accuracy, scores, folder / Mode.PERFORMANCE, where)


def _run(folder: Path, scenario: Scenario, mode: Mode) -> RunRecord:
    record = _record(folder / RUN_FILE, RunRecord)
    settings = record.settings
    if (settings.scenario, settings.mode) != (scenario, mode):
        raise SubmissionError(f"{folder} holds the record of a {settings.scenario} {settings.mode} run",
                              cause=f"its place is that of a {scenario} {mode} run", remedy=_AGAIN)
    if record.notice != (REHEARSAL_NOTICE if settings.rehearsal else ""):
        raise SubmissionError(f"{folder / RUN_FILE} contradicts itself on whether it is a rehearsal", remedy=_AGAIN)
    wanted = LOGS if mode is Mode.PERFORMANCE else (*LOGS, ACCURACY_LOG)
    for name in wanted:
        log = folder / name
        if name not in record.files or not log.is_file():
            raise SubmissionError(f"{log} is missing", remedy=_AGAIN)
        if sha256_of(log) != record.files[name]:
            raise SubmissionError(f"{log} is not the log that the run wrote",
                                  cause=f"its sha256 is not that in {RUN_FILE}", remedy=_AGAIN)
    return record


def _record(path: Path, kind: type[R]) -> R:
    try:
        return read_record(path, kind)
    except CmError as error:
        raise SubmissionError(f"no submission without {path}", cause=error.cause or error.what,
                              remedy=_AGAIN if path.name == RUN_FILE else "run it with accuracy") from error


def _same(one: tuple[Path, RunRecord], other: tuple[Path, RunRecord]) -> None:
    """Raise SubmissionError where two runs differ in what all runs of a submission share."""
    a, b = one[1].settings, other[1].settings
    for what, left, right in (
        ("rehearsal", a.rehearsal, b.rehearsal),
        ("round", a.round, b.round),
        ("benchmark", a.benchmark, b.benchmark),
        ("model", (a.model.name, a.model.sha256), (b.model.name, b.model.sha256)),
        ("dataset", (a.dataset.name, a.dataset.sha256), (b.dataset.name, b.dataset.sha256)),
        ("vLLM version", a.server.version, b.server.version),
        ("server packages", a.server.packages, b.server.packages),
        ("LoadGen version", one[1].loadgen_version, other[1].loadgen_version),
    ):
        if left != right:
            raise SubmissionError(
                f"the runs in {one[0]} and {other[0]} do not belong together",
                cause=f"they differ in their {what}: {left} and {right}",
                remedy="measure both again with one setup: --rerun",
            )

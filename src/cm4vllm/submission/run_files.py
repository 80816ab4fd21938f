"""The recorded runs that a submission tree is made of, checked before anything is made of them, and files made of each.

measurements.json says what was done to the model, as the checkers ask for it. The files of a power session are copied
byte for byte, without those only the client needs.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.checking.findings import refuse
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import bytes_of
from cm4vllm.common.progress import warn
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import SUMMARY_LOG
from cm4vllm.records.power.session import FILES, SESSION, Phase, PowerSession, reasons_unmeasured, session_beside
from cm4vllm.records.power.supplies import SUPPLIES
from cm4vllm.records.run import RunRecord
from cm4vllm.records.weights.checkpoint import weights_in_words
from cm4vllm.results import run_folders
from cm4vllm.results.checks import findings
from cm4vllm.results.model import ComplianceTest
from cm4vllm.rules import Scenario
from cm4vllm.submission.tree_writer import TreeWriter

LOGS = (DETAIL_LOG, SUMMARY_LOG)
#: The files that state the analyzer, its wiring and the settings of the system.
_STATED = ("analyzer_table.*", "power_settings.*")


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


def measurements(run: RunRecord) -> dict[str, str]:
    """Return measurements.json of one run: the checkers' five keys, none empty, and the digests behind them.

    Keys: tools/submission/submission_checker/constants.py, SYSTEM_IMP_REQUIRED_FILES. Raises SubmissionError where the
    model's record does not tell the type of its weights.
    """
    settings, model = run.settings, run.settings.model
    if not model.weight_data_types:
        raise SubmissionError(
            f"the record of the model {model.name} does not state the type of its weights",
            remedy="give the model's own folder or hub id with --vllm_model_name, so that its checkpoint can be read",
        )
    own = model.name != settings.benchmark
    return {
        "input_data_types": "int32",  # token ids, as LoadGen is handed them
        "retraining": f"not the benchmark's weights: {without_folder(model.source, model.path)}" if own else "no",
        "starting_weights_filename": (
            model.quantization.starting_weights if model.quantization else weights_in_words(model.name, model.path)
        ),
        "weight_data_types": model.weight_data_types,
        "weight_transformations": model.weight_transformations or "none",
        "model_sha256": model.sha256,
        "dataset_sha256": settings.dataset.source_sha256 or settings.dataset.sha256,
        **({"notice": run.notice} if run.notice else {}),
    }


def without_folder(source: str, path: str) -> str:
    """Return where the model comes from, without the folders of the machine."""
    return source.replace(path, Path(path).name) if path else source


def copy_power(run: Path, results: Path, settings: Path) -> None:
    """Copy the session of the run in a folder to a result's folder, and what is stated of it to that of its settings.

    Without a session nothing is done. Raises SubmissionError for one that is simulated, not whole, or of another run.
    """
    if not run.with_name(SESSION).is_dir():
        return
    if (session := session_beside(run)) is None:
        raise SubmissionError(
            f"the power session beside {run} is of another run",
            cause=f"its {DETAIL_LOG} is another one",
            remedy="measure again with --power, or remove the folder of the session",
        )
    require_analyzer(session)
    if reasons := reasons_unmeasured(session):
        raise SubmissionError(
            f"the power session in {session.folder} is not whole", cause="\n".join(reasons), remedy="measure again"
        )
    if missing := [pattern for pattern in _STATED if not list(session.folder.glob(pattern))]:
        raise SubmissionError(
            f"the power session lacks {', '.join(missing)}",
            cause="a submission with power states the analyzer, its wiring and the settings of the system",
            remedy=f"put them into {session.folder}, or measure again with --power_settings and --power_wiring",
        )
    for name in FILES:
        if name not in (f"{Phase.TESTING}/{DETAIL_LOG}", f"{Phase.TESTING}/{SUMMARY_LOG}"):  # those of the run itself
            target = results / "performance" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(session.folder / name, target)
    for path in (path for pattern in _STATED for path in session.folder.glob(pattern)):
        shutil.copyfile(path, settings / path.name)


def copy_supplies(writer: TreeWriter, run: Path, target: Path) -> None:
    """Copy the file of the system's power supplies that was stated for the session of a run; none where there is none.

    Raises SubmissionError where the tree has another one in its place.
    """
    stated = run.with_name(SESSION) / SUPPLIES
    if stated.is_file():
        writer.bytes(target, bytes_of(stated))


def require_analyzer(session: PowerSession) -> None:
    """Raise SubmissionError for a session of the simulated PTDaemon."""
    if session.simulated:
        raise SubmissionError(
            "the power was simulated, and not measured",
            cause=f"{session.simulated[0]} of the power session says so",
            remedy="start the power server with SPEC's PTDaemon and an analyzer, and measure again with --power=yes",
        )

"""The files of a power session in a submission tree, copied byte for byte, without those only the client needs."""

import shutil
from pathlib import Path

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import bytes_of
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import SUMMARY_LOG
from cm4vllm.records.power.session import FILES, SESSION, Phase, PowerSession, reasons_unmeasured, session_beside
from cm4vllm.records.power.supplies import SUPPLIES
from cm4vllm.submission.tree_writer import TreeWriter

_STATED = ("analyzer_table.*", "power_settings.*")


def copy_power(run: Path, results: Path, settings: Path) -> None:
    """Copy the session of the run in a folder to a result's folder, and what is stated of it to that of its settings.

    Without a session nothing is done. Raises SubmissionError for one that is simulated, not whole, or of another run.
    """
    if not run.with_name(SESSION).is_dir():
        return
    session = session_beside(run)
    if session is None:
        raise SubmissionError(
            f"the power session beside {run} is of another run",
            cause=f"its {DETAIL_LOG} is another one",
            remedy="measure again with --power, or remove the folder of the session",
        )
    _require_publishable(session)
    for name in FILES:
        if name not in (f"{Phase.TESTING}/{DETAIL_LOG}", f"{Phase.TESTING}/{SUMMARY_LOG}"):  # those of the run itself
            target = results / "performance" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(session.folder / name, target)
    for pattern in _STATED:
        for path in session.folder.glob(pattern):
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


def _require_publishable(session: PowerSession) -> None:
    """Raise SubmissionError for a session that is simulated or not whole."""
    require_analyzer(session)
    if reasons := reasons_unmeasured(session):
        raise SubmissionError(
            f"the power session in {session.folder} is not whole", cause="\n".join(reasons), remedy="measure again"
        )
    missing = [pattern for pattern in _STATED if not list(session.folder.glob(pattern))]
    if missing:
        raise SubmissionError(
            f"the power session lacks {', '.join(missing)}",
            cause="a submission with power states the analyzer, its wiring and the settings of the system",
            remedy=f"put them into {session.folder}, or measure again with --power_settings and --power_wiring",
        )

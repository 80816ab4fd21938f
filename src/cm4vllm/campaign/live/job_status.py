"""The ledger of a results folder and how far its job is, for people as text, and for programs as plain objects."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cm4vllm.campaign.ledger import LEDGER_FILE, Ledger, State, StepState, is_under_way, read_ledger
from cm4vllm.campaign.live.panels import view_of
from cm4vllm.campaign.live.status import read_status
from cm4vllm.campaign.live.terminal import plain_text
from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError, translated_os_errors
from cm4vllm.common.files import typed_path
from cm4vllm.common.progress import say_text, warn
from cm4vllm.common.settings import Settings
from cm4vllm.common.terminal_text import columns
from cm4vllm.rules import ExecutionMode

_HEADINGS, _NUMBERS = ("step", "state", "attempts", "at", "seconds", ""), (2, 4)
#: Characters of the last column.
_WHY = 100
_KILLED = "its command has ended without reporting it"


class StatusSettings(Settings, frozen=True, kw_only=True):
    """Whose status is shown: that of all jobs in `output_dir`, or of the one in that very folder."""

    output_dir: input_types.JobOutputDir = "mlperf-results"


def report_status(settings: StatusSettings) -> dict[str, object]:
    """Print the steps of each job in the folder, and return them as plain objects. Raises UsageError for none."""
    base = typed_path(settings.output_dir).absolute()
    folders = [folder for folder in (base, *(base / mode for mode in ExecutionMode)) if (folder / LEDGER_FILE).exists()]
    if not folders:
        raise UsageError(
            f"no results of a job in {base}",
            cause=f"no {LEDGER_FILE} in this folder, nor in its folders test and valid",
            remedy="give the folder that the job has as --output_dir, or start the command in the folder of the job",
        )
    return {"jobs": [_print_status(folder) for folder in folders]}


def _print_status(out: Path) -> dict[str, object]:
    with translated_os_errors("read", out / LEDGER_FILE, "--output_dir"):
        under_way, ledger = is_under_way(out), read_ledger(out)
    steps = ledger.of_last_run
    say_text(f"{out}: {_heading(ledger, steps, under_way=under_way)}")
    for line in columns([_HEADINGS, *(_row(state, under_way=under_way) for state in steps)], numbers=_NUMBERS):
        say_text(line)
    live = read_status(out)
    if live is not None and live[0].notices:
        say_text(f"*** {'; '.join(live[0].notices)} ***")
    if live is not None and under_way:
        say_text(f"\n{plain_text(view_of(*live))}")
    if ledger.unreadable:
        warn(f"lines of {out / LEDGER_FILE} that are not entries of this version of cm4vllm: {ledger.unreadable}")
    return {
        "folder": str(out),
        "under_way": under_way,
        "run": ledger.run,
        "unreadable_lines": ledger.unreadable,
        "status": msgspec.to_builtins(live[0]) if live is not None else None,
        "steps": [_as_object(state, under_way=under_way) for state in steps],
    }


def _heading(ledger: Ledger, steps: Sequence[StepState], *, under_way: bool) -> str:
    began, _, pid = ledger.run.partition(" ")
    done = sum(state.last.state.is_good for state in steps)
    left_out = sum(state.last.state is State.LEFT_OUT for state in steps)
    words = f"running, process {pid}, since {began}" if under_way else f"not running; the last command began {began}"
    return f"{words}; {done} of {len(steps)} steps are done" + (f", {left_out} left out" if left_out else "")


def _state(state: StepState, *, under_way: bool) -> State:
    """Return the state; a step that no process works on is aborted, whatever its last entry says."""
    return State.ABORTED if state.last.state is State.RUNNING and not under_way else state.last.state


def _row(state: StepState, *, under_way: bool) -> tuple[str, ...]:
    now, last = _state(state, under_way=under_way), state.last
    why = last.why.splitlines()[0] if last.why else _KILLED if now is not last.state else ""
    why = "; ".join(filter(None, (why, f"left in {last.left}" if last.left else "")))
    took = "" if last.took_s is None else f"{last.took_s:,.1f}"
    at = "" if now is State.PLANNED else (state.begun_at if now is State.RUNNING else last.at)
    return (last.step, str(now), str(state.attempts or ""), at, took, why if len(why) <= _WHY else f"{why[:_WHY]}…")


def _as_object(state: StepState, *, under_way: bool) -> dict[str, object]:
    last = state.last
    return {
        "step": last.step,
        "state": str(_state(state, under_way=under_way)),
        "tags": last.tags,
        "attempts": state.attempts,
        "digest": last.digest,
        "inputs": last.inputs,
        "begun_at": state.begun_at,
        "at": last.at,
        "took_s": last.took_s,
        "why": last.why,
        "left": last.left,
    }

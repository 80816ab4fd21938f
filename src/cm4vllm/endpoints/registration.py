"""Registration of a curve's points with MLCommons by the official program (`runs create`).

The program reads its token from PRISM_USER_API_TOKEN, and another address than its own from MLPERF_API_BASE_URL.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.clock import now
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.progress import say, say_text, step
from cm4vllm.common.records import Record, read_optional, write_record
from cm4vllm.common.units import size_text
from cm4vllm.endpoints.authoring import read_points
from cm4vllm.endpoints.bundle import CheckerInstallation, run_official

#: The variable that holds the token of the official program.
_HELD_BY = "PRISM_USER_API_TOKEN"
#: The record of a curve's registered points, beside them.
REGISTRATION_FILE = "registration.json"

#: The line of the program with the id of a run.
_CREATED = re.compile(r"Run created:\s*(\S+)")


class RegisteredRun(Record, frozen=True, kw_only=True):
    """A registered point: the id of its run, the identity of the point, and when it was registered."""

    run: str
    identity: str
    registered_at: str


class Registration(Record, frozen=True, kw_only=True):
    """The points of a curve that were registered for an organisation at an address, by their names."""

    organisation: str
    address: str
    runs: dict[str, RegisteredRun] = {}


def require_terminal(organisation: str, *, quiet: bool) -> None:
    """Raise UsageError where points are to be registered and nobody can be asked, but with `quiet`."""
    if organisation and not quiet and not _has_terminal():
        raise UsageError(
            "--register asks before it sends anything, and there is no terminal",
            cause="standard input or output is a file or a pipe",
            remedy="type the command on a terminal, or add --quiet, with which nothing is asked",
        )


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def require_registrable(organisation: str, *, rehearsal: bool) -> None:
    """Raise UsageError where a job may not register its points, or could not."""
    if organisation and rehearsal:
        raise UsageError(
            "--register is refused for a rehearsal",
            cause="a rehearsal is no result, and what is registered can be published",
            remedy="leave it out, or measure by the rules with --execution_mode=valid",
        )
    if organisation and not os.environ.get(_HELD_BY):
        raise UsageError(
            "--register needs the token of the organisation",
            cause=f"the official program reads it from the variable {_HELD_BY}, which is not set",
            remedy=f"export {_HELD_BY} before the command",
        )


def register_points(
    checker: CheckerInstallation, folder: Path, organisation: str, consent: Callable[[str], bool]
) -> Registration:
    """Register the points below `folder` that are not registered yet, and return the record of all of them.

    `consent` is asked once, with what is sent and where. Raises UsageError without it, SubmissionError where the points
    are of another organisation, and with the words of the official program where it fails.
    """
    points = read_points(folder)
    _require_organisation([path for path, _ in points], organisation)
    address = run_official(checker, "address").output.strip()
    known = read_optional(folder / REGISTRATION_FILE, Registration)
    if known is None or (known.organisation, known.address) != (organisation, address):
        known = Registration(organisation=organisation, address=address)
    left = {path: record.identity for path, record in points if not _is_registered(known, path, record.identity)}
    if left and not consent("\n".join(_words(known, list(left)))):
        raise UsageError("nothing was registered", cause="the question was not answered with y")
    runs = dict(known.runs)
    for path, identity in left.items():
        with step(f"registration of {path.name}"):
            made = _created(checker, path)
        runs[path.name] = RegisteredRun(run=made, identity=identity, registered_at=now())
        known = Registration(organisation=organisation, address=address, runs=runs)
        write_record(folder / REGISTRATION_FILE, known)
        say(f"registered: {path.name} as run {made}")
    return known


def confirmed(question: str) -> bool:
    """Return True if the user answers a question on the terminal with y; False without a terminal."""
    if not _has_terminal():
        return False
    say_text(question)
    try:
        answer = input("Register them? (y/N) ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _is_registered(known: Registration, path: Path, identity: str) -> bool:
    made = known.runs.get(path.name)
    return made is not None and made.identity == identity


def _require_organisation(folders: list[Path], organisation: str) -> None:
    """Raise SubmissionError where a point names another organisation as its submitter."""
    for folder in folders:
        stated = str(object_of(folder / "system_desc.json").get("submitter_org_names") or "no organisation")
        if stated != organisation:
            raise SubmissionError(
                f"{folder.name} is not registered for {organisation}",
                cause=f"its system_desc.json names {stated} as the submitter",
                remedy="give the same name with --register and --submitter",
            )


def _words(known: Registration, folders: list[Path]) -> Iterator[str]:
    """Yield the lines of the question: what is sent, and where."""
    yield f"{len(folders)} points are registered for {known.organisation} at {known.address}:"
    for folder in folders:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        size = sum(path.stat().st_size for path in files)
        yield f"  {folder}: {len(files)} files, {size_text(size)}"
    yield "Each folder is uploaded as an archive; its system, point, configuration and summary are registered with it."


def _created(checker: CheckerInstallation, folder: Path) -> str:
    """Register a run folder and return the id of its run."""
    done = run_official(checker, "create", str(folder))
    if not done.ok:
        raise SubmissionError(
            f"the official program does not register {folder.name}",
            cause=done.tail(8),
            remedy="run the same command again: it registers the points that are left",
        )
    if (made := _CREATED.search(done.output)) is None:
        raise SubmissionError(
            f"{folder.name} may be registered, or not",
            cause=f"the official program ended well and prints no id of a run: {done.tail(8)}",
            remedy="its command `runs list` shows the registered runs",
        )
    return made[1]

"""ledger.jsonl: what became of each step of a job, over all commands that worked in a results folder.

Each line is one change of one step's state. Lines are appended, each with one write, and synced: a command that is
killed leaves at most a torn last line, which the next command sets aside. Reading needs no lock. Paths below the
results folder are stored relative to it, so that in a copy of the folder they name what is in the copy.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from cm4vllm.campaign.planning.steps import Duration, ResultFolders, Step
from cm4vllm.common.clock import now
from cm4vllm.common.errors import DiskFull, NotWritable, UsageError, translated_os_errors
from cm4vllm.common.files import bytes_of, open_file, sync_folder
from cm4vllm.common.folders.plain_files import opened_in_place
from cm4vllm.common.records import Record
from cm4vllm.common.secrets.redaction import vault

#: The ledger, in the folder of a job's results.
LEDGER_FILE = "ledger.jsonl"
#: The file that keeps a second run out of a results folder.
LOCK_FILE = ".lock"
#: The folder beside the ledger for what failed and aborted attempts left. No result is read from it.
ATTEMPTS = "attempts"

_SCHEMA = "schema"
#: Of the schema before, which differs in one thing: its paths are whole.
_WHOLE_PATHS = 1


class State(StrEnum):
    """The outcome of a step."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    KEPT = "kept"
    LEFT_OUT = "left out"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def is_good(self) -> bool:
        """Return True if the step's result exists."""
        return self in (State.DONE, State.KEPT)


class Entry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a step's state.

    `run` names the command that made it, by when it began and its process; `at` is when, in UTC. `digest` is that of
    the step's inputs, `inputs` those of the schedule with all values filled in; in the ledger, paths in the results
    folder are relative to it. `attempt` counts how often the step has been begun in this folder, 0 where it was not.
    `why` says why it failed, was aborted, was left out or redone, or how its result was recognised; `left` is the
    folder with what a failed or aborted attempt left.
    """

    SCHEMA: ClassVar[int] = 2

    run: str
    at: str
    step: str
    state: State
    tags: str = ""
    digest: str = ""
    inputs: dict[str, str] = {}
    attempt: int = 0
    took_s: float | None = None
    why: str = ""
    left: str = ""

    @property
    def folder(self) -> Path | None:
        """The folder of the step's result, None where it has none."""
        return ResultFolders.of(self.inputs).folder


@dataclass(frozen=True)
class StepState:
    """A step as its entries leave it: the last one, and what those before say.

    `begun_at` is when the last attempt began. `digest` and `took_s` are those of the last time that it was done, `good`
    whether there was one.
    """

    last: Entry
    attempts: int = 0
    begun_at: str = ""
    good: bool = False
    digest: str = ""
    took_s: float | None = None
    done_at: str = ""

    def after(self, entry: Entry) -> StepState:
        """Return the state once `entry` is known, too."""
        done = entry if entry.state is State.DONE else None
        return StepState(
            last=replace(entry, inputs=entry.inputs or self.last.inputs, tags=entry.tags or self.last.tags),
            attempts=max(self.attempts, entry.attempt),
            begun_at=entry.at if entry.state is State.RUNNING else self.begun_at,
            good=self.good or entry.state.is_good,
            digest=entry.digest if entry.state.is_good else self.digest,
            took_s=done.took_s if done else self.took_s,
            done_at=done.at if done else self.done_at,
        )


@dataclass(frozen=True)
class Ledger:
    """All steps by name, those of the last command in the order of its schedule.

    `run` is the last command, `unreadable` the number of lines that are not entries.
    """

    states: Mapping[str, StepState] = field(default_factory=dict)
    run: str = ""
    unreadable: int = 0

    @property
    def of_last_run(self) -> list[StepState]:
        return [state for state in self.states.values() if state.last.run == self.run]

    def attempts(self, step: str) -> int:
        return self.states[step].attempts if step in self.states else 0

    def digest(self, step: str) -> str:
        """Return the digest of the inputs with which a step was last done or kept, empty where it never was."""
        return self.states[step].digest if step in self.states else ""

    def with_durations(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        """Return the steps of a job with how long they took before, where the schedule does not say it.

        From the first on that has other tags now, as the model where another is asked for, nothing is known.
        """
        known, is_known = [], True
        for step in steps:
            before = self.states.get(step.name)
            is_known = is_known and (before is None or before.last.tags == step.tags)
            if is_known and before and before.took_s is not None:
                took = Duration(seconds=before.took_s, source=f"as on {before.done_at[:10]}")
                known.append(replace(step, duration=step.duration or took))
            else:
                known.append(step)
        return tuple(known)


def read_ledger(out: Path) -> Ledger:
    """Read the ledger of a results folder; an empty one where there is none. Raises OSError where it cannot be read.

    A last line without its end is not counted: it may be in the making.
    """
    states: dict[str, StepState] = {}
    run, unreadable = "", 0
    for line in _whole_lines(out / LEDGER_FILE):
        entry = _entry(line, out)
        if entry is None:
            unreadable += 1
            continue
        run = entry.run
        _take(states, entry)
    return Ledger(states, run, unreadable)


def _take(states: dict[str, StepState], entry: Entry) -> None:
    before = states.get(entry.step, StepState(entry))
    if entry.state is State.PLANNED:
        states.pop(entry.step, None)  # to stand in the order of the present schedule
    states[entry.step] = before.after(entry)


def is_under_way(out: Path) -> bool:
    """Return True if a command works in a results folder at this moment."""
    try:
        with open_file(out / LOCK_FILE) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class LedgerFile:
    """The ledger of a results folder, open for appending by the one command that holds the folder's lock."""

    def __init__(self, out: Path, run: str) -> None:
        self.out = out
        self._path = out / LEDGER_FILE
        self._run = run
        with translated_os_errors("read", self._path, "--output_dir"):
            self.torn = self._set_aside_torn_line()
            self.ledger = read_ledger(out)

    def enter(self, step: str, state: State, **fields: Any) -> None:
        """Append the entry of one change, of the present time. Raises DiskFull, NotWritable; then nothing is added."""
        self.append([Entry(run="", at=now(), step=step, state=state, **fields)])

    def append(self, entries: Iterable[Entry]) -> None:
        """Append entries in one write, and sync. Raises DiskFull, NotWritable; nothing is appended then."""
        made = [replace(entry, run=self._run, inputs=_relative(entry.inputs, self.out)) for entry in entries]
        data = b"".join(_line(entry) for entry in made)
        with translated_os_errors("write", self._path, "--output_dir"):
            new = not self._path.exists()
            handle = opened_in_place(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                self._write(handle, data)
            finally:
                os.close(handle)
            if new:
                sync_folder(self.out)
        states = dict(self.ledger.states)
        for entry in made:
            _take(states, entry)
        self.ledger = Ledger(states, self._run, self.ledger.unreadable)

    def _write(self, handle: int, data: bytes) -> None:
        size = os.fstat(handle).st_size
        try:
            written = os.write(handle, data)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
        if written < len(data):
            os.ftruncate(handle, size)
            raise DiskFull(
                f"cannot write {self._path}",
                cause=f"only {written} of {len(data)} bytes were written",
                remedy="free space there, or choose another folder with --output_dir",
            )

    def _set_aside_torn_line(self) -> Path | None:
        """Move a last line without its end to a file among the attempts, and return it."""
        try:
            data = bytes_of(self._path)
        except FileNotFoundError:
            return None
        whole = data.rfind(b"\n") + 1
        if whole == len(data):
            return None
        torn = free_name(self.out / ATTEMPTS, "torn-line-of-ledger")
        handle = opened_in_place(self._path, os.O_WRONLY)
        try:
            torn.parent.mkdir(exist_ok=True)
            with torn.open("xb") as file:
                file.write(data[whole:])
            os.ftruncate(handle, whole)
        finally:
            os.close(handle)
        return torn


def free_name(folder: Path, name: str) -> Path:
    """Return the first of folder/name-1, folder/name-2, … that does not exist."""
    number = 1
    while os.path.lexists(path := folder / f"{name}-{number}"):
        number += 1
    return path


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        data = bytes_of(path)
    except FileNotFoundError:
        return
    yield from data[: data.rfind(b"\n") + 1].splitlines()


def _line(entry: Entry) -> bytes:
    fields = {_SCHEMA: Entry.SCHEMA, **msgspec.to_builtins(entry)}
    return msgspec.json.encode(vault().cleaned(fields, by_name=False)) + b"\n"


def _entry(line: bytes, out: Path) -> Entry | None:
    """Return the entry of a line; None for a line without one, or of a version that cannot be read."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        schema = fields.pop(_SCHEMA, None)
        if schema not in (Entry.SCHEMA, _WHOLE_PATHS):
            return None
        entry = msgspec.convert(fields, Entry)
    except (ValueError, RecursionError):
        return None
    return replace(entry, inputs=_relative(entry.inputs, out)) if schema == _WHOLE_PATHS else entry


def _relative(inputs: Mapping[str, str], out: Path) -> dict[str, str]:
    """Return inputs with the paths in the results folder relative to it; others, as of a model, stay as they are."""
    base = str(out)
    return {
        key: os.path.relpath(value, base) if value == base or value.startswith(f"{base}{os.sep}") else value
        for key, value in inputs.items()
    }


def require_unlocked(lock: Path, folder: Path) -> None:
    """Refuse a folder whose lock another command holds. Writes nothing. Raises UsageError, NotWritable."""
    try:
        with open_file(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError as error:
        raise UsageError(
            f"another run is writing its results to {folder}", remedy="wait for it, or choose another --output_dir"
        ) from error
    except OSError as error:
        raise NotWritable(
            f"cannot write to {folder}",
            cause=f"{lock.name} there: {error.strerror}",
            remedy="choose another --output_dir",
        ) from error


@contextmanager
def only_one(lock: Path, folder: Path) -> Iterator[None]:
    """Keep a second command out of `folder` while this one lasts. Raises UsageError."""
    with translated_os_errors("lock", lock, "--output_dir"):
        file = os.fdopen(opened_in_place(lock, os.O_RDWR | os.O_CREAT), "rb")
    with file:
        for left in range(3, -1, -1):  # a plan holds the lock for a moment, to see whether a run has it
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    require_unlocked(lock, folder)
                    raise
                time.sleep(0.1)
        yield

"""The answers of an accuracy run, kept as they come, so that a run that was stopped goes on where it was.

They lie in a file beside the run's folder until the run is whole. Each piece, which is what one LoadGen process got
from the server, begins with a line that names the digest of the run's settings; one line for each answer follows, with
its own digest. LoadGen runs over the whole dataset again after a stop: it is given what is kept, and the server is
asked for the rest. The process that runs LoadGen writes each answer before LoadGen hears of it, and syncs what it has
written every SYNC_S seconds, in a thread of its own: a process that is killed loses nothing, a machine that loses its
power what came after the last sync.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from cm4vllm.common.clock import now
from cm4vllm.common.errors import translated_os_errors
from cm4vllm.common.files import mapped, sync_folder
from cm4vllm.common.folders.owned_folders import make_way
from cm4vllm.common.folders.ownership_notes import path_beside
from cm4vllm.common.folders.plain_files import opened_in_place
from cm4vllm.common.repetition import repeated
from cm4vllm.records.run import Piece
from cm4vllm.records.server import ServerIdentity
from cm4vllm.serving.probing.server_identities import other_content, restarts

#: Seconds between two syncs of the answers that came.
SYNC_S = 2.0


@dataclass(frozen=True)
class Answer:
    """One whole answer: the bytes that LoadGen logs, its number of tokens, and whether it has the greatest length."""

    data: bytes
    tokens: int
    at_length: bool


class _Begin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a piece: the digest of the run's settings, and when the piece began, in UTC.

    `servers` is what servers at --api_server reported of themselves when it began.
    """

    settings: str
    began: str
    servers: dict[str, ServerIdentity] = {}


@dataclass(frozen=True)
class Begun:
    """A piece that has begun: how many answers are `kept` from before, and of which servers `restarted` they are.

    `dropped` says why answers that were kept are removed; empty where there were none, or they still count.
    """

    kept: int
    dropped: str = ""
    restarted: tuple[str, ...] = ()


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer: its sample, `s` seconds after the first query of its piece, its data as hexadecimal, and a digest."""

    sample: int
    s: float
    at_length: bool
    tokens: int
    data: str
    digest: str

    @property
    def answer(self) -> Answer:
        """The answer itself. Raises ValueError."""
        return Answer(bytes.fromhex(self.data), self.tokens, self.at_length)


def file_of(folder: Path) -> Path:
    """Return the file with the answers of the run whose folder this is."""
    return path_beside(folder, ".answers")


def begin_piece(
    path: Path,
    settings_sha256: str,
    servers: Mapping[str, ServerIdentity] | None = None,
    *,
    accept_restarted: bool = False,
) -> Begun:
    """Begin a piece of a run; answers of other settings or of other servers are removed.

    `servers` is what servers at --api_server report of themselves now. Answers of one that was started again since are
    removed too, unless `accept_restarted`. Raises DiskFull, NotWritable.
    """
    present = dict(servers or {})
    with translated_os_errors("write", path):
        whole = _whole_bytes(path)
        begun = [begin for begin in map(_begin, whole.splitlines()) if begin is not None]
        reported = [*(begin.servers for begin in begun), present]
        again = [words for before, other in pairwise(reported) for words in restarts(before, other)]
        dropped = ""
        if not begun:
            make_way(path)
        elif begun[0].settings != settings_sha256:
            dropped = "; ".join(other_content(begun[-1].servers, present)) or "the settings of the run have changed"
        elif again and not accept_restarted:
            dropped = f"{'; '.join(again)} (--accept_restarted_server keeps the earlier answers)"
        if dropped:
            dropped = dropped if kept_answers(path) else ""
            again, whole = [], b""
            path.unlink()
        with os.fdopen(opened_in_place(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            file.truncate(len(whole))  # without what is torn at its end
            file.write(msgspec.json.encode(_Begin(settings_sha256, now(), present)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    return Begun(len(kept_answers(path)), dropped, tuple(again))


def remove_answers(path: Path) -> None:
    """Remove the file with the answers of a run; a file that no run has begun stays. Raises OSError."""
    if any(map(_begin, _whole_bytes(path).splitlines()[:1])):
        path.unlink()


def kept_answers(path: Path) -> dict[int, Answer]:
    """Return the answers that are kept, by the index of their sample. Raises OSError."""
    answers: dict[int, Answer] = {}
    for line in _whole_bytes(path).splitlines():
        if (answer := _answer(line)) is not None:
            answers.setdefault(answer.sample, answer.answer)
    return answers


def pieces(path: Path) -> list[Piece]:
    """Return the pieces that gave answers, in their order. A repeated answer counts once. Raises OSError."""
    samples = set[int]()
    parts: list[tuple[_Begin, list[tuple[bytes, float]]]] = []
    for line in _whole_bytes(path).splitlines():
        if (begin := _begin(line)) is not None:
            parts.append((begin, []))
        elif (answer := _answer(line)) is not None and answer.sample not in samples:
            samples.add(answer.sample)
            parts[-1][1].append((line, answer.s))
    return [
        Piece(
            began_at=begin.began,
            answers=len(lines),
            duration_s=lines[-1][1],
            sha256=hashlib.sha256(b"\n".join(line for line, _ in lines)).hexdigest(),
        )
        for begin, lines in parts
        if lines
    ]


class AnswerWriter:
    """Appends answers to the present piece: each batch with one write, so that a killed process loses none of it.

    `synced` is the size of the file's part that a power failure leaves. A disk that fails to sync is reported by the
    next write.
    """

    def __init__(self, path: Path) -> None:
        """Open the file of kept answers for appending. Raises CmError where it cannot be written."""
        self._path = path
        self._begin = time.monotonic()
        with translated_os_errors("write", path):
            self._handle = opened_in_place(path, os.O_WRONLY | os.O_APPEND)
        self.synced = self._written = os.fstat(self._handle).st_size
        self._failure: OSError | None = None
        self._syncing = ExitStack()
        self._syncing.enter_context(repeated(self._sync, SYNC_S, "sync"))

    def begin(self) -> None:
        """Count the seconds from now on."""
        self._begin = time.monotonic()

    def write(self, answers: Iterable[tuple[int, Answer]]) -> None:
        """Append answers, each with its sample. Raises DiskFull, NotWritable."""
        s = round(time.monotonic() - self._begin, 3)
        data = b"".join(
            msgspec.json.encode(
                _Line(
                    sample=sample,
                    s=s,
                    at_length=answer.at_length,
                    tokens=answer.tokens,
                    data=answer.data.hex(),
                    digest=_digest(sample, answer),
                )
            )
            + b"\n"
            for sample, answer in answers
        )
        with translated_os_errors("write", self._path):
            if self._failure is not None:
                raise self._failure
            while data:
                count = os.write(self._handle, data)
                self._written, data = self._written + count, data[count:]

    def close(self) -> None:
        """Sync what is left. Raises DiskFull, NotWritable."""
        self._syncing.close()
        self._sync()
        os.close(self._handle)
        if self._failure is not None:
            with translated_os_errors("write", self._path):
                raise self._failure

    def _sync(self) -> None:
        """Write to disk what was appended since the last time; keep an error for the end."""
        if (written := self._written) > self.synced and self._failure is None:
            try:
                os.fdatasync(self._handle)
                self.synced = written
            except OSError as error:
                self._failure = error


def _whole_bytes(path: Path) -> bytes:
    """Return the file's whole lines; none where it does not exist, or does not begin as it must."""
    try:
        with mapped(path) as kept:
            data = kept[: kept.rfind(b"\n") + 1]
    except FileNotFoundError:
        return b""
    return data if _begin(data.partition(b"\n")[0]) is not None else b""


def _begin(line: bytes) -> _Begin | None:
    try:
        return msgspec.json.decode(line, type=_Begin)
    except (ValueError, RecursionError):
        return None


def _answer(line: bytes) -> _Line | None:
    """Return the answer of a line; None for a line without one, or with another digest."""
    try:
        answer = msgspec.json.decode(line, type=_Line)
        return answer if answer.digest == _digest(answer.sample, answer.answer) else None
    except (ValueError, RecursionError):
        return None


def _digest(sample: int, answer: Answer) -> str:
    return hashlib.sha256(b"%d %d %d %b" % (sample, answer.at_length, answer.tokens, answer.data)).hexdigest()[:16]

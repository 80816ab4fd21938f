"""The entries of LoadGen's accuracy log, and in the run of a compliance test the first tokens that were reported."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from cm4vllm.common.errors import RunFailed
from cm4vllm.common.files import mapped

T = TypeVar("T")
_INT_BYTES = 4


class AccuracyEntry(msgspec.Struct, frozen=True):
    """One entry of mlperf_log_accuracy.json. `data` holds the tokens' bytes in hexadecimal."""

    qsl_idx: int
    data: str
    seq_id: int = 0
    token_data: str = ""
    token_count: int | None = None


@dataclass(frozen=True)
class LoggedAnswer:
    """One answer: its tokens, those reported when the first one came (none in Offline), and the number reported.

    `sample` is the index in the dataset. `damaged` says that the data is no whole number of 32-bit tokens.
    """

    sample: int
    tokens: tuple[int, ...]
    first: tuple[int, ...]
    reported: int
    damaged: bool = False


def read_answers(path: Path) -> list[LoggedAnswer]:
    """Read a whole mlperf_log_accuracy.json of 32-bit tokens. Raises RunFailed for any other file."""
    return entries_of(path, _answer)


def logged_data(path: Path) -> list[tuple[int, bytes]]:
    """Return sample and bytes of each answer in mlperf_log_accuracy.json. Raises RunFailed for any other file."""
    return entries_of(path, lambda entry: (entry.qsl_idx, bytes.fromhex(entry.data)))


def entries_of(path: Path, made: Callable[[AccuracyEntry], T]) -> list[T]:
    """Return what `made` gives for each entry of an accuracy log. Raises RunFailed for one that is not whole."""
    try:
        with mapped(path) as log:
            return [made(entry) for entry in msgspec.json.decode(log, type=list[AccuracyEntry])]
    except OSError as error:
        raise RunFailed(f"cannot read the accuracy log {path}", cause=str(error.strerror)) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RunFailed(
            f"{path} is not a whole accuracy log",
            cause=str(error),
            remedy="score it before it is truncated, or make the run again",
        ) from error


def _answer(entry: AccuracyEntry) -> LoggedAnswer:
    """Return an entry as tokens; `damaged` where its bytes are no whole number of tokens."""
    data, first = bytes.fromhex(entry.data), bytes.fromhex(entry.token_data)
    return LoggedAnswer(
        sample=entry.qsl_idx,
        tokens=_tokens(data),
        first=_tokens(first),
        reported=entry.token_count or 0,
        damaged=bool(len(data) % _INT_BYTES or len(first) % _INT_BYTES),
    )


def _tokens(data: bytes) -> tuple[int, ...]:
    whole = len(data) - len(data) % _INT_BYTES
    return tuple(memoryview(data[:whole]).cast("i"))

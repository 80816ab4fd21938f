"""mlperf_log_detail.txt: the entries of exactly one LoadGen run, and its errors, each value read with its type.

The format is that of loadgen/logging.cc: a line an entry, `:::MLLOG ` before an object of JSON with key, value and
metadata. LoadGen writes NaN and Infinity where a figure has no value, which JSON has not.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cm4vllm.common.errors import RunFailed
from cm4vllm.common.files import open_file

DETAIL_LOG = "mlperf_log_detail.txt"

T = TypeVar("T")

_PREFIX = b":::MLLOG "
#: Keys that a run logs at most once: a second entry is that of a second run, appended.
_ONCE = ("loadgen_version", "test_datetime", "requested_", "effective_", "result_", "early_stopping_", "num_errors")
#: Keys that it may log again, for each part of a dataset that does not fit into memory: the last entry counts.
_KEPT = ("generated_", "power_", "qsl_reported_", "qsl_name", "sut_name", "loadgen_build_date_utc")
#: Since this version a performance log ends with num_errors (mlcommons/inference fd021be1, in 5.0.15).
_COUNTS_ERRORS = (5, 0, 16)
_READ = _ONCE + _KEPT
_UNDEFINED = ("nan", "inf", "-inf")
#: LoadGen's largest whole number, that of a seed, is less than this.
_COUNT_END = 2**64
#: An entry that is logged before the clock started has a negative time, which LoadGen writes near 2**64 ns; in ms.
_TIME_END = 2**63 / 1e6
#: The rest of an entry whose beginning is lost.
_IN_ENTRIES = (b"MLLOG", b'"key"', b'"metadata"', b"\0")
_AGAIN = "remove the run's folder and run it again"
#: LoadGen writes no longer line: one with the indices of all samples of a large dataset has a few MB.
_LONGEST_LINE = 64 * 2**20
#: A log has a MB and more.
_BUFFER = 2**17
#: Of more errors or warnings only the number is kept.
KEPT_TEXTS = 1000
_TIME = "%m-%d-%Y %H:%M:%S.%f"


class _Metadata(msgspec.Struct, frozen=True):
    is_error: bool
    is_warning: bool = False
    pid: int | None = None


class _Entry(msgspec.Struct, frozen=True):
    key: str
    value: msgspec.Raw
    metadata: _Metadata
    time_ms: float | None = None


_DECODER = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True)
class Window:
    """The measured window of a run in UTC: power_begin and power_end of LoadGen's log."""

    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """Return the length of the window, in s."""
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True)
class DetailLog:
    """The entries of one log by key, and the texts of its errors and warnings in the order of the log.

    `values` has the settings and the results of the run, `times_ms` when each was logged, in ms since LoadGen started;
    `unordered` is the first of them that is older than the one before it. `errors` and `warnings` hold the first
    thousand texts each, `error_entries` counts all errors. The functions give one of them with its type, and raise
    RunFailed where the log has none or one of another type; those that end in _or_none return None where it has none.
    """

    path: Path
    values: Mapping[str, Any]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    error_entries: int = 0
    times_ms: Mapping[str, float] = field(default_factory=dict)
    unordered: str = ""

    def text(self, key: str) -> str:
        """Return the text of a key. Raises RunFailed if the key is missing or has no text."""
        return self._value_of_type(key, str, "a text")

    def flag(self, key: str) -> bool:
        """Return the boolean of a key. Raises RunFailed if the key is missing or has none."""
        return self._value_of_type(key, bool, "true or false")

    def count(self, key: str) -> int:
        """Return a whole number of 64 bits that is not negative."""
        value = self._value_of_type(key, int, "a whole number of 64 bits")
        if isinstance(value, bool) or not 0 <= value < _COUNT_END:
            raise self._refusal(key, value, "a whole number of 64 bits")
        return value

    def number(self, key: str) -> float:
        """Return a finite number that is not negative."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refusal(key, value, "a number")
        if not 0 <= value <= sys.float_info.max:
            raise self._refusal(key, value, "a finite number")
        return float(value)

    def is_negative(self, key: str) -> bool:
        """Return True if the log has a negative number for `key`."""
        value = self.values.get(key)
        return isinstance(value, int | float) and value < 0

    def text_or_none(self, key: str) -> str | None:
        """Return the text of a key, None where the log has no such key."""
        return self.text(key) if key in self.values else None

    def count_or_none(self, key: str) -> int | None:
        """Return the whole number of a key, None where the log has no such key."""
        return self.count(key) if key in self.values else None

    def is_defined(self, key: str) -> bool:
        """Return True if the log has a value for `key`: LoadGen writes NaN or Infinity where it cannot compute one."""
        return key in self.values and self.values[key] not in _UNDEFINED

    def is_undefined(self, key: str) -> bool:
        """Return True if LoadGen computed no value for a key that it logged."""
        return key in self.values and self.values[key] in _UNDEFINED

    @property
    def error_count(self) -> int:
        """The number of errors: LoadGen's own count, or that of the entries where there are more."""
        return max(self.count_or_none("num_errors") or 0, self.error_entries)

    @property
    def window(self) -> Window | None:
        """The measured window; None where the log does not state it."""
        begin, end = (time_of(self.values.get(name)) for name in ("power_begin", "power_end"))
        return None if begin is None or end is None else Window(begin, end)

    def require_end(self, key: str) -> None:
        """Raise RunFailed unless the log goes on to `key`, and to the number of errors where its version logs one."""
        wanted = [key, *(["num_errors"] if key.startswith("result_") and self.counts_errors else [])]
        if missing := [name for name in wanted if name not in self.values]:
            raise RunFailed(f"{self.path} is not whole", cause=f"it ends before {missing[0]}", remedy=_AGAIN)

    @property
    def counts_errors(self) -> bool:
        """Return True where the log of a performance run that ended has the number of errors as its last entry."""
        words = self.text("loadgen_version").partition(" ")[0].split(".")
        version = (int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 10)
        return tuple(version) >= _COUNTS_ERRORS

    def _value_of_type(self, key: str, kind: type[T], wanted: str) -> T:
        value = self._value(key)
        if not isinstance(value, kind):
            raise self._refusal(key, value, wanted)
        return value

    def _value(self, key: str) -> Any:
        """Return the value of a key. Raises RunFailed if the log has no such key."""
        if key not in self.values:
            raise RunFailed(
                f"{self.path} is not the log of a performance run that ended", cause=f"it has no {key}", remedy=_AGAIN
            )
        return self.values[key]

    def _refusal(self, key: str, value: object, wanted: str) -> RunFailed:
        """Return the error for a key whose value is not what is `wanted`."""
        return RunFailed(
            f"{self.path} is not a LoadGen log",
            cause=f"its {key} is {_first_characters(value)}, not {wanted}",
            remedy=_AGAIN,
        )


def time_of(text: object) -> datetime | None:
    """Return a time, in UTC, as LoadGen and PTDaemon write it; None for another text."""
    stamp = str(text)
    try:
        # As nearly all are: an hour of samples has thousands, and strptime takes ten times as long.
        if len(stamp) == 23 and stamp[2] == "-" and stamp[10] == " " and stamp[19] == "." and stamp[20:].isdecimal():
            return datetime.fromisoformat(f"{stamp[6:10]}-{stamp[:5]} {stamp[11:]}+00:00")
        return datetime.strptime(stamp, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def read_detail_log(path: Path) -> DetailLog:
    """Read a detail log of any size, line by line.

    Raises RunFailed when it is missing, cut, or not the log of exactly one run.
    """
    values: dict[str, Any] = {}
    errors: list[str] = []
    warnings: list[str] = []
    times: dict[str, float] = {}
    pids: set[int] = set()
    failed, last, unordered = 0, 0.0, ""
    for entry in _entries(path):
        if entry.metadata.pid is not None:
            pids.add(entry.metadata.pid)
        if len(pids) > 1:
            raise _two_runs(path, "its entries are those of two processes")
        if entry.key in values and entry.key.startswith(_ONCE):
            raise _two_runs(path, f"{entry.key} is logged a second time")
        if entry.key.startswith(_READ):
            values[entry.key] = _decode(path, entry)
            if entry.time_ms is not None and 0 <= entry.time_ms < _TIME_END:
                unordered = unordered or (entry.key if entry.time_ms < last else "")
                times[entry.key] = last = entry.time_ms
        is_error = entry.metadata.is_error or entry.key.startswith("error_")
        failed += is_error
        texts = errors if is_error else warnings
        if (is_error or entry.metadata.is_warning) and len(texts) < KEPT_TEXTS:
            texts.append(str(_decode(path, entry)))
    return DetailLog(path, values, tuple(errors), tuple(warnings), failed, times, unordered)


def _entries(path: Path) -> Iterator[_Entry]:
    """Yield the entries of a log in their order. Raises RunFailed for a damaged line."""
    try:
        with open_file(path, buffer=_BUFFER) as file:
            for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE), b""), 1):
                if len(line) == _LONGEST_LINE:
                    raise _not_whole(path, f"line {number} has more than {_LONGEST_LINE // 2**20} MB")
                if line.startswith(_PREFIX):
                    yield _entry(path, number, line[len(_PREFIX) :])
                elif _is_damaged(line):
                    raise _not_whole(path, f"line {number} is a part of an entry")
    except OSError as error:
        raise RunFailed(f"cannot read LoadGen's log {path}", cause=str(error.strerror)) from error


def _is_damaged(line: bytes) -> bool:
    """Return True if a line without the prefix is part of a damaged entry: its beginning or its rest.

    Zeros are what a file system gives for a part that was never written, or was truncated by a second writer.
    """
    text = line.strip()
    begun = bool(text) and _PREFIX.startswith(text)
    return begun or text.endswith(b"}") or any(sign in line for sign in _IN_ENTRIES)


def _entry(path: Path, number: int, text: bytes) -> _Entry:
    """Return the entry of one line, also with NaN and Infinity, which JSON does not have. Raises RunFailed."""
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if not any(word in text for word in (b"NaN", b"Infinity")):
            raise _not_whole(path, f"line {number}: {error}") from error
    try:  # msgspec takes JSON alone
        entry = json.loads(text)
        return msgspec.convert(
            {**entry, "value": msgspec.Raw(msgspec.json.encode(_finite_or_undefined(entry["value"])))}, _Entry
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_whole(path, f"line {number}: {error}") from error


def _finite_or_undefined(value: object) -> object:
    """Return one of _UNDEFINED for a float that JSON has not, so that whoever reads it as a number meets a text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _decode(path: Path, entry: _Entry) -> Any:
    try:
        return msgspec.json.decode(entry.value)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _not_whole(path, f"the value of {_first_characters(entry.key)}: {error}") from error


def _two_runs(path: Path, cause: str) -> RunFailed:
    return RunFailed(f"{path} holds more than the log of one run", cause=cause, remedy=_AGAIN)


def _not_whole(path: Path, cause: str) -> RunFailed:
    return RunFailed(f"{path} is not a whole log", cause=cause, remedy=_AGAIN)


def _first_characters(value: object) -> str:
    """Return the beginning of a value as text for a message, at most 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of too many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Records: typed files that one room writes and the next reads."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_bytes
from cm4vllm.common.redaction import vault

__all__ = ["Record", "now", "read_record", "write_record"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all records: immutable, made with keywords, and read back strictly."""


R = TypeVar("R", bound=Record)


def write_record(path: Path, record: Record) -> None:
    """Write `record` to `path` as indented JSON, whole or not at all; no secret of the run under way is in it."""
    clean = vault().cleaned(msgspec.to_builtins(record), by_name=False)
    write_bytes(path, msgspec.json.format(msgspec.json.encode(clean), indent=2) + b"\n")


def read_record(path: Path, cls: type[R]) -> R:
    """Read a record of type `cls`. Raises CmError when the file is missing or is not such a record."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=cls)
    except OSError as error:
        raise CmError(f"cannot read the {cls.__name__} {path}", cause=str(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        raise CmError(f"{path} is not a {cls.__name__}", cause=str(error),
                      remedy="remove it and let the step that writes it run again") from error


def now() -> str:
    """Return the present time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")

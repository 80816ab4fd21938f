"""Records: typed files that one package writes and the next reads.

A file names the schema of its record. A record of another schema is not read, even where its fields would fit: they may
mean something else. What was written before records named their schema is read where it fits.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec

from cm4vllm.common.bounded_documents import lines_of, object_of, read_object
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_bytes
from cm4vllm.common.folders.owned_folders import make_way
from cm4vllm.common.folders.ownership_notes import note_files
from cm4vllm.common.secrets.redaction import vault

_SCHEMA = "schema"


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all records: immutable, made with keywords, and read back strictly.

    `SCHEMA` is raised when a field is removed, gets another type or meaning, or is added without a default
    (tests/common/test_records.py compares the fields with those of the stored schema).
    """

    SCHEMA: ClassVar[int] = 1


R = TypeVar("R", bound=Record)


class OtherSchema(CmError):
    """A file holds a record of another schema: an older or newer cm4vllm wrote it."""


def write_record(path: Path, record: Record) -> None:
    """Write `record` with its schema to `path` as indented JSON, whole or not at all.

    No secret of the run under way is in it. What is there and is no such record is moved to a new name, which is said.
    A record that is added to a result is noted with it.
    """
    _make_way(path, type(record))
    clean = vault().cleaned({_SCHEMA: record.SCHEMA, **msgspec.to_builtins(record)}, by_name=False)
    write_bytes(path, msgspec.json.format(msgspec.json.encode(clean), indent=2) + b"\n")
    note_files(path.parent, [path.name])


def remove_record(path: Path, cls: type[Record]) -> None:
    """Remove a record of type `cls`, of whatever version; any other file is moved to a new name, which is said."""
    _make_way(path, cls)
    path.unlink(missing_ok=True)


def holds_record(path: Path, cls: type[Record]) -> bool:
    """Return True if a file is a record of type `cls`. Versions differ in a few fields, other files in most."""
    there = object_of(path).keys() - {_SCHEMA}
    return 2 * len(there & set(cls.__struct_encode_fields__)) > len(there)


def _make_way(path: Path, cls: type[Record]) -> None:
    """Move what is no record of type `cls` to a new name."""
    if os.path.lexists(path) and not holds_record(path, cls):
        make_way(path)


def read_record(path: Path, cls: type[R]) -> R:
    """Read a record of type `cls`.

    Raises OtherSchema when another version of cm4vllm wrote it, CmError when the file is missing or is no such record.
    """
    try:
        fields = read_object(path)
    except OSError as error:
        raise CmError(f"cannot read the {cls.__name__} {path}", cause=str(error.strerror)) from error
    except ValueError as error:
        raise _unreadable(path, cls, str(error)) from error
    schema = fields.pop(_SCHEMA, None)
    if schema not in (None, cls.SCHEMA):
        raise OtherSchema(
            f"{path} is a {cls.__name__} of another version of cm4vllm",
            cause=f"its schema is {schema}, this version reads {cls.SCHEMA}",
            remedy=_AGAIN,
        )
    try:
        return msgspec.convert(fields, cls, str_keys=True)
    except (ValueError, RecursionError) as error:
        if schema is None:
            raise OtherSchema(
                f"{path} is not a {cls.__name__} of this version of cm4vllm",
                cause=f"it names no schema (older versions did not), and {error}",
                remedy=_AGAIN,
            ) from error
        raise _unreadable(path, cls, str(error)) from error


def read_optional(path: Path, cls: type[R]) -> R | None:
    """Read a record of type `cls`, None where there is no file. Raises what read_record raises of one that is there."""
    return read_record(path, cls) if path.exists() else None


_AGAIN = "read it with the version that wrote it; or remove it and let the step that writes it run again"


def _unreadable(path: Path, cls: type[Record], cause: str) -> CmError:
    return CmError(
        f"{path} is not a {cls.__name__}", cause=cause, remedy="remove it and let the step that writes it run again"
    )


def write_sample_file(path: Path, samples: Sequence[Record]) -> None:
    """Write the samples that are taken through a run to `path`: one JSON object a line, oldest first.

    A full disk is no error here: what the run itself writes reports it.
    """
    with contextlib.suppress(CmError):
        write_bytes(path, msgspec.json.Encoder().encode_lines(samples))


def read_sample_file(path: Path, kind: type[R]) -> list[R]:
    """Return the samples in a file; none where there is no file. Raises OSError, ValueError."""
    decoder = msgspec.json.Decoder(kind)
    try:
        return [decoder.decode(line) for line in lines_of(path)] if path.exists() else []
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep") from error

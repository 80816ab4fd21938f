"""Files of the samples that are taken through a run: one JSON object a line, oldest first."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import bytes_of, write_bytes
from cm4vllm.common.records import Record

__all__ = ["read_sample_file", "write_sample_file"]

R = TypeVar("R", bound=Record)


def write_sample_file(path: Path, samples: Sequence[Record]) -> None:
    """Write samples to `path`. A full disk is no error here: what the run itself writes reports it."""
    with contextlib.suppress(CmError):
        write_bytes(path, msgspec.json.Encoder().encode_lines(samples))


def read_sample_file(path: Path, kind: type[R]) -> list[R]:
    """Return the samples in a file; none where there is no file."""
    return msgspec.json.Decoder(kind).decode_lines(bytes_of(path)) if path.exists() else []

"""The making of the client's own record of each sample.

While the test runs, each event is packed into memory that was allocated before; rows are made of the events, and
written as SAMPLES_FILE beside run.json, when the test is over. Until then another thread may read what has been added
(`new`). LoadGen's clock and this one are the same
(CLOCK_MONOTONIC), so that both can be held against each other.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cm4vllm.common.errors import RunFailed
from cm4vllm.common.files import write_bytes
from cm4vllm.records.sample_times import FIELDS, SAMPLES_FILE, Rows

if TYPE_CHECKING:
    from cm4vllm.loadgen.client.workers import Answer, WholeAnswer


#: Events of a piece of memory.
_PIECE = 1 << 15

_ISSUED = struct.Struct("=Qqii")
_FIRST = struct.Struct("=Qq")
_ENDED = struct.Struct("=QqiB")
_ISSUED_FIELDS = [("key", "=u8"), ("at", "=i8"), ("index", "=i4"), ("prompt", "=i4")]
_FIRST_FIELDS = [("key", "=u8"), ("at", "=i8")]
_ENDED_FIELDS = [("key", "=u8"), ("at", "=i8"), ("tokens", "=i4"), ("end", "u1")]


class SampleTimes:
    """The events of a run. `issued` is called in LoadGen's thread, the others in the thread that reads answers."""

    def __init__(self) -> None:
        self._issued, self._first, self._ended = _Events(_ISSUED), _Events(_FIRST), _Events(_ENDED)

    def issued(self, now_ns: int, samples: Iterable[tuple[int, int, int]]) -> None:
        """These samples (key, index in the dataset, tokens of the prompt) were issued."""
        add = self._issued.add
        for key, index, prompt_tokens in samples:
            add(key, now_ns, index, prompt_tokens)

    def first_tokens(self, now_ns: int, answers: Sequence[Answer]) -> None:
        """These samples' first tokens were reported to LoadGen."""
        add = self._first.add
        for key, _, _ in answers:
            add(key, now_ns)

    def completed(self, now_ns: int, answers: Sequence[WholeAnswer]) -> None:
        """These samples' whole answers were reported to LoadGen."""
        add = self._ended.add
        for key, _, tokens, at_length, _ in answers:
            add(key, now_ns, tokens, at_length)

    def events_since_last_call(self) -> tuple[Rows, Rows, Rows]:
        """Return the events since the last call: issued, first tokens, ends. For one thread, beside those that add.

        A first token that is noted before an end is returned with it, or before it; an issue may come later.
        """
        ended, first = self._ended.since_last_call(_ENDED_FIELDS), self._first.since_last_call(_FIRST_FIELDS)
        return self._issued.since_last_call(_ISSUED_FIELDS), first, ended

    def write(self, folder: Path) -> None:
        """Write the rows of a run in which every sample was answered to SAMPLES_FILE in `folder`."""
        buffer = io.BytesIO()
        np.save(buffer, self._rows(), allow_pickle=False)
        write_bytes(folder / SAMPLES_FILE, buffer.getvalue())

    def _rows(self) -> Rows:
        """Return the events of each sample in one row. LoadGen may use a key again once it has ended."""
        issued, first = self._issued.array(_ISSUED_FIELDS), self._first.array(_FIRST_FIELDS)
        ended = self._ended.array(_ENDED_FIELDS)
        order = np.argsort(issued["key"], kind="stable")
        ends = ended[np.argsort(ended["key"], kind="stable")]
        if not np.array_equal(issued["key"][order], ends["key"]):
            raise RunFailed(
                "the client's record of its samples is not complete",
                cause=f"{len(issued)} samples were issued, {len(ended)} ended",
            )
        rows = np.zeros(len(issued), FIELDS)
        begin = issued["at"][0] if len(issued) else 0
        rows["index"], rows["prompt_tokens"] = issued["index"], issued["prompt"]
        rows["issued_ns"] = issued["at"] - begin
        rows["tokens"][order], rows["end"][order] = ends["tokens"], ends["end"]
        rows["last_ns"][order] = ends["at"] - begin
        rows["first_ns"] = -1
        firsts = first[np.argsort(first["key"], kind="stable")]
        if np.array_equal(firsts["key"], ends["key"]):
            rows["first_ns"][order] = firsts["at"] - begin
        elif len(firsts):  # answers without a token have no first one
            seen = dict(zip(firsts["key"].tolist(), (firsts["at"] - begin).tolist(), strict=True))
            rows["first_ns"] = [seen.get(key, -1) for key in issued["key"].tolist()]
        return rows


class _Events:
    """Records of one kind, packed into pieces of memory: one is added without allocating any, but for a new piece."""

    def __init__(self, record: struct.Struct) -> None:
        self._record = record
        self._bytes = _PIECE * record.size
        self._pieces = [bytearray(self._bytes)]
        self._at = self._read = 0

    def add(self, *values: int) -> None:
        """Append an event to memory that was allocated before."""
        if self._at == self._bytes:
            self._at = 0  # before there is another piece: whoever reads must never find it longer than it is
            self._pieces.append(bytearray(self._bytes))
        self._record.pack_into(self._pieces[-1], self._at, *values)
        self._at += self._record.size

    def since_last_call(self, fields: list[tuple[str, str]]) -> Any:
        """Return the records since the last call; another thread may be adding some."""
        pieces = len(self._pieces)
        begin, end = self._read, (pieces - 1) * self._bytes + self._at
        if end <= begin:  # nothing, or a piece that is just being added
            return np.empty(0, np.dtype(fields))
        self._read = end
        parts = []
        while begin < end:
            piece, at = divmod(begin, self._bytes)
            count = min(end - begin, self._bytes - at) // self._record.size
            parts.append(np.frombuffer(self._pieces[piece], np.dtype(fields), count, at))
            begin += count * self._record.size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def array(self, fields: list[tuple[str, str]]) -> Any:
        """Return the records as an array with these fields."""
        return np.frombuffer(b"".join([*self._pieces[:-1], memoryview(self._pieces[-1])[: self._at]]), np.dtype(fields))

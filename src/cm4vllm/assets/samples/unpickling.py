"""Tables out of pickle files, without running anything that a file asks for.

A pickle is a program: it may call whatever it names. Here it can name only what a pandas DataFrame is made of, and each
of these names stands for a plain object below: no code of pandas runs. Whatever else a file names is refused.
Layouts: pandas/core/internals/managers.py and blocks.py (1.3 and later), numpy's ndarray.__reduce__ and __setstate__,
pyarrow/array.pxi (_reduce_array_data) for the text columns of pandas 3.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy

from cm4vllm.common.errors import DatasetError

#: numpy's kinds of plain numbers and booleans: their bytes are read; objects come as lists.
_PLAIN = "biuf"

#: More values than this, and than so many for each byte, make no table: a pickle may refer to one list many times over,
#: and that to another.
VALUES, VALUES_PER_BYTE = 10**6, 20


def read_table(data: bytes, name: str) -> list[dict[str, Any]]:
    """Return the rows of a pickled DataFrame, list of dicts, or dict of columns, as plain Python values.

    Raises DatasetError for a pickle that names anything else, and for one that is broken.
    """
    try:
        return _Rows(VALUES + VALUES_PER_BYTE * len(data)).of(_Unpickler(io.BytesIO(data)).load())
    except _Refused as error:
        raise DatasetError(
            f"{name} is not a table that can be read safely",
            cause=f"it asks for {error}",
            remedy="give it as JSON or parquet, as DataFrame.to_parquet writes it; nothing of it was run",
        ) from error
    except (DatasetError, MemoryError):
        raise
    except Exception as error:  # a broken pickle raises nearly anything
        raise DatasetError(
            f"{name} is not a whole pickle of a table",
            cause=f"{type(error).__name__}: {error}"[:300],
            remedy="copy or download the dataset again",
        ) from error


class _Refused(Exception):
    """A name that no table needs."""


class _Dtype:
    """numpy.dtype(text, align, copy); the state holds the byte order."""

    def __init__(self, text: str, *_: Any) -> None:
        self.text, self.order = text, "="

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.order = str(state[1])

    def plain(self) -> numpy.dtype[Any]:
        if self.text[:1] not in _PLAIN:
            raise _Refused(f"an array of the type {self.text!r}")
        return numpy.dtype(f"{'' if self.order == '|' else self.order}{self.text}")


class _Array:
    """numpy.ndarray: `values` in C order, flat; `shape` its dimensions."""

    def __init__(self, *_: Any) -> None:
        self.shape: tuple[int, ...] = (0,)
        self.values: list[Any] = []

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, dtype, fortran, raw = state
        self.fill(shape, dtype, "F" if fortran else "C", raw)

    def fill(self, shape: Sequence[int], dtype: _Dtype, order: str, raw: Any) -> None:
        self.shape = tuple(int(size) for size in shape)
        if isinstance(raw, list):
            self.values = raw
        else:
            flat = numpy.frombuffer(raw, dtype=dtype.plain())
            self.values = flat.reshape(self.shape, order="F" if order == "F" else "C").ravel().tolist()
        if len(self.values) != int(numpy.prod(self.shape, dtype=numpy.int64)):
            raise ValueError(f"{len(self.values)} values in an array of the shape {self.shape}")

    def rows(self) -> list[list[Any]]:
        """Return a two-dimensional array row by row."""
        count, width = self.shape
        return [self.values[start * width : (start + 1) * width] for start in range(count)]


class _Texts(_Array):
    """A column of texts, as pandas 3 saves them: pyarrow's arrays, one after the other; None where there is no text."""

    def __setstate__(self, state: Any) -> None:
        self.values = list((state[-1] if isinstance(state, tuple) else state)["_pa_array"])
        self.shape = (1, len(self.values))


def _arrow_texts(parts: Sequence[Any]) -> list[str | None]:
    """Return the texts of one array of pyarrow: type, length, number of empty ones, offset, buffers."""
    kind, length, _, offset, (present, ends, data), *_ = parts
    if kind not in _ARROW_TEXTS:
        raise _Refused(f"an array of pyarrow's type {kind}")
    places = numpy.frombuffer(ends, dtype=_ARROW_TEXTS[kind])[offset : offset + length + 1].tolist()
    if len(places) != length + 1 or places != sorted(places):
        raise ValueError(f"{len(places)} places of {length} texts")
    whole = bytes(data or b"")
    missing = set()
    if present is not None:
        bits = numpy.unpackbits(numpy.frombuffer(present, dtype=numpy.uint8), bitorder="little")
        missing = set(numpy.flatnonzero(bits[offset : offset + length] == 0).tolist())
    spans = enumerate(pairwise(places))
    return [None if number in missing else whole[begin:end].decode() for number, (begin, end) in spans]


#: pyarrow's types of texts, each with the type of its offsets.
_ARROW_TEXTS = {"string": "<i4", "large_string": "<i8"}


def _buffer(data: bytes | bytearray) -> bytes | bytearray:
    if not isinstance(data, bytes | bytearray):
        raise _Refused("a buffer that is no bytes")
    return data


class _Manager:
    """pandas' BlockManager: blocks of columns of one type, and the axes: columns first, then rows."""

    def __init__(self, blocks: Iterable[tuple[_Array, Any, int]], axes: Sequence[Sequence[Any]]) -> None:
        self.blocks, self.axes = list(blocks), list(axes)

    def columns(self) -> tuple[list[str], list[Any]]:
        names, count = [str(name) for name in self.axes[0]], len(self.axes[1])
        columns: dict[int, list[Any]] = {}
        for values, places, _ in self.blocks:
            where = range(len(names))[places] if isinstance(places, slice) else places.values
            columns.update(zip(where, values.rows(), strict=True))
        if len(columns) != len(names) or any(len(column) != count for column in columns.values()):
            raise ValueError("its columns do not fit its index")
        return names, [columns[number] for number in range(len(names))]


class _Frame:
    """pandas.DataFrame: its state holds the manager."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.manager = state.get("_mgr", state.get("_data"))


class _Kind:
    """A class that is named only to be handed on, as the kind of an index or array."""


def _labels(_: type[_Kind], given: Mapping[str, Any]) -> Sequence[Any]:
    """Return the labels of a pandas Index, of which nothing else is read."""
    if "start" in given:
        return range(int(given["start"]), int(given["stop"]), int(given["step"]))
    data: Any = given["data"]
    return data.values if isinstance(data, _Array) else data


def _from_buffer(raw: Any, dtype: _Dtype, shape: Sequence[int], order: str, *_: Any) -> _Array:
    array = _Array()
    array.fill(shape, dtype, order, raw)
    return array


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise _Refused(f"the encoding {encoding}")
    return text.encode("latin1")


#: What a pickle can name.
_KNOWN: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("builtins", "slice"): slice,
    ("__builtin__", "slice"): slice,
    ("_codecs", "encode"): _encode,
    ("builtins", "bytearray"): _buffer,
    ("numpy", "ndarray"): _Kind,
    ("pandas", "NA"): _Kind,
    ("pandas", "StringDtype"): lambda *_: _Kind,
    ("pandas.arrays", "ArrowStringArray"): _Texts,
    ("pyarrow.lib", "_restore_array"): _arrow_texts,
    ("pyarrow.lib", "chunked_array"): lambda chunks, *_: [value for chunk in chunks for value in chunk],
    ("pyarrow.lib", "py_buffer"): _buffer,
    ("pyarrow.lib", "type_for_alias"): str,
    ("numpy", "dtype"): _Dtype,
    ("pandas._libs.internals", "_unpickle_block"): lambda values, places, ndim: (values, places, ndim),
    ("pandas.core.internals.managers", "BlockManager"): _Manager,
    ("pandas.core.indexes.base", "_new_Index"): _labels,
    ("pandas.core.indexes.numeric", "Int64Index"): _Kind,
    **dict.fromkeys((("pandas", "DataFrame"), ("pandas.core.frame", "DataFrame")), _Frame),
    **dict.fromkeys((("pandas", "Index"), ("pandas.core.indexes.base", "Index")), _Kind),
    **dict.fromkeys((("pandas", "RangeIndex"), ("pandas.core.indexes.range", "RangeIndex")), _Kind),
    **dict.fromkeys(((f"{name}.multiarray", "_reconstruct") for name in ("numpy.core", "numpy._core")), _Array),
    **dict.fromkeys(
        ((f"{name}.multiarray", "scalar") for name in ("numpy.core", "numpy._core")),
        lambda dtype, raw: numpy.frombuffer(raw, dtype=dtype.plain())[0].item(),
    ),
    **dict.fromkeys(((f"{name}.numeric", "_frombuffer") for name in ("numpy.core", "numpy._core")), _from_buffer),
}


class _Unpickler(pickle.Unpickler):  # noqa: S301 - it can call only the functions in _KNOWN
    """Builds stand-ins. No extensions of copyreg are registered in this process."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in _KNOWN:
            raise _Refused(f"{module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("an object outside the file")


class _Rows:
    """Makes rows of plain Python values from the unpickled objects, up to `most` values."""

    def __init__(self, most: int) -> None:
        self._left = most

    def of(self, value: Any) -> list[dict[str, Any]]:
        if isinstance(value, _Frame):
            if not isinstance(value.manager, _Manager):
                raise ValueError("it is no DataFrame of pandas 1.3 or later")
            names, columns = value.manager.columns()
            plain = [self._plain(column) for column in columns]
            return [dict(zip(names, row, strict=True)) for row in zip(*plain, strict=True)]
        value = self._plain(value)
        if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
            return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            return value
        raise ValueError("it holds neither a DataFrame, nor rows, nor columns")

    def _plain(self, value: Any) -> Any:
        """Return a value made of plain Python types alone."""
        if isinstance(value, _Array):
            return self._plain(value.rows() if len(value.shape) == 2 else value.values)
        if isinstance(value, (list, tuple)):
            self._count(len(value))
            return [self._plain(item) for item in value]
        if isinstance(value, dict):
            self._count(len(value))
            return {str(key): self._plain(item) for key, item in value.items()}
        if isinstance(value, (str, int, float, bool, type(None))):
            return value
        raise _Refused(f"a value of the type {type(value).__name__.strip('_')}")

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise _Refused("more values than a table of its size can have")

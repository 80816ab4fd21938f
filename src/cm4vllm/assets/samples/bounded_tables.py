"""Tables whose few bytes may ask for much: pickles, parquet and compressed files, read with bounded memory and time.

    python -m cm4vllm.assets.samples.bounded_tables FILE ROWS MEMORY SECONDS

reads FILE in a process of its own, with so many bytes of memory and seconds of a processor, and writes the rows to
ROWS, as msgpack. A program in pickle's language, or a table of one value that is repeated for ever, then ends this
process and no other. The bounds are far from what a table needs: a token takes 1 to 3 bytes in such a file, and up to
100 as a number of Python while it is copied.
"""

import gzip
import os
import resource
import signal
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.assets.samples.unpickling import read_table
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import run

#: Bytes of memory beside what the process has when it begins, and for each byte of the file.
MEMORY_BYTES, MEMORY_PER_BYTE = 2**30, 100
#: Seconds of a processor, and for each megabyte of the file; Python unpickles some MB/s.
CPU_S, CPU_S_PER_MB = 30, 5
#: A compressed file may hold so many times its size; text of token ids holds 3 to 10 times.
MOST_COMPRESSED, SPARE_COMPRESSED = 200, 2**26
_AGAIN = "copy or download the dataset again"
#: The answer of the process: the rows, or the reason why there are none.
_OUTCOME = tuple[list[dict[str, Any]], str, str, str]


def rows_apart(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a pickle (.pkl, .pkl.gz) or a parquet file. Raises DatasetError."""
    source = str(Path(__file__).resolve().parents[3])
    with scratch_folder("cm4vllm-table-") as folder:
        out = folder / "rows"
        try:
            memory = MEMORY_BYTES + MEMORY_PER_BYTE * _size(path)
            done = run(
                [sys.executable, "-P", "-m", __name__, path.absolute(), out, str(memory), str(_cpu_s(path))],
                env={
                    "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                },
                timeout_s=10 * _cpu_s(path),
            )
        except subprocess.TimeoutExpired as error:
            raise _too_much(path, "time") from error
        if done.status in (-signal.SIGXCPU, -signal.SIGKILL):
            raise _too_much(path, "time" if done.status == -signal.SIGXCPU else "memory")
        try:
            rows, message, cause, remedy = msgspec.msgpack.decode(out.read_bytes(), type=_OUTCOME)
        except (OSError, ValueError) as error:
            if done.status < 0:  # allocators end a process, too
                raise _too_much(path, "memory", done.tail(3)) from error
            raise DatasetError(
                f"{path} was not read: the process that reads it failed",
                cause=done.tail(3),
                remedy="the file may be good: remove that cause and run again",
            ) from error
    if message:
        raise DatasetError(message, cause=cause, remedy=remedy)
    return list(rows)


def parquet_rows(path: Path) -> int:
    """Return the number of rows of a parquet file by its footer, whose size pyarrow bounds. Raises DatasetError."""
    import pyarrow
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(path).num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(f"{path} is not a whole parquet file", cause=str(error), remedy=_AGAIN) from error


def unpacked_bytes(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if it is a .gz file. Raises DatasetError, OSError."""
    if path.suffix != ".gz":
        return path.read_bytes()
    most = MOST_COMPRESSED * path.stat().st_size + SPARE_COMPRESSED
    try:
        with gzip.open(path) as file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} is not a whole gzip file", cause=str(error), remedy=_AGAIN) from error
    if len(data) > most:
        raise DatasetError(
            f"{path} is not a table", cause=f"it holds more than {MOST_COMPRESSED} times its size", remedy=_AGAIN
        )
    return data


def _too_much(path: Path, resource: str, said: str = "") -> DatasetError:
    return DatasetError(
        f"{path} takes more {resource} than a table of its size",
        cause=said or "its reading was ended",
        remedy="have its publisher give it as JSON",
    )


def _cpu_s(path: Path) -> int:
    return int(CPU_S + CPU_S_PER_MB * _size(path) / 1e6)


def _size(path: Path) -> int:
    """Return the size that the bounds go by: what a compressed file may hold of a table, not what it holds."""
    return path.stat().st_size * (10 if path.suffix == ".gz" else 1)


def _bound(memory_bytes: int, cpu_s: int) -> None:
    """Bound what this process takes from now on."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, value in (
        (resource.RLIMIT_AS, now + memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    pyarrow.set_cpu_count(1)
    try:
        return list(parquet.read_table(path).to_pylist())
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(f"{path} is not a whole parquet file", cause=str(error), remedy=_AGAIN) from error


def main(arguments: Sequence[str]) -> int:
    """Read the table `arguments[0]` and write the result to `arguments[1]`, within the bounds that follow."""
    path, out = Path(arguments[0]), Path(arguments[1])
    is_parquet = path.suffix.lower() == ".parquet"
    if is_parquet:
        import pyarrow.parquet  # noqa: F401 before the bound: it maps much
    _bound(int(arguments[2]), int(arguments[3]))
    try:
        rows = _parquet(path) if is_parquet else read_table(unpacked_bytes(path), str(path))
        data = msgspec.msgpack.encode((rows, "", "", ""))
    except DatasetError as error:
        data = _refusal(error)
    except MemoryError:
        data = _refusal(_too_much(path, "memory"))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # msgpack's numbers have 64 bits
        data = _refusal(
            DatasetError(f"{path} holds a value that no dataset has", cause=str(error)[:300], remedy=_AGAIN)
        )
    out.write_bytes(data)
    return 0


def _refusal(error: DatasetError) -> bytes:
    return msgspec.msgpack.encode(([], error.what, error.cause, error.remedy))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

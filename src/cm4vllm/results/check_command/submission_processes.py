"""Several processes that read the submissions of a tree, where there are many."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.programs.processes import die_with_parent, spawned_safely

T = TypeVar("T")

#: From this number of submissions on they are read by several processes, which take half a second to start.
MANY = 6
#: While one process waits for the disk, another one of its core computes.
_PER_CORE = 2


def each_submission(read: Callable[[Path], T], homes: Sequence[Path]) -> Iterator[tuple[Path, T]]:
    """Yield each submitter's folder with what `read` returns for it. Raises SubmissionError if a process is killed."""
    workers = min(_PER_CORE * usable_processors(), len(homes))
    if workers < 2 or len(homes) < MANY:
        yield from ((home, read(home)) for home in homes)
        return
    # The largest first: what is begun last must not be what takes longest.
    order = sorted(homes, key=lambda home: -sum(1 for _ in home.glob("results/*/*/*")))
    try:
        with (
            spawned_safely() as context,
            ProcessPoolExecutor(workers, mp_context=context, initializer=die_with_parent) as pool,
        ):
            yield from zip(order, pool.map(read, order), strict=True)
    except BrokenProcessPool as error:
        raise SubmissionError(
            f"a process that reads the submissions in {homes[0].parents[1]} ended unexpectedly",
            cause=str(error),
            remedy="most often the memory ran out: end other programs, or read fewer submissions at a time",
        ) from error

"""The common parts of all benchmarks: cases measured in turn, medians, ratios by round, a table, and --json=FILE.

A round measures every case once, so that a machine that is busy for a while is busy for all of them; a ratio is taken
within a round. The value of a figure is the median over the rounds, `low` and `high` are the smallest and the largest.
"""

import argparse
import json
import os
import statistics
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from cm4vllm.common.terminal_text import columns

#: Above this load average, as a share of the processors, other work may have changed the figures: the table says so.
BUSY_LOAD = 0.75
#: The command `cm` of this Python's environment.
CM = Path(sysconfig.get_path("scripts")) / "cm"


T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One measured number. `limit` reads ">= 25" or "<= 1.25", None where none is set; `holds` is None then, too."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    limit: str | None = None
    holds: bool | None = None


def figure(
    name: str, values: Sequence[float], unit: str, *, at_least: float | None = None, at_most: float | None = None
) -> Figure:
    """Return the figure of `values`, one a round; the limit is held by the median."""
    value, limit, holds = statistics.median(values), None, None
    if at_least is not None:
        limit, holds = f">= {at_least:g}", value >= at_least
    elif at_most is not None:
        limit, holds = f"<= {at_most:g}", value <= at_most
    return Figure(name, value, min(values), max(values), unit, limit, holds)


def interleaved(cases: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call every case once a round and return what each returned, by round; each round begins with another case."""
    names = list(cases)
    measured: dict[str, list[T]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            measured[name].append(cases[name]())
    return measured


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return over / under of each round."""
    return [a / b for a, b in zip(over, under, strict=True)]


def arguments(description: str, *, rounds: int, parts: Collection[str] = ()) -> argparse.ArgumentParser:
    """Return a parser that knows --rounds and --json, and --only of a benchmark with `parts`; others are added."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds that are measured (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")

    def some(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in parts]:
            raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
        return names

    if parts:
        parser.add_argument("--only", type=some, default=list(parts), metavar="PART,…", help=f"of {', '.join(parts)}")
    return parser


def left_out(name: str, why: str) -> None:
    """Print that something is not measured, and why."""
    print(f"{name}: left out: {why}", file=sys.stderr)


def report(figures: Iterable[Figure], path: Path | None = None) -> int:
    """Print the table, write `path` where it is given, and return the exit code: 1 when a limit does not hold."""
    shown, verdicts = list(figures), {None: "", True: "holds", False: "DOES NOT HOLD"}
    rows = [["figure", "median", "low", "high", "unit", "limit", ""]]
    for f in shown:
        numbers = [f"{number:,.4g}" for number in (f.value, f.low, f.high)]
        rows.append([f.name, *numbers, f.unit, f.limit or "", verdicts[f.holds]])
    print("\n".join(columns(rows, numbers=(1, 2, 3))))
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    busy = "; the machine was BUSY, repeat on a quiet one" if load > BUSY_LOAD * processors else ""
    print(f"load average {load:.2f} on {processors} processors{busy}")
    if path is not None:
        fields = {f.name: {key: value for key, value in asdict(f).items() if key != "name"} for f in shown}
        path.write_text(json.dumps(fields, indent=2) + "\n")
    return 1 if any(f.holds is False for f in shown) else 0

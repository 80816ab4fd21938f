"""Figures: a number with its unit, the file and field that it was read from, and its interval; latencies."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cm4vllm.common.units import Milliseconds, Quantity


@dataclass(frozen=True)
class Source:
    """The source of a value: a file, by its path below the root of the tree or folder, and a field in it."""

    file: str
    field: str

    def __str__(self) -> str:
        return f"{self.file}: {self.field}"


class Basis(StrEnum):
    """The data that an interval was computed from."""

    SAMPLES = "samples"
    PERCENTILES = "percentiles"


@dataclass(frozen=True)
class Interval:
    """The interval in which the figure of the same run, made longer, is expected (results.uncertainty)."""

    low: float
    high: float
    basis: Basis


@dataclass(frozen=True)
class Figure:
    """A number with its name, its unit (empty for a score) and its source.

    `interval` is None where it was not computed, and where it cannot be; `why_no_interval` says why in the second case.
    """

    name: str
    value: float
    unit: str
    source: Source
    interval: Interval | None = None
    why_no_interval: str = ""

    def __str__(self) -> str:
        return str(self.value) if isinstance(self.value, Quantity) else f"{self.value:g} {self.unit}".rstrip()


class Figures(Mapping[str, Figure]):
    """Figures by name, in the order of their file; never changed."""

    def __init__(self, figures: Iterable[Figure] = ()) -> None:
        self._by_name = {figure.name: figure for figure in figures}

    def __getitem__(self, name: str) -> Figure:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def value(self, name: str) -> float | None:
        """Return the value of a figure; None if there is no figure of that name."""
        return self._by_name[name].value if name in self._by_name else None


@dataclass(frozen=True)
class Latency:
    """The 99th percentile and the mean of TTFT or TPOT, and the limit that the benchmark sets for the percentile."""

    name: str
    p99: Milliseconds
    mean: Milliseconds | None
    limit: Milliseconds | None

    @property
    def met(self) -> bool | None:
        """Return True if the percentile is below the limit (the checker compares with <); None if there is no limit."""
        return None if self.limit is None else self.p99 < self.limit

    @property
    def headroom(self) -> float | None:
        """The part of the limit that is left, in [..1]; negative when it is exceeded."""
        return None if self.limit is None else 1 - self.p99 / self.limit

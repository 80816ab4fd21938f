"""The samples of a power analyzer: the lines of spl.txt, of PTDaemon's replies and of its log, read in one place.

A line holds the reading of the whole system, and after it the reading of each channel or analyzer where there are
several. The server and PTDaemon write to one stream: a line may be cut, and two may have become one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cm4vllm.common.files import text_of
from cm4vllm.loadgen.logs.detail_log import time_of

__all__ = ["SAMPLES", "SIMULATED", "Reading", "Sample", "Samples", "mean_watts", "read_samples", "samples_of"]

#: Stands in everything that the simulated PTDaemon says. No setting changes it: it tells rehearsals from measurements.
SIMULATED = "SIMULATED"
#: The name of the file of samples in the folder of a run.
SAMPLES = "spl.txt"
#: A sample begins here; the time of a single analyzer, after its name, is part of the sample before it.
_BEGIN = re.compile(r"(?<!Analyzer\d,)(?<!Analyzer\d\d,)(?=Time,)")
_UNITS = ("Watts", "Volts", "Amps", "PF")


@dataclass(frozen=True)
class Reading:
    """Power in W, voltage in V, current in A and power factor as the analyzer gave them; any may be negative or NaN."""

    watts: float
    volts: float
    amps: float
    power_factor: float

    @property
    def usable(self) -> bool:
        """True if the official checkers count the power: it is above zero."""
        return self.watts > 0


@dataclass(frozen=True)
class Sample:
    """One sample: its time in UTC, the reading of all, the mark of its measurement, and the reading of each channel.

    It is `simulated` where it says so itself.
    """

    at: datetime
    total: Reading
    mark: str = ""
    channels: Mapping[str, Reading] = field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True)
class Samples:
    """The samples of a file, in its order, and the numbers of the lines that are not exactly one sample."""

    samples: tuple[Sample, ...]
    damaged: tuple[int, ...] = ()

    def within(self, begin: datetime, end: datetime) -> tuple[Sample, ...]:
        """Return the samples strictly between two times, as the official checkers take them."""
        return tuple(sample for sample in self.samples if begin < sample.at < end)


def mean_watts(samples: Iterable[Sample]) -> float | None:
    """Return the mean power in W of the samples above zero; None where there is none.

    It is that of tools/submission/submission_checker/checks/power_check.py.
    """
    watts = [sample.total.watts for sample in samples if sample.total.usable]
    return sum(watts) / len(watts) if watts else None


def read_samples(path: Path) -> Samples:
    """Return the samples in a file. Raises OSError where it cannot be read."""
    return samples_of(text_of(path))


def samples_of(text: str) -> Samples:
    """Return the samples in a text; lines with no sample in them, as those of a log, are passed over."""
    samples: list[Sample] = []
    damaged = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = [part for part in _BEGIN.split(line) if part.startswith("Time,")]
        read = [sample for part in parts if (sample := _sample(part)) is not None]
        samples += read
        if len(parts) > 1 or len(read) < len(parts):
            damaged.append(number)
    return Samples(tuple(samples), tuple(damaged))


def _sample(text: str) -> Sample | None:
    """Return the sample in a text that begins with `Time,`; None where the text is cut."""
    words = _Words(text)
    try:
        words.skip("Time")
        at = time_of(words.next())
        if at is None:
            return None
        total, mark, simulated = words.reading(), "", False
        channels: dict[str, Reading] = {}
        while words.more:
            name = words.next()
            if name == "Mark":
                marked = words.next()
                mark = mark or marked
            elif name == SIMULATED:
                simulated = True
            elif name == "Watts":  # PTDaemon's replies do not name the channels
                words.back()
                channels[f"Ch{len(channels) + 1}"] = words.reading()
            elif words.peek() in ("Watts", "Time"):
                if words.peek() == "Time":
                    words.next()
                    words.next()
                channels[name] = words.reading()
            else:
                return None
    except (ValueError, IndexError):
        return None
    return Sample(at, total, mark, channels, simulated)


class _Words:
    """The words of a line between its commas, taken one after the other. Raises IndexError at their end."""

    def __init__(self, text: str) -> None:
        self._words = [word.strip() for word in text.strip().rstrip(",").split(",")]
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._words)

    def next(self) -> str:
        word = self._words[self._at]
        self._at += 1
        return word

    def back(self) -> None:
        self._at -= 1

    def peek(self) -> str:
        return self._words[self._at]

    def skip(self, word: str) -> None:
        if self.next() != word:
            raise ValueError(word)

    def reading(self) -> Reading:
        values = []
        for unit in _UNITS:
            self.skip(unit)
            values.append(float(self.next()))
        return Reading(*values)

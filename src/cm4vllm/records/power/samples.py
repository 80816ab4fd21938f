"""The samples of a power analyzer: the lines of spl.txt, of PTDaemon's replies and of its log, read in one place.

A line holds the reading of the whole system, and after it the reading of each channel or analyzer where there are
several. The server and PTDaemon write to one stream: a line may be cut, and two may have become one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from cm4vllm.records.logs.detail_log import time_of

#: Stands in everything that the simulated PTDaemon says. No setting changes it: it tells rehearsals from measurements.
SIMULATED = "SIMULATED"
#: No measured system draws as many W: such a reading is an analyzer's value for "none", or an overflow.
MOST_W = 1e8
#: The name of the file of samples in the folder of a run.
SAMPLES = "spl.txt"
#: A sample begins here; the time of a single analyzer, after its name, is part of the sample before it.
_BEGIN = re.compile(r"(?<!Analyzer\d,)(?<!Analyzer\d\d,)(?=Time,)")
_LOOSE = re.compile(r",\s|\s,|\s$")
_READING = "Watts,([^,]+),Volts,([^,]+),Amps,([^,]+),PF,([^,]+)"
#: The reading of the whole system, and each part after it: a mark, the simulated analyzer's word, or a channel.
_WHOLE = re.compile(f"Time,([^,]+),{_READING}")
_PART = re.compile(
    f",(?:Mark,(?P<mark>[^,]*)|(?P<simulated>{SIMULATED})|(?:(?P<name>[^,]*),(?:Time,[^,]+,)?)?{_READING})(?=,|$)"
)


@dataclass(frozen=True)
class Sample:
    """One sample: its time in UTC, the power of all in W, the mark of its measurement, and the power of each channel.

    Powers are as the analyzer gave them: any may be negative or NaN. It is `simulated` where it says so itself.
    """

    at: datetime
    watts: float
    mark: str = ""
    channels: Mapping[str, float] = field(default_factory=dict)
    simulated: bool = False

    @property
    def usable(self) -> bool:
        """Return True if the official checkers count the power: it is above zero."""
        return self.watts > 0

    @property
    def impossible(self) -> bool:
        """Return True if the official checkers count the power, and no system draws it."""
        return self.watts >= MOST_W


@dataclass(frozen=True)
class Samples:
    """The samples of a file, in its order, and the numbers of the lines that are not exactly one sample."""

    samples: tuple[Sample, ...]
    damaged: tuple[int, ...] = ()

    def within(self, begin: datetime, end: datetime) -> tuple[Sample, ...]:
        """Return the samples strictly between two times, as the official checkers take them."""
        return tuple(sample for sample in self.samples if begin < sample.at < end)


def mean_watts(samples: Iterable[Sample]) -> float | None:
    """Return the mean power in W of the samples above zero; None where there is none, or a power that is not possible.

    Computed as in tools/submission/submission_checker/checks/power_check.py.
    """
    usable = [sample for sample in samples if sample.usable]
    if not usable or any(sample.impossible for sample in usable):
        return None
    return sum(sample.watts for sample in usable) / len(usable)


def samples_of(text: str) -> Samples:
    """Return the samples in a text; lines without a sample, such as log messages, are skipped."""
    samples: list[Sample] = []
    damaged = []
    for number, line in enumerate(text.splitlines(), 1):
        if (count := line.count("Time,")) == 1 and line.startswith("Time,"):
            parts = [line]
        else:
            parts = [part for part in _BEGIN.split(line) if part.startswith("Time,")] if count else []
        read = [sample for part in parts if (sample := _sample(part)) is not None]
        samples += read
        if len(parts) > 1 or len(read) < len(parts):
            damaged.append(number)
    return Samples(tuple(samples), tuple(damaged))


def _sample(text: str) -> Sample | None:
    """Return the sample in a text that begins with `Time,`; None where the text is cut."""
    text = text.strip().rstrip(",")
    if _LOOSE.search(text):
        text = ",".join(word.strip() for word in text.split(","))
    whole = _WHOLE.match(text)
    if whole is None or (at := time_of(whole[1])) is None:
        return None
    mark, simulated, channels, end = "", False, dict[str, float](), whole.end()
    try:
        watts, *_ = map(float, whole.groups()[1:])  # volts, amperes and factor, too: a cut one is no number
        while end < len(text):
            part = _PART.match(text, end)
            if part is None:
                return None
            if part["mark"] is not None:
                mark = mark or part["mark"]
            elif part["simulated"]:
                simulated = True
            else:  # PTDaemon's replies do not name the channels
                power, *_ = map(float, part.groups()[3:])
                channels[part["name"] or f"Ch{len(channels) + 1}"] = power
            end = part.end()
    except ValueError:
        return None
    return Sample(at, watts, mark, channels, simulated)

"""The replies and the log of PTDaemon, SPEC's program between the power server and an analyzer."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from cm4vllm.common.terminal_text import whole_number
from cm4vllm.records.logs.detail_log import time_of
from cm4vllm.records.power.samples import SIMULATED

_LINE = re.compile(r"(\d\d-\d\d-\d{4} \d\d:\d\d:\d\d\.\d{3})(?::? )?(.*)")
_CHECKED = re.compile(r"Uncertainty checking for \S+ is activated")
#: The words of the lines that are read: nearly all others repeat a sample.
_WORDS = ("Go with mark", "Completed test", "Uncertainty checking", "which is above")
_UNCERTAIN = re.compile(r"Uncertainty (\d+\.\d+)%, which is above")


@dataclass(frozen=True)
class Identity:
    """The identity of PTDaemon and of the analyzer, from the reply to `Identify`.

    `model` is PTDaemon's name of the analyzer, `version` PTDaemon's own, `channels` the number that it reads;
    `calibrated` is the date of the last calibration, `instrument` the analyzer's own words: maker, model, serial number
    and firmware.
    """

    model: str
    version: str
    channels: int
    calibrated: str
    instrument: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        """Return True if the analyzer states that it is simulated."""
        return any(SIMULATED in text for text in (self.model, self.version, *self.instrument))


@dataclass(frozen=True)
class Totals:
    """PTDaemon's mean and maximum of a measurement."""

    mean: float
    maximum: float


@dataclass(frozen=True)
class LogLine:
    """A line of PTDaemon's log with a time: the time in UTC, and the rest."""

    at: datetime
    text: str


def identity_of(reply: str) -> Identity | None:
    """Read the reply to `Identify`; None where it is of another form."""
    words = reply.strip().split(",")
    named = dict(word.split("=", 1) for word in words if "=" in word)
    # model,1000,...,version=V,OS=S,mode=power,1,1,CHANNELS,0,0,CALIBRATED,MAKER;MODEL;SERIAL;FIRMWARE
    mode = next((at for at, word in enumerate(words) if word.startswith("mode=")), None)
    if "version" not in named or mode is None or len(words) < mode + 8:
        return None
    rest = words[mode + 1 :]
    if (channels := whole_number(rest[2])) is None:
        return None
    return Identity(
        model=words[0],
        version=named["version"],
        channels=channels,
        calibrated="" if rest[5] == "no_cal_date" else rest[5],
        instrument=tuple(rest[-1].split(";")),
    )


def totals_of(reply: str, name: str) -> Totals | None:
    """Read a reply such as `Watts,MEAN,MIN,MAX,COUNT,...`; None where it is of another form or measured nothing."""
    match reply.strip().split(","):
        case [first, mean, _, maximum, _, *_] if first == name:
            with suppress(ValueError):
                return Totals(float(mean), float(maximum)) if float(mean) >= 0 else None
    return None


def log_lines(text: str) -> Iterator[LogLine]:
    """Yield the lines of ptd_logs.txt with a time that begin or end a measurement, or are of the uncertainty."""
    for line in text.splitlines():
        if not any(word in line for word in _WORDS):
            continue
        if (parts := _LINE.match(line)) and (at := time_of(parts[1])) is not None:
            yield LogLine(at, parts[2].strip())


def is_checked(line: LogLine) -> bool:
    """Return True if with this line PTDaemon begins to check the uncertainty of samples."""
    return _CHECKED.search(line.text) is not None


def uncertainty_of(line: LogLine) -> float | None:
    """Return the uncertainty in percent that a line warns of; None where the line is no such warning."""
    match = _UNCERTAIN.search(line.text)
    return float(match[1]) if match else None

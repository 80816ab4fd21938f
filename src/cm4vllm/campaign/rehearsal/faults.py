"""Faults of a simulated server: which there are, and when."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cm4vllm.common.errors import UsageError

#: The environment variable with the name of a file that lists the present faults: tests see how a job reacts to them.
FAULT_FILE = "CM4VLLM_FAULT_FILE"

_WORD = re.compile(r"([a-z]+)@(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


class Kind(StrEnum):
    """A kind of fault that a simulated server can show."""

    DIE = "die"
    HANG = "hang"
    SLOW = "slow"
    RUBBISH = "rubbish"


@dataclass(frozen=True)
class Faults:
    """The faults of a server: those planned for a time after its start, and those that a file names at the moment."""

    planned: tuple[tuple[Kind, float, float], ...] = ()
    file: Path | None = None
    text: str = ""

    @classmethod
    def parse(cls, text: str, file: Path | None = None) -> Faults:
        """Read `hang@60-90,die@120`: kinds with seconds from the start, to the end where no second is given.

        Raises UsageError.
        """
        planned = []
        for word in filter(None, (part.strip() for part in text.split(","))):
            match = _WORD.fullmatch(word)
            if match is None or match[1] not in list(Kind) or (match[3] and float(match[3]) <= float(match[2])):
                raise UsageError(
                    f"--rehearse_faults: {word!r} is no fault",
                    remedy=f"it is KIND@SECONDS or KIND@FROM-TO; kinds are {', '.join(Kind)}: hang@60-90,die@120",
                )
            planned.append((Kind(match[1]), float(match[2]), float(match[3] or "inf")))
        return cls(tuple(planned), file, text)

    def now(self, elapsed_s: float) -> frozenset[str]:
        """Return the kinds of the faults that hold so many seconds after the start."""
        kinds = {str(kind) for kind, begin, end in self.planned if begin <= elapsed_s < end}
        if self.file is not None:
            with contextlib.suppress(OSError):
                kinds |= set(self.file.read_text(encoding="utf-8").split())
        return frozenset(kinds)

"""Machines that a job can be rehearsed for, as data (profiles/): what they are, and how long a server's steps take."""

from __future__ import annotations

import contextlib
import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from cm4vllm.common.bounded_documents import yaml_of
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.files import bytes_of, typed_path
from cm4vllm.common.records import Record
from cm4vllm.common.settings import GREATEST
from cm4vllm.records.server import Simulation

_FOLDER = Path(__file__).with_name("profiles")

#: One answer of fewer tokens makes a run with token latencies invalid ("Number of tokens need to be greater than 1").
SHORTEST_ANSWER = 2

#: No server takes a step in less than 1 us; with a noise above 1 the factors of steps span so much that a run is ruled
#: by the longest. `nan` is in no range.
_StepSeconds = Annotated[float, msgspec.Meta(ge=0.000001, le=3600)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
_Noise = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=GREATEST)]


class Lengths(Record, frozen=True, kw_only=True):
    """Lengths of prompts or answers in tokens: `tokens[i]` is the length below which the share `shares[i]` lies.

    Between two points the lengths are spread evenly. Both lists rise; the shares begin with 0 and end with 1.
    """

    shares: list[float]
    tokens: list[int]

    def of(self, share: float) -> int:
        """Return the length at a share in [0, 1)."""
        place = min(bisect_right(self.shares, share), len(self.shares) - 1)
        low, high = self.shares[place - 1], self.shares[place]
        part = (share - low) / (high - low)
        return round(self.tokens[place - 1] + part * (self.tokens[place] - self.tokens[place - 1]))

    def __post_init__(self) -> None:
        """Raise ValueError for lists that are no lengths."""
        rising = all(a < b for a, b in zip(self.shares, self.shares[1:], strict=False))
        if len(self.shares) != len(self.tokens) or len(self.shares) < 2 or not rising:
            raise ValueError("shares and tokens are lists of the same length, and shares rise")
        if (self.shares[0], self.shares[-1]) != (0, 1) or self.tokens != sorted(self.tokens) or self.tokens[0] < 1:
            raise ValueError("shares go from 0 to 1, and tokens rise from 1 or more")


class ServerTimes(Record, frozen=True, kw_only=True):
    """Times of a server's step: `step_s`, `each_s` more for each answer under way, `token_s` for each token
    of a prompt; with `noise`, the standard deviation of its logarithm.

    A step has at most `max_num_seqs` answers and `max_num_batched_tokens` tokens; the KV cache holds `kv_tokens`.
    """

    step_s: _StepSeconds
    each_s: _Seconds
    token_s: _Seconds
    noise: _Noise
    max_num_seqs: _Count
    max_num_batched_tokens: _Count
    max_model_len: _Count
    kv_tokens: _Count


class Profile(Record, frozen=True, kw_only=True):
    """A machine and a server on it. `name` is that of its file, `sha256` its digest.

    `source` says where its figures come from, `derivation` in sentences how the times follow from them, and what is
    assumed. `system` has MLPerf's keys of a system description. `prompts` and `answers` are lengths for which the times
    hold: a prompt counts as one of these lengths, whatever the dataset's is.
    """

    title: str
    source: str
    derivation: list[str]
    benchmark: str
    vllm: str
    system: dict[str, str]
    server: ServerTimes
    prompts: Lengths
    answers: Lengths
    name: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for answers with which LoadGen calls a run invalid."""
        if self.answers.tokens[0] < SHORTEST_ANSWER:
            raise ValueError(
                f"answers: an answer of {self.answers.tokens[0]} token makes the run invalid for LoadGen; let "
                f"tokens of answers begin with {SHORTEST_ANSWER} or more"
            )

    def simulation(self, seed: int, faults: str) -> Simulation:
        """Return the note on a server with these times, for its records."""
        return Simulation(
            profile=self.name,
            title=self.title,
            sha256=self.sha256,
            seed=seed,
            faults=faults,
            source=self.source,
            system=self.system,
        )


@cache
def named_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that come with cm4vllm."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def read_profile(name: str) -> Profile:
    """Return a profile by its name, or by the path of its file (FILE.yaml). Raises UsageError."""
    path = _FOLDER / f"{name}.yaml"
    if name not in named_profiles():
        path = typed_path(name)
        if path.suffix not in (".yaml", ".yml"):
            known = f"known are {', '.join(named_profiles())}; or give the path of a file, as ./machine.yaml"
            raise UsageError(f"--rehearse={name} is not known", remedy=nearest(name, named_profiles(), known))
    try:
        data = bytes_of(path)
        profile = msgspec.convert(yaml_of(data), Profile)
    except OSError as error:
        raise UsageError(f"cannot read the profile {path}", cause=str(error.strerror)) from error
    except ValueError as error:
        raise UsageError(
            f"the profile {path} cannot be used",
            cause=str(error),
            remedy="change it there; docs/rehearse.md has its fields",
        ) from error
    return msgspec.structs.replace(profile, name=path.stem, sha256=hashlib.sha256(data).hexdigest())


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

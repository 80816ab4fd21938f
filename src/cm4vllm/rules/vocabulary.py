"""The words of MLPerf's rules, spelled as the submission tree spells them."""

import re
from enum import StrEnum
from typing import Self

from cm4vllm.common.errors import UsageError, nearest


class _Word(StrEnum):
    @classmethod
    def parse(cls, word: str) -> Self:
        """Return the member spelled `word` in any case. Raises UsageError naming the nearest."""
        for member in cls:
            if member.lower() == word.strip().lower():
                return member
        noun = re.sub(r"\B([A-Z])", r" \1", cls.__name__).lower()
        raise UsageError(f"unknown {noun} {word!r}", remedy=nearest(word, list(cls)))


class Scenario(_Word):
    OFFLINE = "Offline"
    SERVER = "Server"
    INTERACTIVE = "Interactive"
    SINGLE_STREAM = "SingleStream"
    MULTI_STREAM = "MultiStream"


class Mode(_Word):
    PERFORMANCE = "performance"
    ACCURACY = "accuracy"


class Division(_Word):
    OPEN = "open"
    CLOSED = "closed"
    NETWORK = "network"


class Category(_Word):
    DATACENTER = "datacenter"
    EDGE = "edge"


class ExecutionMode(_Word):
    """`test` is a rehearsal of a few minutes; `valid` is what the rules ask, at full length."""

    TEST = "test"
    VALID = "valid"

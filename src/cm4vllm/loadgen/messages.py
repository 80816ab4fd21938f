"""Messages from the LoadGen process to the process that started it: JSON lines on standard output."""

from __future__ import annotations

import msgspec

from cm4vllm.loadgen.records import ClientRecord

__all__ = ["Answers", "Ended", "Failed", "FirstFailure", "Message", "Note", "Progress"]


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="progress"):
    """How far the run is: samples answered, of a total where it is known, seconds since the test began, tokens.

    `waiting` samples were issued and have no answer yet.
    """

    done: int
    waiting: int
    total: int | None
    elapsed_s: float
    tokens: int


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="note"):
    """A line to show to the user; `loud`: as a warning."""

    text: str
    loud: bool = False


class Answers(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="answers"):
    """Answers since the last such message: the index of each sample in the dataset, and the tokens of its answer."""

    answers: list[tuple[int, list[int]]]


class FirstFailure(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="first_failure"):
    """The first request of a run failed; the run ends soon. Sent at once: LoadGen may crash before its end."""

    cause: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="ended"):
    """The test ended with every sample answered. `duration_s` is that of the test, without what goes before it."""

    client: ClientRecord
    duration_s: float
    versions: dict[str, str]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="failed"):
    """The run failed: an error of the tree in common.errors, and what the client saw where it had started."""

    exit_code: int
    what: str
    cause: str
    remedy: str
    client: ClientRecord | None = None


Message = Progress | Note | Answers | FirstFailure | Ended | Failed

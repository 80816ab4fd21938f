"""Messages from the LoadGen process to the process that started it: JSON lines on standard output."""

import msgspec

from cm4vllm.loadgen.process.run_status import LatencyStatus
from cm4vllm.records.client import ClientRecord, SelfCheck


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="progress"):
    """Progress of the run: samples answered, their total if known, seconds since the test began, tokens.

    `waiting` samples were issued and have no answer yet. `latencies` are those of a performance run whose first tokens
    are reported.
    """

    done: int
    waiting: int
    total: int | None
    elapsed_s: float
    tokens: int
    latencies: tuple[LatencyStatus, ...] = ()


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="checked"):
    """The self-check of the client, and the same in words, for the user."""

    check: SelfCheck
    text: str


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="note"):
    """A line to show to the user; `loud`: as a warning."""

    text: str
    loud: bool = False


class Timed(msgspec.Struct, frozen=True, array_like=True):
    """The times of one answer: when its query was issued, in s since the first one, and what LoadGen judges.

    `tpot_ms` is None for an answer of one token.
    """

    issued_s: float
    ttft_ms: float
    tpot_ms: float | None
    latency_ms: float


class Latencies(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="latencies"):
    """The answers since the last such message, and what is open `elapsed_s` seconds after the first query.

    `issued` counts all queries so far. `overdue` of them wait for their first token, or their answer, for longer than
    the limit allows. `oldest_open_s` is when the oldest query without its whole answer was issued, None where all are
    answered.
    """

    elapsed_s: float
    answers: list[Timed]
    issued: int
    overdue: int
    oldest_open_s: float | None


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


Message = Progress | Checked | Note | Latencies | FirstFailure | Ended | Failed

"""A LoadGen run while it goes on, as data: the messages of its process, and what is made of them to be shown.

The messages go to the process that started it, as lines of JSON on standard output. The live view shows a RunStatus,
and status.json holds it.
"""

import msgspec

from cm4vllm.common.records import Record
from cm4vllm.records.client import ClientRecord, SelfCheck


class LatencyStatus(Record, frozen=True, kw_only=True):
    """TTFT or TPOT of the answers so far, in ms; percentiles are exact to 1 %.

    `over` of `queries` were over `limit_ms`. `missing` is LoadGen's early-stopping test so far: so many more queries,
    all of them within the limit, make the run pass it; 0 says that it passes. `p99_at_most_ms` is the bound that this
    test gives for the 99th percentile; None where there are too few queries for one. Without a limit both are None.
    """

    name: str
    queries: int
    p50_ms: float
    p99_ms: float
    limit_ms: float | None = None
    over: int = 0
    missing: int | None = None
    p99_at_most_ms: float | None = None


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


class TimeLeft(Record, frozen=True, kw_only=True):
    """Seconds to the end, with what they come to at least and at most.

    The bounds are those of 95 %, as far as the rate goes on as it varied until now. Of a run that LoadGen paces they
    are half and twice the time that the requests then in flight take, or the 99th percentile of an answer.
    """

    seconds: float
    low: float
    high: float


class ServerStatus(Record, frozen=True, kw_only=True):
    """The server's last metrics: its requests now, and its counts since the run began.

    `kv_cache_usage` is in [0..1].
    """

    running: int
    waiting: int
    kv_cache_usage: float
    preemptions: int
    cached_prompt_tokens: int


class ClientStatus(Record, frozen=True, kw_only=True):
    """The self-check of the client, and how many times the load so far it could carry; None before the first answer."""

    workers: int
    capacity_qps: float
    headroom: float | None


class RunStatus(Record, frozen=True, kw_only=True):
    """A LoadGen run under way. `elapsed_s` counts from the first query: 0 while the run is prepared.

    `total` is the number of samples, None while LoadGen alone knows it. `tokens_per_second` and `samples_per_second`
    are those of the last ten seconds.
    """

    title: str
    elapsed_s: float = 0.0
    done: int = 0
    total: int | None = None
    in_flight: int = 0
    tokens: int = 0
    samples_per_second: float = 0.0
    tokens_per_second: float = 0.0
    left: TimeLeft | None = None
    latencies: tuple[LatencyStatus, ...] = ()
    server: ServerStatus | None = None
    client: ClientStatus | None = None

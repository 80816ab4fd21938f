"""A LoadGen run while it goes on, as data: what the live view shows and status.json holds."""

from cm4vllm.common.records import Record


class TimeLeft(Record, frozen=True, kw_only=True):
    """Seconds to the end, with what they come to at least and at most.

    The bounds are those of 95 %, as far as the rate goes on as it varied until now. Of a run that LoadGen paces they
    are half and twice the time that the requests then in flight take, or the 99th percentile of an answer.
    """

    seconds: float
    low: float
    high: float


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

"""The bottleneck of a performance run and the option that would move it: computed from evidence, else not named.

The evidence is the server's own metrics through the run, the client's self-check, and LoadGen's percentiles against
their limits. A cause is named only where its numbers stand out; what no rule below covers is not explained.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cm4vllm.common.number_texts import ms, number, percent, rate, times
from cm4vllm.records.client import HEADROOM
from cm4vllm.records.doubts import headroom as client_headroom
from cm4vllm.records.metrics import ServerMetrics, Timing
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.vllm.given_options import whole_number
from cm4vllm.results.figure_texts import headroom
from cm4vllm.results.figures import Latency
from cm4vllm.results.model import Performance
from cm4vllm.rules import Arrivals

#: Samples of the server's metrics, and requests in them, from which on they say something.
LEAST_SAMPLES, LEAST_REQUESTS = 5, 30
#: The part of a request's time from which on a phase is what binds.
MOST = 0.5
#: The part of its time in which a request of an unpaced run decodes, from which on decoding binds.
MOST_DECODING = 0.7
#: A KV cache that is as full as this is the limit where requests wait; preemptions count from this part of requests on.
FULL, PREEMPTED = 0.95, 0.01
#: The part of the sequences that a server allows from which on they count as all at work.
NEARLY = 0.95
#: The parts of the processors from which on none is idle, and from which on what others take of them binds.
BUSY, TAKEN = 0.95, 0.25
#: The engine does not explain a mean TTFT that is this many times its own queue and prefill, and as many ms more.
UNEXPLAINED, UNEXPLAINED_MS = 2.0, 50.0


class Cause(StrEnum):
    CLIENT = "the client"
    KV_CACHE = "the KV cache"
    QUEUE = "the queue"
    PREFILL = "prefill"
    DECODE = "decoding"
    STEPS = "the server's steps"
    HOST = "what lies around the engine"
    LOAD = "the load"


@dataclass(frozen=True)
class Why:
    """The bottleneck of a run in one sentence, the option that would move it, and its evidence with the source."""

    cause: Cause
    words: str
    option: str
    evidence: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class _Seen:
    """The evidence of a run, complete: `sequences` is the server's --max-num-seqs, None where it is not stated."""

    run: RunRecord
    metrics: ServerMetrics
    queue: Timing
    prefill: Timing
    decode: Timing
    latencies: tuple[Latency, ...]
    source: str

    @property
    def total_ms(self) -> float:
        return self.queue.mean_ms + self.prefill.mean_ms + self.decode.mean_ms

    def share(self, phase: Timing) -> float:
        return phase.mean_ms / self.total_ms

    @property
    def sequences(self) -> int | None:
        return whole_number(self.run.settings.server.options, "max-num-seqs")

    @property
    def all_running(self) -> bool:
        """Return True if about as many requests ran as the server allows: it is sampled between its steps."""
        return self.sequences is not None and self.metrics.running_max >= NEARLY * self.sequences

    @property
    def phases(self) -> tuple[str, ...]:
        names = ("queue", self.queue), ("prefill", self.prefill), ("decode", self.decode)
        return (
            f"of a request's {ms(self.total_ms)} ms in the server: "
            + ", ".join(f"{name} {ms(timing.mean_ms)} ms ({percent(self.share(timing))})" for name, timing in names),
        )

    @property
    def requests(self) -> tuple[str, ...]:
        allowed = f" of {number(self.sequences)} sequences" if self.sequences else ""
        return (
            f"up to {number(self.metrics.running_max)}{allowed} ran at a time, {rate(self.metrics.waiting_mean)} "
            f"requests waited in the mean, {number(self.metrics.waiting_max)} at most",
        )

    @property
    def cache(self) -> tuple[str, ...]:
        return (
            f"the KV cache was {percent(self.metrics.kv_cache_usage_max)} full at most, with "
            f"{number(self.metrics.preemptions)} preemptions",
        )

    @property
    def limits(self) -> tuple[str, ...]:
        return tuple(
            f"{latency.name} p99 {ms(latency.p99)} ms of {number(latency.limit)} ms: {headroom(latency.headroom)}"
            for latency in self.latencies
            if latency.limit is not None and latency.headroom is not None
        )


def why(part: Performance) -> Why | None:
    """Return the cause that bound a performance run; None where the evidence is not enough."""
    seen = _evidence(part)
    if seen is None:
        return None
    return _client(seen) or _machine(seen) or _kv_cache(seen) or _JUDGES[seen.run.settings.terms.arrivals](seen)


def _evidence(part: Performance) -> _Seen | None:
    metrics = part.run.server_metrics if part.run else None
    if part.run is None or metrics is None or metrics.samples < LEAST_SAMPLES:
        return None
    queue, prefill, decode = metrics.queue, metrics.prefill, metrics.decode
    if queue is None or prefill is None or decode is None:
        return None
    seen = _Seen(
        part.run,
        metrics,
        queue,
        prefill,
        decode,
        part.latencies,
        f"{part.beside(RUN_FILE)}: server_metrics, client; {part.log}",
    )
    enough = min(queue.requests, prefill.requests, decode.requests) >= LEAST_REQUESTS
    return seen if enough and seen.total_ms > 0 else None


def _client(seen: _Seen) -> Why | None:
    room = client_headroom(seen.run)
    if room is None or room >= HEADROOM:
        return None
    busiest = max(seen.run.client.processes, key=lambda process: process.cpu_share, default=None)
    used = (
        ()
        if busiest is None
        else (f"its busiest process, {busiest.name}, used {percent(busiest.cpu_share)} of a processor",)
    )
    return Why(
        Cause.CLIENT,
        "The client may have bound this run, not the server.",
        "more client processes (--num_workers), or a host of its own for the client",
        (f"the client can carry {times(room)} the load of this run; {HEADROOM} are needed", *used),
        seen.source,
    )


def _machine(seen: _Seen) -> Why | None:
    """Return that other work took the processors; not where the limits of a paced run left room for it."""
    load = seen.run.machine_load
    if load is None or load.own is None or load.others is None or load.busy + load.stolen < BUSY:
        return None
    if (
        load.others + load.stolen < TAKEN
        or min((latency.headroom or 0.0 for latency in seen.latencies), default=0.0) >= MOST
    ):
        return None
    return Why(
        Cause.HOST,
        "Other work on this machine bound this run: no processor was idle, and server and client had a part of them.",
        "a machine of its own: end the other processes, or take one that is not shared",
        (
            f"of {number(load.processors)} processors server and client used {percent(load.own)}, other processes "
            f"{percent(load.others)}, and the hypervisor gave {percent(load.stolen)} to other machines",
            *seen.phases,
        ),
        seen.source,
    )


def _kv_cache(seen: _Seen) -> Why | None:
    metrics = seen.metrics
    preempted = metrics.preemptions >= max(1.0, PREEMPTED * seen.queue.requests)
    if not preempted and not (metrics.kv_cache_usage_max >= FULL and metrics.waiting_mean >= 1):
        return None
    larger = (
        "--kv_cache_space"
        if "VLLM_CPU_KVCACHE_SPACE" in seen.run.settings.server.env
        else "--gpu_memory_utilization or --kv_cache_dtype=fp8"
    )
    return Why(
        Cause.KV_CACHE,
        "The KV cache bound this run: requests waited for room in it"
        + (", and running ones were preempted and computed again." if preempted else "."),
        f"a larger KV cache ({larger}), or fewer sequences at a time (--max_num_seqs)",
        (*seen.cache, *seen.requests, *seen.phases),
        seen.source,
    )


def _around_the_engine(seen: _Seen) -> Why | None:
    """Return that requests wait for their first token outside of the engine, whose own times do not explain TTFT."""
    ttft = next((latency for latency in seen.latencies if latency.name == "TTFT"), None)
    if ttft is None or ttft.mean is None or ttft.headroom is None or ttft.headroom >= MOST:
        return None
    engine = seen.queue.mean_ms + seen.prefill.mean_ms
    if ttft.mean < UNEXPLAINED * engine + UNEXPLAINED_MS:
        return None
    late = max(
        (lag.p99_ms for process in seen.run.client.processes for lag in (process.issue_lag, process.loop_lag) if lag),
        default=0.0,
    )
    evidence = (
        f"TTFT is {ms(ttft.mean)} ms in the mean, of which {ms(engine)} ms are the engine's queue and prefill",
        f"the client itself was late by {ms(late)} ms (99th percentile)",
        *seen.limits,
    )
    if late >= MOST * ttft.p99:
        return Why(
            Cause.CLIENT,
            "The client bound this run: it was late by most of TTFT.",
            "more client processes (--num_workers), or a host of its own for the client",
            evidence,
            seen.source,
        )
    return Why(
        Cause.HOST,
        "Most of the time to the first token passed outside of the engine: in the server's HTTP "
        "process, on the way to it, or waiting for a processor.",
        "more processors for the server, a host of its own for the client, or a lower --server_target_qps",
        evidence,
        seen.source,
    )


def _at_once(seen: _Seen) -> Why | None:
    """Return the cause that bound a run whose samples all come at its start: their waiting is no finding."""
    working = seen.prefill.mean_ms + seen.decode.mean_ms
    if not working:
        return None
    if seen.prefill.mean_ms / working >= MOST:
        return Why(
            Cause.PREFILL,
            "Reading the prompts (prefill) bound this run.",
            "more tokens in a step (--max_num_batched_tokens)",
            (*seen.phases, *seen.requests),
            seen.source,
        )
    return _decoding(seen) if seen.decode.mean_ms / working >= MOST_DECODING else None


def _decoding(seen: _Seen) -> Why:
    """Return what made the decoding take most of the time, of requests that all came at once."""
    most = seen.run.settings.max_in_flight
    if seen.metrics.running_max >= most and not seen.all_running and seen.metrics.waiting_mean < 1:
        return Why(
            Cause.DECODE,
            "Decoding bound this run, with all the requests at work that the client sends at a time.",
            f"more requests in flight than {number(most)} (--max_in_flight)",
            (*seen.phases, *seen.requests),
            seen.source,
        )
    if seen.all_running and seen.metrics.kv_cache_usage_max < MOST:
        return Why(
            Cause.DECODE,
            "Decoding bound this run, with every sequence that the server allows at work and most of "
            "the KV cache free.",
            "more sequences at a time (--max_num_seqs)",
            (*seen.phases, *seen.requests, *seen.cache),
            seen.source,
        )
    read = seen.metrics.prompt_tokens - seen.metrics.cached_prompt_tokens
    if read > seen.metrics.generation_tokens:
        return Why(
            Cause.STEPS,
            "The time of the server's steps bound this run. A step decodes one token of each running request and reads "
            "prompts of other requests, so their prefill is in the decode time of a request.",
            "a faster step: --tp_size, or --quantization",
            (
                f"the server read {number(read)} prompt tokens and generated {number(seen.metrics.generation_tokens)}",
                *seen.phases,
                *seen.requests,
                *seen.cache,
            ),
            seen.source,
        )
    return Why(
        Cause.DECODE,
        "Decoding bound this run: the time of a step, one token of each running request.",
        "a faster step: --tp_size, or --quantization",
        (*seen.phases, *seen.requests, *seen.cache),
        seen.source,
    )


def _queue(seen: _Seen) -> Why:
    if seen.all_running:
        return Why(
            Cause.QUEUE,
            "Requests waited for a place: every sequence that the server allows was at work.",
            "more sequences at a time (--max_num_seqs), or a lower --server_target_qps",
            (*seen.phases, *seen.requests, *seen.limits),
            seen.source,
        )
    return Why(
        Cause.QUEUE,
        "Requests waited in the server's queue: it was given more than it can serve.",
        "a lower --server_target_qps",
        (*seen.phases, *seen.requests, *seen.limits),
        seen.source,
    )


def _cause_of_paced_run(seen: _Seen) -> Why | None:
    """Return the cause that bound a run whose queries come at their own times."""
    if (cause := _around_the_engine(seen)) is not None:
        return cause
    if seen.share(seen.queue) >= MOST:
        return _queue(seen)
    margins = {latency.name: latency.headroom for latency in seen.latencies if latency.headroom is not None}
    if not margins:
        return None
    if min(margins.values()) >= MOST and seen.metrics.waiting_mean < 1:
        return Why(
            Cause.LOAD,
            "Nothing in the server bound this run: it was given less than it can serve.",
            "a higher --server_target_qps",
            (*seen.limits, *seen.requests),
            seen.source,
        )
    tightest = min(margins, key=lambda name: margins[name])
    if tightest == "TTFT" and seen.prefill.mean_ms > seen.queue.mean_ms:
        return Why(
            Cause.PREFILL,
            "Reading the prompts (prefill) bound this run: TTFT is nearest to its limit, and "
            "prefill is the greater part of it.",
            "a lower --server_target_qps, or more tokens in a step (--max_num_batched_tokens)",
            (*seen.limits, *seen.phases),
            seen.source,
        )
    if tightest == "TPOT" and seen.share(seen.decode) >= MOST:
        return Why(
            Cause.DECODE,
            "Decoding bound this run: TPOT is nearest to its limit, and most of a request's time is decoding.",
            "fewer sequences at a time (--max_num_seqs), or a lower --server_target_qps",
            (*seen.limits, *seen.phases, *seen.requests),
            seen.source,
        )
    return None


def _one_by_one(seen: _Seen) -> Why | None:
    """Return the phase in which a request spends its time where there is never more than one."""
    if seen.share(seen.prefill) >= MOST:
        return Why(
            Cause.PREFILL,
            "Reading the prompt (prefill) is most of the time of a request, and there is one at a time.",
            "a faster prefill: --tp_size, or --quantization",
            seen.phases,
            seen.source,
        )
    if seen.share(seen.decode) >= MOST:
        return Why(
            Cause.DECODE,
            "Decoding is most of the time of a request, and there is one at a time.",
            "a faster step: --tp_size, or --quantization",
            seen.phases,
            seen.source,
        )
    return None


_JUDGES: Mapping[Arrivals, Callable[[_Seen], Why | None]] = {
    Arrivals.AT_ONCE: _at_once,
    Arrivals.POISSON: _cause_of_paced_run,
    Arrivals.ONE_BY_ONE: _one_by_one,
}

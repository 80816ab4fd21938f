"""The load of a point by its own figures: requests in flight, and the tokens that fit into their time.

By Little's law the mean number of requests in flight is the sum of all latencies divided by the time of the run. The
client issues a request only where fewer than its concurrency are in flight, and its time ends with the last answer.
"""

from collections.abc import Iterator

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.endpoints.curves import Curve, Point
from cm4vllm.results.endpoints.endpoints_harness import count, number, part
from cm4vllm.results.endpoints.summary_figures import sum_of, values_of

_SOURCE = "Little's law, and metrics_table.py of the reference client; not checked officially"
_AGAIN = "publish the summary as the client wrote it, or measure the point again"
#: The part by which the mean may be above the concurrency: a time may have three digits.
_ROUNDED = 0.01
#: The least part of the concurrency that a run keeps in flight between its beginning and its end.
_LEAST_PART = 0.5
#: The least part of all requests that are in flight on average where all are issued at once: half of them, where a
#: server answers as many in each second, and fewer where few answers are very long.
_LEAST_AT_ONCE = 0.1
#: The part by which the client's count of tokens may be above the server's, and tokens that a template adds: it counts
#: the tokens of the text, with the words around parts of it.
_COUNTED_AGAIN, _TEMPLATE = 1.1, 16
#: The part by which times per token may differ from the answers' time, since the mean of answers weighs each alike; up
#: to the larger part it is doubtful, as first pieces may hold several tokens.
_PIECES, _WEIGHT = 1.5, 1.6


@check("POINT-CONCURRENCY", source=_SOURCE, remedy=_AGAIN, stage=Stage.CURVE, each=whole)
def requests_in_flight(curve: Curve) -> Iterator[Fault]:
    """The latencies, samples and time of a run are those of the declared requests in flight."""
    for point in curve.points:
        total, duration = sum_of(point.summary, "latency"), number(point.summary, "duration_ns")
        issued, pattern = point.samples_issued, _pattern(point)
        limit = issued if pattern == "max_throughput" else point.concurrency
        if not total or not duration or not limit or not issued:
            continue
        mean, field = total / duration, "latency.total / duration_ns"
        # Slots are empty before the first request of each and after the last: at most a latency of the longest run.
        kept = _LEAST_AT_ONCE if pattern == "max_throughput" else _LEAST_PART * issued / (issued + limit)
        if mean > limit * (1 + _ROUNDED):
            wrong = "more requests were in flight than the concurrency allows"
            yield Fault(wrong, point.name, field, f"{mean:.6g}", f"{limit:,} at most")
        elif mean < limit * kept and pattern != "agentic_inference":
            wrong = "the declared concurrency was not reached"
            expected = f"{limit * kept:.6g} at least of {limit:,}"
            yield Fault(wrong, point.name, field, f"{mean:.6g}", expected, severity=Severity.WARNING)


@check(
    "POINT-TOKENS",
    source="metrics_table.py of the reference client: TPOT is the time after the first piece over the tokens in it",
    remedy=_AGAIN,
    stage=Stage.CURVE,
    each=whole,
)
def possible_tokens(curve: Curve) -> Iterator[Fault]:
    """The answers have no more output tokens than were asked for, and than times per token and latencies allow."""
    for point in curve.points:
        yield from _asked_for(point, curve)
        yield from _in_time(point)


@check(
    "CURVE-PROMPTS",
    source="§4.3: one dataset; each pass over it has the same prompts; not checked officially",
    remedy="measure all points with the same dataset and tokenizer",
    stage=Stage.CURVE,
    each=whole,
)
def same_prompts(curve: Curve) -> Iterator[Fault]:
    """The prompts have the same mean length at all points."""
    means = [
        (point, mean)
        for point in curve.points
        if (mean := number(part(point.summary, "input_sequence_lengths"), "avg"))
    ]
    yield from (
        Fault(
            f"the prompts have another mean length than at {means[0][0].name}",
            point.name,
            "input_sequence_lengths.avg",
            f"{mean:.6g}",
            f"{means[0][1]:.6g}",
        )
        for point, mean in means[1:]
        if abs(mean - means[0][1]) > _ROUNDED * max(mean, means[0][1])
    )


def _pattern(point: Point) -> str:
    """Return the load pattern that the client ran; what is declared where its configuration does not state one."""
    used = part(part(point.config, "settings"), "load_pattern").get("type")
    declared = part(point.declared, "runtime_settings").get("load_pattern")
    return next((value for value in (used, declared) if isinstance(value, str)), "")


def _asked_for(point: Point, curve: Curve) -> Iterator[Fault]:
    """Compare output tokens with the most that each request asks for."""
    benchmark = curve.benchmark
    stated = count(part(point.config, "model_params"), "max_new_tokens")
    most = benchmark.max_tokens if benchmark and benchmark.max_tokens else stated
    lengths, samples = part(point.summary, "output_sequence_lengths"), count(point.summary, "n_samples_completed")
    if not most or not samples:
        return
    longest = most * _COUNTED_AGAIN + _TEMPLATE
    for key, value in (("total", number(lengths, "total")), ("max", number(lengths, "max"))):
        limit = longest * samples if key == "total" else longest
        if value is not None and value > limit:
            wrong = "the answers have more tokens than were asked for"
            yield Fault(wrong, point.name, f"output_sequence_lengths.{key}", f"{value:.15g}", f"{limit:.6g} at most")


def _in_time(point: Point) -> Iterator[Fault]:
    """Compare the time after the first pieces of all answers with the times per token and the tokens in it."""
    tpot, tokens = part(point.summary, "tpot"), number(part(point.summary, "output_sequence_lengths"), "total")
    whole_time, first = sum_of(point.summary, "latency"), sum_of(point.summary, "ttft")
    answers, least, mean, most = values_of(tpot), *(number(tpot, key) for key in ("min", "avg", "max"))
    if not tokens or not whole_time or first is None or not answers or count(point.summary, "n_samples_failed"):
        return
    time, field = whole_time - first, "output_sequence_lengths.total"
    after_first = max(tokens - answers, 0.0)
    if least and after_first * least > _PIECES * max(time, 0.0):
        expected = f"{_PIECES * max(time, 0.0) / least + answers:.6g} at most"
        yield Fault(
            "the answers have more tokens than their time allows", point.name, field, f"{tokens:.15g}", expected
        )
    elif most and time > _COUNTED_AGAIN * most * tokens:
        expected = f"{time / tokens:.6g} at least, the time after first tokens over all tokens"
        yield Fault("the times per token are shorter than the answers", point.name, "tpot.max", f"{most:.6g}", expected)
    elif mean and after_first and not 1 / _WEIGHT <= time / (mean * after_first) <= _WEIGHT:
        wrong = "the mean time per token does not make up the answers' time"
        expected = f"about {time / after_first:.6g}"
        yield Fault(wrong, point.name, "tpot.avg", f"{mean:.6g}", expected, severity=Severity.WARNING)

"""The load of a point by its own figures: requests in flight, and the tokens that fit into their time.

By Little's law the mean number of requests in flight is the sum of all latencies divided by the time of the run. The
client issues a request only where fewer than its concurrency are in flight, and its time ends with the last answer.
"""

from collections.abc import Iterator
from statistics import median

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.endpoints.curves import Curve, Point
from cm4vllm.results.endpoints.endpoints_harness import count, number, part
from cm4vllm.results.endpoints.summary_figures import sum_of, values_of
from cm4vllm.rules import EndpointsBenchmark

_SOURCE = "Little's law, and metrics_table.py of the reference client; not checked officially"
_AGAIN = "publish the summary as the client wrote it, or measure the point again"
#: The part by which the mean may be above the concurrency: a time may have three digits.
_ROUNDED = 0.01
#: The part by which the mean length of greedy answers may differ between two runs: batches change the rounding of sums,
#: and with it some tokens (in 800 published results of MLPerf Inference, 1.8 %).
_GREEDY = 0.04
#: The least part of the concurrency that a run keeps in flight until the last request is issued.
_LEAST_PART = 0.5
#: The least part of all requests that are in flight on average where all are issued at once: half of them, where a
#: server answers as many in each second, and fewer where few answers are very long.
_LEAST_AT_ONCE = 0.1
#: The part by which the client's count of tokens may be above the server's, and tokens that a template adds: it counts
#: the tokens of the text, with the words around parts of it.
_COUNTED_AGAIN, _TEMPLATE = 1.1, 16
#: The part of all samples whose answer has tokens.
_ANSWERED = 0.9
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
        # Once the last request is issued, fewer and fewer are in flight, for as long as the longest answer takes.
        longest = number(part(point.summary, "latency"), "max") or 0.0
        part_kept = _LEAST_PART * max(0.0, 1 - longest / duration)
        kept = _LEAST_AT_ONCE if pattern == "max_throughput" else part_kept
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
    benchmark = curve.measurable
    for point in curve.points:
        yield from _asked_for(point, benchmark) if benchmark else ()
        yield from _in_time(point, doubtful=benchmark is not None)


@check(
    "CURVE-LENGTHS",
    source="§4.3: one model and one dataset; each pass over it has the same prompts; not checked officially",
    remedy="measure all points, and their accuracy runs, with the same dataset, tokenizer, model and parameters",
    stage=Stage.CURVE,
    each=whole,
)
def same_lengths(curve: Curve) -> Iterator[Fault]:
    """Prompts have the same mean length at all points, and so have answers of greedy sampling, scored ones included."""
    yield from _lengths(_means(curve, "input_sequence_lengths"), _ROUNDED, "the prompts", None)
    benchmark = curve.measurable
    if benchmark is not None and benchmark.temperature == 0:
        answers = _means(curve, "output_sequence_lengths")
        one_dataset = benchmark.performance.name in {dataset.name for dataset in benchmark.scored}
        scored = [
            (point.accuracy_file, mean)
            for point in curve.points
            for entry in point.accuracy or ()
            if one_dataset and (mean := number(part(entry, "output_sequence_lengths"), "avg"))
        ]
        yield from _lengths([*answers, *scored], _GREEDY, "the answers", Severity.WARNING)


def _means(curve: Curve, name: str) -> list[tuple[str, float]]:
    """Return the mean of a distribution at each point that states it, after the point's name."""
    return [(point.name, mean) for point in curve.points if (mean := number(part(point.summary, name), "avg"))]


def _lengths(
    means: list[tuple[str, float]], tolerance: float, subject: str, severity: Severity | None
) -> Iterator[Fault]:
    """Compare mean lengths with the middle one of all."""
    middle = median(mean for _, mean in means) if means else 0.0
    for place, mean in means:
        if abs(mean - middle) > tolerance * max(mean, middle):
            wrong, field = f"{subject} have another mean length than at other points", "sequence lengths, avg"
            yield Fault(wrong, place, field, f"{mean:.6g}", f"about {middle:.6g}", severity=severity)


def _pattern(point: Point) -> str:
    """Return the load pattern that the client ran; what is declared where its configuration does not state one."""
    used = part(part(point.config, "settings"), "load_pattern").get("type")
    declared = part(point.declared, "runtime_settings").get("load_pattern")
    return next((value for value in (used, declared) if isinstance(value, str)), "")


def _asked_for(point: Point, benchmark: EndpointsBenchmark) -> Iterator[Fault]:
    """Compare output tokens with the most that each request asks for, and find answers without any."""
    lengths, samples = part(point.summary, "output_sequence_lengths"), count(point.summary, "n_samples_completed") or 0
    longest = benchmark.max_tokens * _COUNTED_AGAIN + _TEMPLATE
    for key, limit in (("total", longest * samples), ("max", longest)):
        value = number(lengths, key)
        if value is not None and samples and value > limit:
            wrong = "the answers have more tokens than were asked for"
            yield Fault(wrong, point.name, f"output_sequence_lengths.{key}", f"{value:.15g}", f"{limit:.6g} at most")
    answers, least = values_of(lengths), _ANSWERED * samples - (count(point.summary, "n_samples_failed") or 0)
    if answers is not None and answers < least:
        expected = f"{least:.0f} at least, of {samples}"
        yield Fault("many answers are empty", point.name, "output_sequence_lengths.histogram", answers, expected)


def _in_time(point: Point, *, doubtful: bool) -> Iterator[Fault]:
    """Compare the time after the first pieces of all answers with the times per token and the tokens in it.

    It is known where each answer has a first piece. A mean that is only `doubtful` is a fault where that is asked for.
    """
    tpot, lengths = part(point.summary, "tpot"), part(point.summary, "output_sequence_lengths")
    tokens, answers = number(lengths, "total"), values_of(lengths)
    whole_time, first = sum_of(point.summary, "latency"), sum_of(point.summary, "ttft")
    least, mean, most = (number(tpot, key) for key in ("min", "avg", "max"))
    samples = {values_of(part(point.summary, name)) for name in ("latency", "ttft")}
    if not tokens or not whole_time or first is None or not answers or len(samples) > 1:
        return
    time, field = max(whole_time - first, 0.0), "output_sequence_lengths.total"
    after_first = max(tokens - answers, 0.0)  # each answer has a token in its first piece
    if least and after_first * least > _PIECES * time:
        wrong, expected = (
            "the answers have more tokens than their time allows",
            f"{_PIECES * time / least + answers:.6g}",
        )
        yield Fault(wrong, point.name, field, f"{tokens:.15g}", f"{expected} at most")
    elif most and time > _COUNTED_AGAIN * most * tokens:
        expected = f"{time / tokens:.6g} at least, the time after first tokens over all tokens"
        yield Fault("the times per token are shorter than the answers", point.name, "tpot.max", f"{most:.6g}", expected)
    elif doubtful and mean and after_first and not 1 / _WEIGHT <= time / (mean * after_first) <= _WEIGHT:
        fault = ("the mean time per token does not make up the answers' time", point.name, "tpot.avg", f"{mean:.6g}")
        yield Fault(*fault, f"about {time / after_first:.6g}", severity=Severity.WARNING)

"""Writes figures, targets and counts of results as text, in the same way on every page."""

from collections.abc import Iterator, Sequence

from cm4vllm.common.number_texts import ms, number, percent, qps, rate
from cm4vllm.records.run import RunRecord
from cm4vllm.records.server import Prompts, counting
from cm4vllm.results.figures import Figure
from cm4vllm.results.model import Performance

#: LoadGen's estimates of percentiles by early stopping, in SingleStream and in MultiStream.
_METRICS = {
    "early_stopping_latency_ss": "latency p90, early stopping",
    "early_stopping_latency_ms": "latency p99, early stopping",
}


def target_name(part: Performance) -> str:
    """Return the target that LoadGen was given for a run."""
    return "Expected latency" if part.one_by_one else "Target QPS"


def target_value(part: Performance) -> str:
    """Write the target that LoadGen was given for a run: a rate, or the latency that it expects."""
    return (
        f"{ms(1000 / part.target_qps)} ms"
        if part.one_by_one and part.target_qps
        else f"{qps(part.target_qps)} samples/s"
    )


def figure(measured: Figure | None) -> str:
    """Write a figure with its unit, or `not measured`."""
    return "not measured" if measured is None else f"{rate(measured.value)} {measured.unit}".rstrip()


def result_figure(measured: Figure | None) -> str:
    """Write the figure by which results are compared, with its unit, and with its name where the unit does not tell."""
    return (
        figure(measured)
        if measured is None or measured.unit.endswith("/s")
        else f"{figure(measured)} ({measured.name.replace('_', ' ')})"
    )


def metric_words(name: str, unit: str) -> str:
    """Write the metric of a figure with its unit: `tokens/s`, or `latency p90, ms`."""
    return unit if name.endswith("per_second") else f"{metric_name(name)}, {unit}"


def metric_name(name: str) -> str:
    """Write the name of a figure: `latency p90`, also of LoadGen's estimate by early stopping."""
    return _METRICS.get(name) or name.replace("_", " ")


def headroom(fraction: float) -> str:
    """Return how much of a limit is left, or by how much it is exceeded."""
    if fraction == 0:
        return "none left"
    return f"{percent(fraction)} left" if fraction > 0 else f"exceeded by {percent(-fraction)}"


def judgement(met: bool | None) -> str:
    """Return in words whether a target is met; None for a total over the whole dataset if only a part was scored."""
    if met is None:
        return "not judged on a part"
    return "met" if met else "not met"


def target(lower: float | None, upper: float | None) -> str:
    """Write an accuracy target with the bounds that it has."""
    bounds = ("≥", lower), ("≤", upper)
    return " and ".join(f"{sign} {number(bound)}" for sign, bound in bounds if bound is not None)


def counting_words(runs: Sequence[RunRecord]) -> str:
    """Return in words how token ids and counts of these runs' answers were obtained, and how far two counts differ."""
    sentences = counting(runs[0].settings.server)
    for run in runs:
        sentences += _text_counts(run)
        if (lag := run.client.end_lag_ms) is not None:
            sentences.append(
                f"In the {run.settings.title} run an answer ended {ms(lag)} ms after its last token (median of a few)."
            )
    return " ".join(sentences)


def _text_counts(run: RunRecord) -> Iterator[str]:
    """Yield in sentences how a server that gives text counted the answers and the prompts of a run."""
    client, dialect = run.client, run.settings.server.dialect
    text = client.text
    if text is None or dialect is None:
        return
    if text.difference is not None:
        more = (
            f", where it counts {text.format_tokens} tokens more in most of them, which are in no text"
            if text.format_tokens
            else ""
        )
        yield (
            f"In the {run.settings.scenario} {run.settings.mode} run both counts differ by "
            f"{percent(text.difference)} over {number(text.answers)} answers{more}."
        )
    if dialect.prompts is Prompts.TEXT and text.prompts_changed:
        yield (
            f"Of its prompts {number(text.prompts_changed)} are other token ids than the dataset's "
            "when their text is read."
        )
    if dialect.usage and dialect.prompts in (Prompts.TEXT, Prompts.CHAT):
        counted, sent = client.server_prompt_tokens, client.prompt_tokens
        if text.prompt_tokens:  # of an earlier version
            counted, sent = text.server_prompt_tokens, text.prompt_tokens
        each = f", {client.more_words}" if client.more_words else ""
        yield (
            f"The server counts {number(counted)} tokens of prompts there{each}; those that were sent have "
            f"{number(sent)}."
        )

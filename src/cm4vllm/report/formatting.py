"""Formats numbers, commands and folders as text, in the same way on every page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from cm4vllm.common.command_lines import published_command, published_words, shell_line
from cm4vllm.common.redaction import variable
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.results.figures import Figure
from cm4vllm.results.model import Performance
from cm4vllm.serving.containers.server_container import published_run
from cm4vllm.serving.published_server import hosts_of, server_words
from cm4vllm.serving.records import Prompts, ServerRecord
from cm4vllm.serving.text_servers import counting

__all__ = [
    "counting_words",
    "figure",
    "headroom",
    "judgement",
    "metric_name",
    "metric_words",
    "ms",
    "number",
    "percent",
    "qps",
    "rate",
    "result_figure",
    "seconds",
    "server_command",
    "target",
    "target_name",
    "target_value",
    "times",
    "typed_command",
    "when",
]


#: LoadGen's estimates of percentiles by early stopping, in SingleStream and in MultiStream.
_METRICS = {
    "early_stopping_latency_ss": "latency p90, early stopping",
    "early_stopping_latency_ms": "latency p99, early stopping",
}


def number(value: float | int) -> str:
    """Write a number with thousands separated: whole numbers whole, others with their significant digits."""
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.10g}" if abs(value) >= 1 else f"{value:.4g}"


def times(value: float | None) -> str:
    """Write a ratio, or `unknown`."""
    return "unknown" if value is None else f"{value:,.1f} times"


def qps(value: float) -> str:
    """Write a target QPS: as many digits as matter to anybody who sets it again."""
    return f"{value:,.6g}"


def target_name(part: Performance) -> str:
    """Return the target that LoadGen was given for a run."""
    return "Expected latency" if part.one_by_one else "Target QPS"


def target_value(part: Performance) -> str:
    """Write the target that LoadGen was given for a run: a rate, or the latency that it expects."""
    if part.one_by_one and part.target_qps:
        return f"{ms(1000 / part.target_qps)} ms"
    return f"{qps(part.target_qps)} samples/s"


def rate(value: float) -> str:
    """Write a rate: two decimals, or three significant digits below one a second."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.3g}"


def figure(measured: Figure | None) -> str:
    """Write a figure with its unit, or `not measured`."""
    return "not measured" if measured is None else f"{rate(measured.value)} {measured.unit}".rstrip()


def result_figure(measured: Figure | None) -> str:
    """Write the figure by which results are compared, with its unit, and with its name where the unit does not tell."""
    if measured is None or measured.unit.endswith("/s"):
        return figure(measured)
    return f"{figure(measured)} ({measured.name.replace('_', ' ')})"


def metric_words(name: str, unit: str) -> str:
    """Write the metric of a figure with its unit: `tokens/s`, or `latency p90, ms`."""
    return unit if name.endswith("per_second") else f"{metric_name(name)}, {unit}"


def metric_name(name: str) -> str:
    """Write the name of a figure: `latency p90`, also of LoadGen's estimate by early stopping."""
    return _METRICS.get(name) or name.replace("_", " ")


def ms(value: float) -> str:
    """Write milliseconds: as many decimals as say something."""
    if value < 1:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """Write a duration in seconds, and from two minutes on also in minutes."""
    plain = f"{value:,.1f} s" if value >= 1 or value == 0 else f"{value:.3g} s"
    return plain if value < 120 else f"{plain} ({value / 60:,.1f} min)"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with one decimal, or with more where one would make it all or nothing."""
    for digits in (1, 2, 3):
        text = f"{fraction * 100:.{digits}f}"
        if float(text) not in (0, 100) or fraction in (0, 1):
            break
    return f"{text}%"


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


def when(moment: str) -> str:
    """Write a recorded time (ISO 8601) to the minute, in UTC."""
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


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
            f", where it counts {text.format_tokens} tokens more in each, which are in no text"
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


def server_command(server: ServerRecord, model_path: str) -> str:
    """Write the server's command as `server_words` returns it, one flag a line; empty for a server that already ran."""
    env, words = server_words(server, model_path)
    return shell_line(words, env)


def container_command(server: ServerRecord, model_path: str) -> str:
    """Write the command of the engine that ran the server's command in a container, with the same variables."""
    if server.container is None:
        return ""
    words = published_run(server.container, server.argv)
    if model_path:  # in a mount it is not a word of its own
        words = [word.replace(model_path, variable("MODEL")) for word in words]
    return shell_line(published_words(words, {model_path: "MODEL"}, hosts_of(server)))


def typed_command(command: str, server: ServerRecord) -> str:
    """Write the command that was typed, one flag a line, with variables for what is only known where it was typed."""
    return published_command(command, hosts=hosts_of(server))

"""Results that the endpoints harness of MLCommons measured, read into the model: they have no log of LoadGen.

A value of another type than is asked for counts as missing.

What is read where is that of the official checker (tools/submission/submission_checker, ENDPOINTS_MAPPINGS): limits are
compared with the percentiles of early stopping, seeds and the minimum duration are those of config.yaml.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from cm4vllm.common.units import Milliseconds, Quantity, Samples, SamplesPerSecond, Seconds, TokensPerSecond
from cm4vllm.records.logs.impossible_values import ImpossibleValue, value_out_of_range, values_out_of_order
from cm4vllm.results.figures import Figure, Figures, Source
from cm4vllm.results.log_folders import SCORE_UNITS, Reader
from cm4vllm.results.model import Accuracy, Performance
from cm4vllm.rules import Terms

ENDPOINTS = "endpoints"
SUMMARY = Path("performance") / "result_summary.json"
SCORES = Path("accuracy") / "accuracy_results.json"
_CONFIG = "config.yaml"
_NS = 1e6
_STATISTICS = {"min": "min", "max": "max", "mean": "avg"}
#: Figures that are above 0 in each run that answered anything.
_POSITIVE = ("n_samples_completed", "duration_ns", "qps", "tps")
#: The distributions of a summary, and the percentile from which on values are above 0: the least time per output token
#: is 0 where an answer came in one piece, and many answers may be empty.
_DISTRIBUTIONS = {
    "ttft": 0.0,
    "latency": 0.0,
    "tpot": 50.0,
    "output_sequence_lengths": 100.0,
    "input_sequence_lengths": 100.0,
}
#: The client may stamp the first piece of an answer a little after its end, where both come together: the time after
#: the first piece is below 0 then.
_STAMPED_LATE = {"tpot"}
#: The part by which a time to the first piece may exceed that of the whole answer for this reason.
_LATE = 0.01
#: The part by which a mean of equal values may differ from them.
_ROUNDED = 1e-9
_PERCENTILES = (50, 90, 95, 97, 99, 99.9)
#: No figure is larger; NaN is not smaller.
_LARGEST = 1e30


def is_endpoints(folder: Path) -> bool:
    """Return True if the result in `folder` was measured by the endpoints harness."""
    return (folder / SUMMARY).is_file()


def read_endpoints_performance(reader: Reader, folder: Path, scenario: str) -> Performance | None:
    """Read the performance run of the result in `folder`; None, and a problem, where its summary cannot be read."""
    summary, config = reader.json(folder / SUMMARY), reader.yaml(folder / _CONFIG)
    if not summary:
        return None
    return replace(
        endpoints_performance(summary, config, reader.name(folder / SUMMARY), scenario), folder=folder / SUMMARY.parent
    )


def endpoints_performance(
    summary: Mapping[str, Any], config: Mapping[str, Any], name: str, scenario: str
) -> Performance:
    """Return the performance run of a summary, whose file is called `name`, and of the harness's configuration."""
    figures = Figures(Figure(key, value, value.unit, Source(name, field)) for key, value, field in _figures(summary))
    reasons, kind = tuple(_reasons(summary)), str(config.get("type", ""))
    return Performance(
        log=name,
        loadgen_scenario=_scenario(kind, scenario),
        loadgen_version=f"{ENDPOINTS} {summary.get('version', '')}".strip(),
        loadgen_valid=not reasons,
        loadgen_reasons=reasons,
        figures=figures,
        settings=_settings(config),
        harness=ENDPOINTS,
    )


def read_endpoints_accuracy(reader: Reader, folder: Path, terms: Terms | None) -> Accuracy | None:
    """Read the scores of the result in `folder`; None, and a problem, where they cannot be read.

    The harness gives one score: it gets the label of the benchmark's only score with a target, `score` where it has
    several.
    """
    scores = reader.json(folder / SCORES).get("accuracy_scores")
    if not isinstance(scores, list):
        return None
    own = [entry for entry in scores if isinstance(entry, dict) and entry.get("dataset_type") == "accuracy"]
    name = reader.name(folder / SCORES)
    targets = terms.targets if terms else ()
    labels = [target.label for target in targets if target.lower is not None and target.label not in SCORE_UNITS]
    label = labels[0] if len(labels) == 1 else "score"
    figures = [
        Figure(label, score, "", Source(name, "accuracy_scores.score"))
        for entry in own
        if (score := number(entry, "score")) is not None
    ]
    label, lengths = "tokens_per_sample", [number(entry.get("output_sequence_lengths"), "avg") for entry in own]
    figures += [
        Figure(label, length, SCORE_UNITS[label], Source(name, "output_sequence_lengths.avg"))
        for length in lengths[:1]
        if length is not None
    ]
    counts = [int(count) for entry in own if (count := number(entry, "total_samples")) is not None]
    return Accuracy(
        folder=folder / SCORES.parent,
        log=name,
        figures=Figures(figures),
        terms=terms,
        settings={"accuracy_sample_count": sum(counts)} if counts else {},
    )


def _scenario(kind: str, scenario: str) -> str:
    """Return LoadGen's name of what was run: requests at once are Offline's, those on line the folder's."""
    if kind == "offline":
        return "Offline"
    return {"Interactive": "Server", "Offline": "Server"}.get(scenario, scenario) if kind == "online" else scenario


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = part(config, "settings")
    runtime, pattern = part(settings, "runtime"), part(settings, "load_pattern")
    values = {
        "min_duration_ms": runtime.get("min_duration_ms"),
        "target_qps": pattern.get("target_qps"),
        "sample_index_rng_seed": runtime.get("dataloader_random_seed"),
        "schedule_rng_seed": runtime.get("scheduler_random_seed"),
    }
    return {key: value for key, value in values.items() if isinstance(value, int | float)}


def _figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, Quantity, str]]:
    """Yield the name of each figure, its value and the field that it was read from."""
    yield from (
        (name, unit(value / divisor), field)
        for name, field, unit, divisor in (
            ("samples", "n_samples_completed", Samples, 1.0),
            ("samples_per_second", "qps", SamplesPerSecond, 1.0),
            ("tokens_per_second", "tps", TokensPerSecond, 1.0),
            ("duration", "duration_ns", Seconds, 1e9),
        )
        if (value := number(summary, field)) is not None
    )
    yield from times(summary, ("early_stopping_percentiles", "percentiles"))


def times(summary: Mapping[str, Any], kinds: Sequence[str]) -> Iterator[tuple[str, Milliseconds, str]]:
    """Yield name, value and field of the times in a summary of the reference client: ttft_p90, tpot_mean, latency_max.

    `kinds` are the objects that have percentiles: of several the first that has one decides.
    """
    for name in ("ttft", "tpot", "latency"):
        of_name = part(summary, name)
        yield from (
            (f"{name}_{statistic}", Milliseconds(value / _NS), f"{name}.{key}")
            for statistic, key in _STATISTICS.items()
            if (value := number(of_name, key)) is not None
        )
        for percent in _PERCENTILES:
            # Versions of the client spell the key of a percentile differently.
            for kind, key in product(kinds, (f"{percent:.1f}", f"{percent:g}")):
                if (value := number(of_name.get(kind), key)) is not None:
                    yield f"{name}_p{percent:g}", Milliseconds(value / _NS), f"{name}.{kind}.{key}"
                    break


def impossible_in_summary(summary: Mapping[str, Any]) -> Iterator[ImpossibleValue]:
    """Yield the values in a summary of the reference client that no run has."""
    yield from (
        ImpossibleValue("a figure is not above 0", key, value, "more than 0")
        for key in _POSITIVE
        if (value := _stated_number(summary, key)) is not None and not value > 0
    )
    for name, positive in _DISTRIBUTIONS.items():
        yield from _disorder(name, part(summary, name), positive)
    first, whole = (_stated_number(part(summary, name), "max") for name in ("ttft", "latency"))
    if first and whole and first > whole * (1 + _LATE):
        yield ImpossibleValue("first tokens come after whole answers", "ttft.max", first, f"{whole:.15g} or less")


def _disorder(name: str, stated: Mapping[str, Any], positive: float) -> Iterator[ImpossibleValue]:
    """Compare the values of a distribution with 0 and with each other; they are above 0 from this percentile on."""
    least, largest = _numbers(stated, name, {"min": 0.0}), _numbers(stated, name, {"max": 100.0})
    means = _numbers(stated, name, {"median": 50.0, "avg": 100.0})
    kinds = [(f"{name}.{kind}", part(stated, kind)) for kind in ("percentiles", "early_stopping_percentiles")]
    percentiles = [
        _numbers(listed, kind, {key: float(key) for key in listed if key.replace(".", "", 1).isdecimal()})
        for kind, listed in kinds
    ]
    yield from (
        ImpossibleValue("a figure is not above 0", key, value, "more than 0")
        for percent, key, value in chain(least, *percentiles, means, largest)
        if (value < 0 and name not in _STAMPED_LATE) or (value <= 0 and percent >= positive)
    )
    for listed in percentiles:
        yield from values_out_of_order([(key, value) for _, key, value in (*least, *listed, *largest)])
    for (_, _, low), (_, key, value), (_, _, high) in product(least, means, largest):
        yield from value_out_of_range("a mean", key, value, low * (1 - _ROUNDED), high * (1 + _ROUNDED))


def _numbers(content: Mapping[str, Any], name: str, percents: Mapping[str, float]) -> list[tuple[float, str, float]]:
    """Return the numbers of these keys in the order of their percentiles: percentile, key with `name`, value."""
    return sorted(
        (percent, f"{name}.{key}", value)
        for key, percent in percents.items()
        if (value := _stated_number(content, key)) is not None
    )


def _stated_number(content: Mapping[str, Any], key: str) -> float | None:
    """Return a number of any sign; None where it is missing."""
    value = content.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _reasons(summary: Mapping[str, Any]) -> Iterator[str]:
    yield from map(str, impossible_in_summary(summary))
    if summary.get("complete") is False:
        yield f"the run was not completed: its state is {summary.get('state', 'unknown')}"
    if failed := number(summary, "n_samples_failed"):
        yield f"{failed:,.0f} samples failed"
    issued, completed = number(summary, "n_samples_issued"), number(summary, "n_samples_completed")
    if issued is not None and completed is not None and completed + (failed or 0) < issued:
        yield f"{issued - completed - (failed or 0):,.0f} samples were issued and not completed"


def part(content: object, key: str) -> Mapping[str, Any]:
    """Return the object inside an object; empty where it is missing."""
    value = content.get(key) if isinstance(content, Mapping) else None
    return value if isinstance(value, dict) else {}


def number(content: object, key: str) -> float | None:
    """Return a finite number of at least 0; None where it is missing."""
    return magnitude(content.get(key) if isinstance(content, Mapping) else None)


def magnitude(value: object) -> float | None:
    """Return a value that is a finite number of at least 0; None for any other."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        return None
    return float(value)


def count(content: object, key: str) -> int | None:
    """Return a whole number of at least 0; None where it is missing."""
    value = content.get(key) if isinstance(content, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

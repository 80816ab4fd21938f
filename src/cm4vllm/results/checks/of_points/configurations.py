"""The configuration that the client wrote, against the point that is declared, its benchmark and its summary."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.endpoints.curves import Curve, Point
from cm4vllm.results.endpoints.endpoints_harness import count, number, part
from cm4vllm.rules import EndpointsBenchmark

#: The load patterns that keep a number of requests in flight (§6.1; agentic benchmarks have their own).
_FIXED = ("concurrency", "agentic_inference")
_OFFLINE = ("max_throughput", *_FIXED)
#: Parameters of a request that must be stated, by the client's names: a server has its own defaults.
_REQUIRED = ("temperature", "max_new_tokens")
#: Values of parameters that leave answers as the model makes them.
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "osl_distribution": None}
#: The parts of the configuration that the client writes into its summary.
_LOAD = ("type", "target_concurrency")
_WARM_UP = ("enabled", "n_requests", "salt")
_SEEDS = ("scheduler_random_seed", "dataloader_random_seed")
_WORD = re.compile(r"[a-z]{3,}", re.ASCII)


@check(
    "POINT-CONFIG",
    source="§6.1, §8.3: config.yaml is what the harness ran; the official checker takes any mapping",
    remedy="publish the config.yaml that the client wrote of this run, and declare what it ran",
    stage=Stage.CURVE,
    each=whole,
)
def same_configuration(curve: Curve) -> Iterator[Fault]:
    """The client ran what the point declares: concurrency, load pattern, streaming, model, dataset and generation."""
    for point in curve.points:
        for name, content in (("point.yaml", point.declared), ("config.yaml", point.config)):
            if not content and (point.folder / name).is_file():
                yield Fault("the file states nothing", f"{point.name}/{name}", "", "no mapping, or an empty one")
        if point.config:
            yield from _load(point)
            yield from _streaming(point)
            yield from _warm_up(point)
            yield from _recorded(point)
            yield from _same_requests(point, curve.points[0]) if curve.points[0].config else ()
            if (benchmark := curve.measurable) is not None:
                yield from _model(point, benchmark, [entry.name for entry in curve.rules.benchmarks])
                yield from _dataset(point, benchmark)
                yield from _generation(point, benchmark)


def datasets_of(point: Point, kind: str) -> list[Mapping[str, Any]]:
    """Return the datasets in the client's configuration that it measured with (performance) or scored (accuracy)."""
    listed = point.config.get("datasets")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return [entry for entry in entries if entry.get("type", "performance") == kind]


def shares_a_word(name: str, benchmark: EndpointsBenchmark) -> bool:
    """Return True if a dataset's name has a word of the names that the benchmark's datasets have."""
    names = (benchmark.dataset, benchmark.performance.name, *(dataset.name for dataset in benchmark.scored))
    known = {word for known_name in names for word in _WORD.findall(known_name.lower())}
    return any(word in known for word in _WORD.findall(name.lower()))


def _fault(point: Point, wrong: str, field: str, value: object, expected: object) -> Fault:
    return Fault(wrong, f"{point.name}/config.yaml", field, "none" if value in (None, "", {}, []) else value, expected)


def _load(point: Point) -> Iterator[Fault]:
    """Compare load pattern and requests in flight; a dedicated Offline run may send all at once."""
    pattern = part(part(point.config, "settings"), "load_pattern")
    declared, used = part(point.declared, "runtime_settings").get("load_pattern"), pattern.get("type")
    allowed = _OFFLINE if point.offline == "dedicated" else _FIXED
    if used not in allowed or (declared not in (None, used) and point.declared):
        expected = declared if declared in allowed else " or ".join(allowed)
        yield _fault(point, "the client ran another load pattern", "settings.load_pattern.type", used, expected)
    target = count(pattern, "target_concurrency")
    if used in _FIXED and target != count(point.declared, "concurrency"):
        field, expected = "settings.load_pattern.target_concurrency", point.declared.get("concurrency", "none")
        yield _fault(point, "the client ran at another concurrency", field, target, expected)


def _streaming(point: Point) -> Iterator[Fault]:
    value = part(point.config, "model_params").get("streaming")
    # YAML reads an unquoted `on` as true.
    if point.offline != "dedicated" and value is not True and value != "on":
        yield _fault(point, "answers were not streamed", "model_params.streaming", value, "on")


def _warm_up(point: Point) -> Iterator[Fault]:
    used = part(part(point.config, "settings"), "warmup").get("enabled")
    declared = part(point.declared, "warmup")
    if used is True and declared and not number(declared, "requests_issued"):
        expected = "a warm-up that point.yaml declares"
        yield _fault(point, "the warm-up of the client is not declared", "settings.warmup.enabled", used, expected)


def _recorded(point: Point) -> Iterator[Fault]:
    """Compare the configuration with the part of it that the client writes into its summary, where it does."""
    recorded, settings = part(point.summary, "run_config"), part(point.config, "settings")
    pairs = [
        *(
            (f"load_pattern.{key}", part(recorded, "load_pattern"), part(settings, "load_pattern"), key)
            for key in _LOAD
        ),
        *((f"warmup.{key}", part(recorded, "warmup"), part(settings, "warmup"), key) for key in _WARM_UP),
        *((f"runtime.{key}", recorded, part(settings, "runtime"), key) for key in _SEEDS),
    ]
    for field, in_summary, in_file, key in pairs:
        if key in in_summary and in_summary[key] != in_file.get(key):
            wrong = "the summary is of another configuration"
            yield _fault(point, wrong, f"settings.{field}", in_file.get(key), in_summary[key])


def _model(point: Point, benchmark: EndpointsBenchmark, names: Sequence[str]) -> Iterator[Fault]:
    """Compare the model that the client asked for by its name, which a server may choose."""
    name = part(point.config, "model_params").get("name")
    plain = _letters(name) if isinstance(name, str) else ""
    others = (_letters(other) for other in names if other != benchmark.name)
    if not plain or any(other in plain for other in others):
        yield _fault(point, "the client asked for another model", "model_params.name", name, benchmark.name)
    elif _letters(benchmark.name) not in plain:
        wrong = "the name that the client asked for is not the model's"
        fault = (wrong, f"{point.name}/config.yaml", "model_params.name", name, benchmark.name)
        yield Fault(*fault, severity=Severity.WARNING)


def _dataset(point: Point, benchmark: EndpointsBenchmark) -> Iterator[Fault]:
    """Compare the dataset that was measured with: its name, where the client knows it, and the part of it."""
    datasets = datasets_of(point, "performance")
    if not datasets:
        yield _fault(point, "no dataset is measured with", "datasets", None, benchmark.performance.name)
    for entry in datasets:
        name, samples = entry.get("name"), entry.get("samples")
        if not isinstance(name, str) or not (entry.get("path") or shares_a_word(name, benchmark)):
            expected = benchmark.performance.name
            yield _fault(point, "the client measured with another dataset", "datasets.name", name, expected)
        if samples is not None and (count(entry, "samples") or 0) < benchmark.samples:
            wrong = "the client used a part of the dataset, again and again"
            yield _fault(point, wrong, "datasets.samples", samples, f"{benchmark.samples:,}")


def _generation(point: Point, benchmark: EndpointsBenchmark) -> Iterator[Fault]:
    """Compare what shapes an answer; the client lets a dataset override it.

    Where one dataset is measured with and scored, both runs have one limit of tokens; of others the limit may differ.
    """
    expected = {
        **_NEUTRAL,
        "temperature": benchmark.temperature,
        "max_new_tokens": benchmark.max_tokens,
        "top_p": benchmark.top_p,
        "min_new_tokens": benchmark.min_tokens,
    }
    one_dataset = benchmark.performance.name in {dataset.name for dataset in benchmark.scored}
    for entry in datasets_of(point, "performance") or [{}]:
        used = {**part(point.config, "model_params"), **part(entry, "generation_config_override")}
        for key, wanted in expected.items():
            value = used.get(key)
            if value != wanted and (value is not None or key in _REQUIRED):
                doubtful = key == "max_new_tokens" and not one_dataset and number(used, key)
                yield replace(
                    _fault(point, "answers were made with another parameter", f"model_params.{key}", value, wanted),
                    severity=Severity.WARNING if doubtful else None,
                )


def _same_requests(point: Point, first: Point) -> Iterator[Fault]:
    """Compare the parameters of requests with those at the first point; one of Offline may be without streaming."""
    used, before = (part(of.config, "model_params") for of in (point, first))
    for key in sorted({*map(str, used), *map(str, before)} - {"streaming", "name"}):
        if used.get(key) != before.get(key):
            wrong = f"requests have another parameter than at {first.name}"
            yield _fault(point, wrong, f"model_params.{key}", used.get(key), before.get(key, "none"))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())

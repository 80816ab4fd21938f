"""The page of `doctor,mlperf`: what this machine can run, what is missing, and the remedy for it.

The page decides nothing itself. Benchmarks are those of `capabilities`, devices those of `serving.choice`, sums those
of the fit advisor, and what is missing comes from the checks that a run makes too.
"""

import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.campaign.asset_sources import AssetInputs, sources
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks, unscored_metrics
from cm4vllm.common import input_types
from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.clock import present
from cm4vllm.common.errors import InstallError, ModelError, UsageError
from cm4vllm.common.files import free_bytes
from cm4vllm.common.programs.containers import engine_version, engines, installed_engines, missing_hook, require_ready
from cm4vllm.common.progress import say_text
from cm4vllm.common.settings import Settings
from cm4vllm.common.units import size_text
from cm4vllm.doctor.metric_names import MetricNames, metric_names
from cm4vllm.endpoints.installation import CHECKER_FILE
from cm4vllm.endpoints.rules_source import known_rules
from cm4vllm.engine.cache.entries import cache_root, finished_entries
from cm4vllm.engine.tools.doctor import diagnose
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.gpus.gpu import detect_gpus, gpus_to_plan, least_memory, silent_gpus
from cm4vllm.hardware.host import detect_host
from cm4vllm.hardware.machine_facts import cpu_lines, gpu_lines, host_lines
from cm4vllm.hardware.memory import free_memory
from cm4vllm.hardware.readiness import load_sample, unready
from cm4vllm.rules import BenchmarkTerms, benchmark_terms, catalogue, default_round, round_terms
from cm4vllm.serving.fit.advice import AdviceSettings, asked_of
from cm4vllm.serving.fit.layout import GIB, Asked, Fit, advise
from cm4vllm.serving.installation.builds import VARIANTS, WantedBuild
from cm4vllm.serving.installation.vllm_choice import DEVICES, VENDORS, require_build, require_device
from cm4vllm.serving.launch_settings import LaunchSettings


@dataclass(frozen=True)
class Device:
    """A device that vLLM can use on this machine: `gpus` of `memory_bytes` each; 0 for the processors."""

    name: str
    gpus: int
    memory_bytes: float


@dataclass(frozen=True)
class Row:
    """A benchmark on a device: the model that fits, or the benchmark's own where none does."""

    benchmark: str
    scenarios: tuple[str, ...]
    device: str
    model: str
    precision: str
    fits: bool
    why: str
    command: str
    weight_bytes: int = 0
    gate: str = ""
    performance_only: bool = False


def installation(cmind: Any, checkout: Path) -> Iterator[Finding]:
    """Yield what is wrong with the CM home and the programs that recipes need."""
    return (finding for finding in diagnose(cmind, checkout) if finding.remedy)


def usable_devices() -> tuple[list[Device], list[Finding]]:
    """Return the devices that vLLM can use here, and for each other device the reason why not."""
    devices, lacking = [], []
    gpus = detect_gpus()
    for name in DEVICES:
        try:
            require_device(name)
        except UsageError as error:
            remedy = f"install its driver; until then: --device={DEVICES[0]} of run-mlperf,inference"
            lacking.append(Finding(field=f"device {name}", what=error.cause or error.what, remedy=remedy))
            continue
        lacking += _old_driver(name)
        own = gpus_to_plan([gpu for gpu in gpus if name in VENDORS and gpu.vendor == VENDORS[name].name], os.environ)
        if name == DEVICES[0]:
            devices.append(Device(name, 0, float(free_memory())))
        elif own:
            devices.append(Device(name, len(own), least_memory(own)[0]))
    return devices, lacking


def _old_driver(build: str) -> Iterator[Finding]:
    """Yield the finding on a driver that is older than the build's default release needs."""
    try:
        require_build(WantedBuild(), build)
    except InstallError as error:
        yield Finding(field=f"device {build}", what=f"{error.what}: {error.cause}", remedy=error.remedy)


def build_words() -> str:
    """Return the builds of vLLM, each with its default release and the driver that this needs."""
    return "; ".join(
        f"{name} {build.release}{f' ({build.needs})' if build.needs else ''}" for name, build in VARIANTS.items()
    )


def usable_containers(devices: Iterable[Device]) -> tuple[list[str], list[Finding]]:
    """Return the container engines that work here, with versions, and what others and GPUs in containers lack."""
    usable, lacking = [], []
    for engine in installed_engines():
        try:
            require_ready(engine)
        except InstallError as error:
            lacking.append(Finding(field=engine.name, what=f"{error.what}: {error.cause}", remedy=error.remedy))
            continue
        usable.append(f"{engine.name} {engine_version(engine)}".strip())
        for device in devices:
            if (hook := missing_hook(engine, device.name)) is not None:
                text = f"{engine.name} gives no container a {VENDORS[device.name].name} GPU"
                lacking.append(Finding(field=f"device {device.name} in containers", what=text, remedy=hook.remedy))
    return usable, lacking


def downloads(rows: Iterable[Row], home: Path, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the obstacles to a download of the models that fit: their licence, room on the disk."""
    fitting = {row.model: row for row in rows}
    gated = [name for name, row in fitting.items() if row.gate]
    if gated and not env.get("HF_TOKEN"):
        notes = " ".join(dict.fromkeys(fitting[name].gate for name in gated))
        text = f"not set; {', '.join(gated)} cannot be downloaded: {notes}"
        yield Finding(field="HF_TOKEN", what=text, remedy="export HF_TOKEN=TOKEN")
    free = free_bytes(home)
    for name, row in fitting.items():
        if row.weight_bytes > free:
            yield Finding(
                field="disk",
                what=f"{size_text(free)} free in {home}; the weights of {name} need {size_text(row.weight_bytes)}",
                remedy="free space there, or export CM_REPOS=FOLDER, a folder on another disk",
            )


_WIDTH = 100
#: Tokens of a prompt for which a request must have room. An assumption: the dataset decides once it is read.
_PROMPT_TOKENS = 2048


#: Machines that are named where a model is too large for this one: GPUs and GiB of each (H100, H200, B200).
_LARGER = ((1, 80), (2, 80), (4, 80), (8, 80), (8, 141), (8, 180))


class MachineSettings(Settings, frozen=True, kw_only=True):
    """The round whose benchmarks are listed, and the servers whose metrics are."""

    round: input_types.Round = default_round()
    servers: LaunchSettings = LaunchSettings()


def report_machine(settings: MachineSettings, home: Path, installed: Iterable[Finding]) -> dict[str, object]:
    """Print the page and return its content as plain objects. `installed` are the findings on the installation.

    Raises UsageError for a round that cannot be run, and a server's address or key that cannot be used.
    """
    metrics = list(metric_names(settings.servers, home))
    round_ = round_terms(settings.round)
    devices, lacking = usable_devices()
    rows = benchmark_rows(round_.name, devices)
    containers, unusable = usable_containers(devices)
    wanted = downloads([row for row in rows if row.fits], home, os.environ)
    missing = [*lacking, *unusable, *wanted, *installed, *unready(load=load_sample())]
    for line in _page(round_.name, devices, containers, rows, missing, _endpoints(home), metrics):
        say_text(line)
    return {
        "round": round_.name,
        "devices": [asdict(device) for device in devices],
        "container_engines": containers,
        "benchmarks": [asdict(row) for row in rows],
        "metrics": [msgspec.to_builtins(names) for names in metrics],
        "missing": [{"subject": lack.field, "text": lack.what, "remedy": lack.remedy} for lack in missing],
    }


def benchmark_rows(round_name: str, devices: Iterable[Device]) -> list[Row]:
    """Return a row for each benchmark of a round that can be run, on each of the devices."""
    listed = tuple(devices)
    return [
        _row(benchmark_terms(round_name, name), device) for name in runnable_benchmarks(round_name) for device in listed
    ]


def _row(benchmark: BenchmarkTerms, device: Device) -> Row:
    """Return the benchmark's own model where it fits the device, else the first published quantised one that does."""
    own = catalogue().benchmark(benchmark.name).model
    derived = [name for name, entry in catalogue().models.items() if entry.base == own]
    rows = [_row_of(benchmark, device, name) for name in (own, *derived)]
    return next((row for row in rows if row.fits), rows[0])


def _row_of(benchmark: BenchmarkTerms, device: Device, model: str) -> Row:
    entry, fit, weights = catalogue().model(model), None, 0
    try:
        asked = _advisor_question(benchmark, device, model)
        weights = round(asked.architecture.weight_bytes(asked.precision))
        fit, why = advise(asked), ""
    except ModelError as error:
        needed = f"its weights are {weights / GIB:.0f} GiB" if weights else error.what
        why = f"{needed}, {_room(device)}"
    return Row(
        benchmark=benchmark.name,
        scenarios=tuple(str(scenario) for scenario in benchmark.scenarios if scenario not in benchmark.refused),
        device=device.name,
        model=model,
        precision=entry.precision,
        fits=fit is not None,
        why=why if fit is None else f"{_memory_words(fit, device)}, {_layout(fit, device)}",
        command=_advice(benchmark, model) if fit is None else _command(benchmark, device, entry.hub, asked, fit),
        weight_bytes=weights,
        gate=" ".join(sources(AssetInputs(model=benchmark.name, vllm_model_name=entry.hub)).model_notes),
        performance_only=bool(unscored_metrics(benchmark)),
    )


def _advisor_question(benchmark: BenchmarkTerms, device: Device, model: str) -> Asked:
    """Return the question to the fit advisor: room for one request of full length."""
    asked = asked_of(
        AdviceSettings(
            model=model,
            gpus=device.gpus,
            gpu_memory_gib=device.memory_bytes / GIB,
            max_model_len=benchmark.max_tokens + _PROMPT_TOKENS,
        )
    )
    if device.gpus:
        return asked
    cache_bytes = asked.architecture.kv_bytes_per_token(2, 1) * asked.max_model_len
    return replace(asked, memory_bytes=device.memory_bytes, kv_cache_bytes=max(1, math.ceil(cache_bytes / GIB)) * GIB)


def _room(device: Device) -> str:
    if not device.gpus:
        return f"{device.memory_bytes / GIB:.1f} GiB free"
    if not device.memory_bytes:
        return f"the memory of {device.gpus} GPUs is not detected: --gpu_memory of advise,vllm-fit takes it"
    return f"{device.gpus} x {device.memory_bytes / GIB:.1f} GiB"


def _memory_words(fit: Fit, device: Device) -> str:
    used = f"{fit.used_bytes / GIB:.1f}"
    if not device.gpus:
        return f"{used} GiB of {_room(device)}"
    return f"{used} of {device.memory_bytes / GIB:.1f} GiB on each of {device.gpus} GPUs"


def _layout(fit: Fit, device: Device) -> str:
    if not device.gpus:
        return f"{fit.max_num_seqs} requests of full length at a time"
    return f"tensor {fit.tensor_parallel} x pipeline {fit.pipeline_parallel} x data {fit.data_parallel}"


def _command(benchmark: BenchmarkTerms, device: Device, hub: str, asked: Asked, fit: Fit) -> str:
    flags = {
        "model": benchmark.name,
        "vllm_model_name": hub,
        "device": device.name,
        "kv_cache_space": 0 if device.gpus else round(asked.kv_cache_bytes / GIB),
        "tp_size": fit.tensor_parallel,
        "pp_size": fit.pipeline_parallel,
        "dp_size": fit.data_parallel,
    }
    words = [f"--{flag}={value}" for flag, value in flags.items() if value not in (0, 1)]
    return " ".join([f"cm run script --tags={_tags(benchmark.round)}", *words, "--plan"])


def _tags(round_name: str) -> str:
    """Return the tags of the main job in a round."""
    variation = "" if round_name == default_round() else f",{round_terms(round_name).variation}"
    return f"run-mlperf,inference,_vllm{variation}"


def _advice(benchmark: BenchmarkTerms, model: str) -> str:
    """Return the command that shows the layout on the smallest of some larger machines."""
    for gpus, memory in _LARGER:
        try:
            advise(_advisor_question(benchmark, Device("", gpus, memory * GIB), model))
        except ModelError:
            continue
        break
    return f"cm run script --tags=advise,vllm-fit --vllm_model_name={model} --gpus={gpus} --gpu_memory={memory}"


def _page(
    round_name: str,
    devices: Sequence[Device],
    containers: Sequence[str],
    rows: Sequence[Row],
    missing: Sequence[Finding],
    endpoints: Sequence[str],
    metrics: Sequence[MetricNames],
) -> Iterator[str]:
    host = detect_host()
    yield "This machine"
    for line in (
        *host_lines(host),
        *cpu_lines(detect_cpu(), host),
        *(f"GPU: {line}" for line in (*gpu_lines(detect_gpus()), *silent_gpus())),
    ):
        yield from _wrap(line, "  ")
    yield f"  devices of vLLM: {'; '.join(f'{device.name}, {_room(device)}' for device in devices)}"
    yield from _wrap(f"builds of vLLM: {build_words()}", "  ")
    none = f"none of {', '.join(engines())} can be used: no vLLM from an image"
    yield f"  engines for containers: {', '.join(containers) or none}"
    yield f"\nWhat it can run: round {round_name}, open division"
    yield "  every benchmark as a rehearsal with the stand-in model, which needs no download"
    yield f"      cm run script --tags={_tags(round_name)} --model=BENCHMARK"
    for row in rows:
        mark = "fits" if row.fits else "too large for this machine; the command shows one that it fits"
        yield f"  {row.benchmark} on {row.device}: {mark}"
        part = "; its accuracy is scored in part: a valid run measures the performance alone"
        words = f"{row.model}, {row.precision}: {row.why}{part if row.performance_only else ''}"
        yield from _wrap(f"{words} ({', '.join(row.scenarios)})", "      ")
        yield from _wrap(row.command, "      ", " \\")
    yield from _wrap(
        f"Sums of the fit advisor, with room for a request of the benchmark's longest answer and {_PROMPT_TOKENS:,} "
        "tokens of prompt (an assumption). Whether it is fast enough for a scenario's latency limits is measured.",
        "  ",
    )
    yield "\nMLPerf Endpoints"
    for line in endpoints:
        yield from _wrap(line, "  ")
    yield "\nMetrics of vLLM that a run reads"
    for names in metrics or ("no vLLM is installed, and no server given with --api_server",):
        yield from _wrap(str(names), "  ")
    yield f"\nWhat is missing: {'nothing was found' if not missing else len(missing)}"
    for lack in missing:
        yield from _wrap(f"{lack.field}: {lack.what}", "  ")
        yield from _wrap(lack.remedy, "      ")


def _endpoints(home: Path) -> list[str]:
    """Return the rules of MLPerf Endpoints that are known in a CM home, and the official checkers installed there."""
    entries = finished_entries(cache_root(home))
    checkers = sorted({entry.version for entry in entries if (Path(entry.folder) / CHECKER_FILE).is_file()})
    installed = f"official checker installed: {', '.join(checkers) or 'none; the first job installs it'}"
    return [*known_rules(home, present().date()), installed]


def _wrap(text: str, indent: str, ending: str = "") -> list[str]:
    """Return a text in lines of the page's width; `ending` joins the lines of a command."""
    lines = textwrap.wrap(
        " ".join(text.split()),
        _WIDTH - len(ending),
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(f"{line}{ending}" for line in lines[:-1]), *lines[-1:]]

"""The questions of doctor: all that can keep this machine from measuring, each with its remedy.

The questions on the installation are those of `cm doctor script`, which is asked without MLPerf; `doctor,mlperf` asks
them all. Nothing is decided here: the answers come from the checks that a run makes, too.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.common.files import free_bytes
from cm4vllm.common.programs.containers import engine_version, installed_engines, missing_hook, require_ready
from cm4vllm.common.units import size_text
from cm4vllm.engine.tools.doctor import diagnose
from cm4vllm.hardware.gpus.gpu import detect_gpus, gpus_to_plan, least_memory
from cm4vllm.hardware.memory import free_memory
from cm4vllm.hardware.readiness import load_sample, unready
from cm4vllm.serving.installation.vllm_choice import DEVICES, VENDORS, require_device


@dataclass(frozen=True)
class Device:
    """A device that vLLM can use on this machine: `gpus` of `memory_bytes` each; 0 for the processors."""

    name: str
    gpus: int
    memory_bytes: float


@dataclass(frozen=True)
class Wanted:
    """A model that is to be downloaded: its size in bytes, and what its licence asks for, if anything."""

    model: str
    weight_bytes: int
    gate: str = ""


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
        own = gpus_to_plan([gpu for gpu in gpus if name in VENDORS and gpu.vendor == VENDORS[name].name], os.environ)
        if name == DEVICES[0]:
            devices.append(Device(name, 0, float(free_memory())))
        elif own:
            devices.append(Device(name, len(own), least_memory(own)[0]))
    return devices, lacking


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


def downloads(models: Iterable[Wanted], home: Path, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the obstacles to a download of the models that fit: their licence, room on the disk."""
    fitting = {wanted.model: wanted for wanted in models}
    gated = [name for name, wanted in fitting.items() if wanted.gate]
    if gated and not env.get("HF_TOKEN"):
        notes = " ".join(dict.fromkeys(fitting[name].gate for name in gated))
        text = f"not set; {', '.join(gated)} cannot be downloaded: {notes}"
        yield Finding(field="HF_TOKEN", what=text, remedy="export HF_TOKEN=TOKEN")
    free = free_bytes(home)
    for name, wanted in fitting.items():
        if wanted.weight_bytes > free:
            yield Finding(
                field="disk",
                what=f"{size_text(free)} free in {home}; the weights of {name} need {size_text(wanted.weight_bytes)}",
                remedy="free space there, or export CM_REPOS=FOLDER, a folder on another disk",
            )


def disturbances() -> list[Finding]:
    """Return what should be changed on this machine before a measurement."""
    return unready(load=load_sample())

"""All GPUs of the machine, whoever made them. A machine without a driver has none, which is no error."""

from pathlib import Path
from typing import Annotated

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import json_text
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.gpus import amd, nvml
from cm4vllm.hardware.gpus.nvml_recording import Recorder
from cm4vllm.records.machine import GpuFacts


def detect_gpus() -> list[GpuFacts]:
    """Return the GPUs that the drivers show, NVIDIA's before AMD's, each in its driver's order."""
    with nvml.opened() as library, amd.opened() as amdsmi:
        nvidia = nvml.nvidia_gpus(library) if library is not None else []
        return nvidia + (amd.amd_gpus(amdsmi) if amdsmi is not None else [])


def silent_gpus() -> list[str]:
    """Return in words the GPUs that a driver counts and that do not respond."""
    with nvml.opened() as library:
        return nvml.silent_gpus(library) if library is not None else []


class RecordingInputs(Settings, frozen=True, kw_only=True):
    """The path that the drivers' answers are recorded in; empty for none."""

    folder: Annotated[str, Key("CM_GPU_RECORDING")] = ""


def record_gpus(path: Path) -> None:
    """Write what NVML answers on this machine to `path`, for a test on another. Raises CmError without a GPU.

    UUIDs are replaced by counted ones; serial numbers are never asked for.
    """
    with nvml.opened() as library:
        recorder = Recorder(library) if library is not None else None
        if recorder is None or not nvml.nvidia_gpus(recorder):
            raise CmError("there is no GPU to record", cause="no NVIDIA driver answers on this machine")
        write_noted(path, json_text(recorder.recording("recorded by cm4vllm's recipe detect-gpu")))

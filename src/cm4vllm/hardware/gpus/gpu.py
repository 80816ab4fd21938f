"""All GPUs of the machine, whoever made them. A machine without a driver has none, which is no error."""

import ctypes
import json
import pkgutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import json_text
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.gpus import vendors as modules
from cm4vllm.hardware.gpus.vendor import Vendor
from cm4vllm.hardware.gpus.vendors import nvml
from cm4vllm.records.machine import GpuFacts

#: The vendors whose drivers answer on this machine, each with the library of its driver.
Drivers = Sequence[tuple[Vendor, Any]]


@cache
def vendors() -> tuple[Vendor, ...]:
    """Return the vendors, one of each module of vendors/, in the order in which their GPUs are taken."""
    names = (module.name for module in pkgutil.iter_modules(modules.__path__, f"{modules.__name__}."))
    return tuple(sorted((import_module(name).VENDOR for name in names), key=lambda vendor: vendor.order))


@contextmanager
def opened_drivers() -> Iterator[Drivers]:
    """Yield the vendors whose drivers answer."""
    with ExitStack() as stack:
        opened = [(vendor, stack.enter_context(vendor.opened())) for vendor in vendors()]
        yield [(vendor, library) for vendor, library in opened if library is not None]


def detect_gpus() -> list[GpuFacts]:
    """Return the GPUs that the drivers show, each vendor's together, in its driver's order."""
    with opened_drivers() as drivers:
        return [gpu for vendor, library in drivers for gpu in vendor.gpus(library)]


def silent_gpus() -> list[str]:
    """Return in words the GPUs that a driver counts and that do not respond."""
    with opened_drivers() as drivers:
        return [words for vendor, library in drivers for words in vendor.silent(library)]


def gpus_of_processes(pids: Collection[int]) -> list[str]:
    """Return the UUIDs of the GPUs on which one of these processes computes; none where the driver does not show it.

    In a container with process numbers of its own, the driver reports those of the host, and none matches.
    """
    with opened_drivers() as drivers:
        uses = (vendor.use(library) for vendor, library in drivers)
        return [uuid for used in uses for uuid, use in used.items() if use.processes & set(pids)]


class RecordingInputs(Settings, frozen=True, kw_only=True):
    """The path that the drivers' answers are recorded in; empty for none."""

    folder: Annotated[str, Key("CM_GPU_RECORDING")] = ""


def record_gpus(path: Path) -> None:
    """Write what NVML answers on this machine to `path`, for a test on another. Raises CmError without a GPU.

    UUIDs are replaced by counted ones; serial numbers are never asked for.
    """
    with nvml.VENDOR.opened() as library:
        recorder = Recorder(library) if library is not None else None
        if recorder is None or not nvml.VENDOR.gpus(recorder):
            raise CmError("there is no GPU to record", cause="no NVIDIA driver answers on this machine")
        write_noted(path, json_text(recorder.recording("recorded by cm4vllm's recipe detect-gpu")))


class Recorder:
    """Stands for the NVML module and keeps all answers, to be replayed in tests without a GPU.

        {"source": "...", "answers": {"nvmlDeviceGetName(gpu0)": "NVIDIA L40S", ...}}

    A key is the call in words; a device handle is gpu0, gpu1, ... and the parts that MIG makes of it gpu0.mig0, ...
    An answer is what nvidia-ml-py returned: a number, a text, a list, the fields of a structure as an object,
    {"handle": "gpu0"} for a device, or {"error": 3} with NVML's number for an error.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._answers: dict[str, Any] = {}
        self._handles: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(function):
            return function

        def call(*args: Any) -> Any:
            words = [self._handles[_address(arg)] if _is_handle(arg) else str(arg) for arg in args]
            key = f"{name}({', '.join(words)})"
            try:
                answer = function(*args)
            except self._nvml.NVMLError as error:
                self._answers[key] = {"error": error.value}
                raise
            if _is_handle(answer):
                label = f"{words[0]}.mig{words[1]}" if len(words) == 2 else f"gpu{words[0]}"
                self._handles[_address(answer)] = label
                self._answers[key] = {"handle": label}
            else:
                self._answers[key] = _plain(answer)
            return answer

        return call

    def recording(self, source: str) -> dict[str, Any]:
        """Return all that was asked so far, with counted UUIDs in place of the devices' own."""
        text = json.dumps(self._answers)
        uuids = [answer for key, answer in self._answers.items() if key.startswith("nvmlDeviceGetUUID")]
        for count, uuid in enumerate(dict.fromkeys(uuids)):
            text = text.replace(uuid, f"{uuid.partition('-')[0]}-00000000-0000-0000-0000-{count:012d}")
        return {"source": source, "answers": json.loads(text)}


def _is_handle(value: Any) -> bool:
    return isinstance(value, ctypes._Pointer)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Structure):
        return {field[0]: _plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value

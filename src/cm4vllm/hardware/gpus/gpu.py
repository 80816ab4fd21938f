"""All GPUs of the machine, whoever made them, and those that a program sees by the variables that choose them.

A machine without a driver has none, which is no error. The variables are read as the drivers read them.
"""

import ctypes
import json
import pkgutil
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import json_text
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.gpus import vendors as modules
from cm4vllm.hardware.gpus.vendor import Filter, Vendor
from cm4vllm.hardware.gpus.vendors import nvml
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.records.known_hardware import accelerator
from cm4vllm.records.machine import MEMORY, GpuFacts, MigFacts

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
                self._answers[key] = _json_value(answer)
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


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Structure):
        return {field[0]: _json_value(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    return value


#: Bytes of a GB as vendors of memory sell it, less what a driver keeps for itself at most (ECC of a T4).
_LEAST_OF_A_GB = 0.88e9


@dataclass(frozen=True)
class UsedGpu:
    """A GPU that serves, or a part of one: of MIG, or a partition."""

    gpu: GpuFacts
    part: MigFacts | None = None

    @property
    def uuid(self) -> str:
        """Return the UUID of the part of MIG, else of the GPU."""
        return self.part.uuid if self.part else self.gpu.uuid

    @property
    def memory_bytes(self) -> int | None:
        """Return the memory of the part of MIG, else of the GPU, in bytes; None if not known."""
        return self.part.memory_bytes if self.part else self.gpu.memory_bytes


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU that programs see: the `word` that chooses it alone in the variable of its vendor, see VISIBLE.

    `used` is None where it is not known which of the machine's GPUs that is.
    """

    word: str
    used: UsedGpu | None


#: The variables that choose the GPUs that a program sees.
VISIBLE = tuple(dict.fromkeys(name for vendor in vendors() for each in vendor.filters for name in each.names))


def server_variables(device: str) -> tuple[str, ...]:
    """Return the variables that choose the GPUs of a server for a device; those of the first vendor for another one."""
    return next((vendor for vendor in vendors() if vendor.device == device), vendors()[0]).filters[-1].names


def visible_gpus(gpus: Sequence[GpuFacts], env: Mapping[str, str]) -> list[UsedGpu]:
    """Return the GPUs of the first one's vendor that a program with the environment `env` sees, in its order.

    Of MIG parts a program sees the first one alone, and no other GPU beside it (MIG user guide, CUDA_VISIBLE_DEVICES).
    Raises CmError where it is not known which those are.
    """
    used: list[UsedGpu] = []
    for given in given_gpus(gpus, env):
        if given.used is None:
            name, value = next(iter(_set(gpus, env).items()))
            raise CmError(
                f"it is not known which GPUs {name}={value} means",
                cause="the machine's GPUs differ, and without CUDA_DEVICE_ORDER CUDA counts the fastest first; of AMD, "
                "a UUID is another one than the driver's library states",
                remedy="set CUDA_DEVICE_ORDER=PCI_BUS_ID for the server, or name the GPUs by their UUIDs; those of AMD "
                "by their numbers",
            )
        used.append(given.used)
    return [each for each in used if each.part in each.gpu.mig_devices][:1] or used


def given_gpus(gpus: Sequence[GpuFacts], env: Mapping[str, str]) -> list[VisibleGpu]:
    """Return the GPUs of the first one's vendor that `env` leaves to programs, each of which may use some of them.

    A driver numbers them from 0, and stops at the first word that names none. Of MIG they are all parts.
    """
    gpus = [gpu for gpu in gpus if gpu.vendor == gpus[0].vendor]
    if not gpus:
        return []
    left = _built_in(gpus)
    for each in _filters(gpus):
        left = [VisibleGpu(str(place), visible.used) for place, visible in enumerate(left)]
        if (value := _value(each, env)) is not None:
            by_bus = not each.order_variable or env.get(each.order_variable) == "PCI_BUS_ID"
            left = _chosen_gpus(left, value, each, numbers_follow_bus=by_bus or len({gpu.name for gpu in gpus}) == 1)
    if not _set(gpus, env):
        parts = [(visible, part) for visible in left if visible.used for part in visible.used.gpu.mig_devices]
        whole = [visible for visible in left if visible.used and not visible.used.gpu.mig_devices]
        return whole + [VisibleGpu(part.uuid, UsedGpu(at.used.gpu, part)) for at, part in parts if at.used]
    return left


def hidden_by(gpus: Sequence[GpuFacts], env: Mapping[str, str]) -> str:
    """Return the variables that hide GPUs of one vendor, with their values; empty where none is set."""
    return ", ".join(f"{name}={value}" for name, value in _set(gpus, env).items())


def gpus_to_plan(gpus: Sequence[GpuFacts], env: Mapping[str, str]) -> list[UsedGpu]:
    """Return the GPUs that a server would see; all where it is not known which those are."""
    try:
        return visible_gpus(gpus, env)
    except CmError:
        return [UsedGpu(gpu) for gpu in gpus]


def least_memory(used: Sequence[UsedGpu]) -> tuple[float, str]:
    """Return the bytes of memory to plan with for each GPU, and in words where they are from, if not from the driver.

    They are 0 where nothing is known of any GPU.
    """
    why_not = [f"not detected ({each.gpu.unanswered.get(MEMORY, 'not stated')})" for each in used]
    return min(filter(None, map(_memory_to_plan, used)), default=(0.0, "".join(why_not[:1])))


def _memory_to_plan(used: UsedGpu) -> tuple[float, str] | None:
    if used.memory_bytes:
        return float(used.memory_bytes), ""
    if used.part:
        return None
    if (row := accelerator(used.gpu.name)) is not None:
        return row.memory_gb[0] * _LEAST_OF_A_GB, f"as the {used.gpu.name} is sold"
    return (float(detect_memory().usable_bytes), "the host's, which it shares") if used.gpu.shares_host_memory else None


def _built_in(gpus: Sequence[GpuFacts]) -> list[VisibleGpu]:
    """Return what a driver numbers: GPUs, of one with MIG the first part, of a parted one of AMD each partition."""
    used = [UsedGpu(gpu, part) for gpu in gpus for part in (*gpu.partitions, *gpu.mig_devices[:1]) or (None,)]
    return [VisibleGpu(str(place), each) for place, each in enumerate(used)]


def _filters(gpus: Sequence[GpuFacts]) -> tuple[Filter, ...]:
    """Return the filters of the first GPU's vendor."""
    return next((vendor.filters for vendor in vendors() if gpus and vendor.name == gpus[0].vendor), ())


def _value(each: Filter, env: Mapping[str, str]) -> str | None:
    return next((env[name] for name in each.names if name in env and (env[name] or each.empty_hides)), None)


def _set(gpus: Sequence[GpuFacts], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the environment that choose GPUs, with their values."""
    return {
        name: env[name]
        for each in _filters(gpus)
        if _value(each, env) is not None
        for name in [name for name in each.names if env.get(name) == _value(each, env)][:1]
    }


def _chosen_gpus(left: Sequence[VisibleGpu], value: str, each: Filter, *, numbers_follow_bus: bool) -> list[VisibleGpu]:
    """Return those of `left` that the value of a variable names, up to the first word that names none."""
    chosen: dict[str, VisibleGpu] = {}
    words = [word.strip() if each.loose else word for word in value.split(",")]
    for word in words:
        if each.loose and _kind(word) != _kind(words[0]):  # CUDA takes numbers or UUIDs, not both
            break
        named = _gpu_of_number(word, left, each) if not _kind(word) else _by_uuid(word, left, each)
        if named is None:
            break
        if not (_kind(word) or numbers_follow_bus):
            named = VisibleGpu(named.word, None)
        key = named.word if named.used is None else named.used.uuid
        if key in chosen and each.repeated_hides:
            return []
        chosen.setdefault(key, named)
    return list(chosen.values())


def _kind(word: str) -> str:
    return next((prefix for prefix in ("GPU-", "MIG-") if word.startswith(prefix)), "")


def _gpu_of_number(word: str, left: Sequence[VisibleGpu], each: Filter) -> VisibleGpu | None:
    number = re.match(r"\+?([0-9]{1,9})", word) if each.loose else re.fullmatch(r"(0|[1-9][0-9]{0,8})", word)
    return left[int(number[1])] if number and int(number[1]) < len(left) else None


def _by_uuid(word: str, left: Sequence[VisibleGpu], each: Filter) -> VisibleGpu | None:
    """Return the GPU, or MIG part, whose UUID alone begins with a word."""
    gpus = {visible.used.gpu.uuid: visible.used.gpu for visible in left if visible.used}
    known = [(gpu.uuid, UsedGpu(gpu, next(iter(gpu.mig_devices), None))) for gpu in gpus.values()]
    if word.startswith("MIG-"):  # MIG-<UUID>; before driver 470 MIG-<GPU's UUID>/<GPU instance>/<compute instance>
        known = [(part.uuid, UsedGpu(gpu, part)) for gpu in gpus.values() for part in gpu.mig_devices]
    matching = [used for uuid, used in known if uuid.lower().startswith(word.lower())]
    if not matching and not each.loose:  # ROCr's UUID is a serial number, which is not recorded
        return VisibleGpu(word, None)
    return VisibleGpu(word, matching[0]) if len(matching) == 1 else None

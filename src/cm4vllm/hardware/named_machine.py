"""Machines that are named, not detected: for plans on another machine, the fit advisor, and rehearsals.

A name is a count of GPUs with a row of the table of known accelerators, as `8xH100-SXM-80GB`, with a count of nodes
before it (`2x8xH200`); or the file of a machine: the machine.json that get,sut,description writes, or a published
system description.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.common.bounded_documents import read_object
from cm4vllm.common.errors import CmError, UsageError, nearest
from cm4vllm.common.files import typed_path
from cm4vllm.common.records import read_record
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.hardware.gpus.gpu import UsedGpu, least_memory, vendors
from cm4vllm.records.known_hardware import Accelerator, accelerator, accelerators_named, known_accelerators
from cm4vllm.records.machine import GpuFacts, MachineFacts

_NAME = re.compile(r"(?:(\d{1,5}) ?x ?)?(?:(\d{1,3}) ?x ?)?(.+)")
_GIB = 2**30
#: The most GPUs that a name may stand for: each becomes a record.
_MOST_GPUS = 4096
_EXAMPLES = "for example 8xH100-SXM-80GB, 2x8xH200 (nodes x GPUs of each), or the path of a machine.json"


@dataclass(frozen=True, kw_only=True)
class NamedMachine:
    """A machine, or several alike. `gpus` are those of each node, none for a machine whose processors serve.

    `device` is that of vLLM's build. `cores` and `memory_bytes` are those of each host, None where they are not known.
    """

    title: str
    nodes: int
    gpus: tuple[GpuFacts, ...]
    device: str
    cores: int | None = None
    memory_bytes: int | None = None

    @property
    def gpu_memory_bytes(self) -> float:
        """The bytes of memory to plan with for each GPU; 0 where they are not known."""
        return least_memory([UsedGpu(gpu) for gpu in self.gpus])[0]

    @property
    def driver(self) -> str:
        """The version of the driver, empty where it is not known."""
        return next((gpu.driver for gpu in self.gpus if gpu.driver), "")

    @property
    def words(self) -> str:
        """The machine with the memory of its GPUs: "8 x NVIDIA H100-SXM-80GB with 80 GiB each"."""
        memory = self.gpu_memory_bytes
        return f"{self.title} with {memory / _GIB:.4g} GiB each" if memory else self.title


def named_machine(name: str, *, gpu_memory_gib: float | None = None, device: str = "") -> NamedMachine:
    """Return the machine of a name or of a file.

    `gpu_memory_gib` is the memory of each GPU, in GiB, and goes before the table's; an accelerator that the table does
    not have needs it, and a `device` where its name does not begin with its vendor's.

    Raises UsageError for a name that stands for no machine, or for several.
    """
    if name.endswith(".json"):
        return with_gpu_memory(_machine_of_file(typed_path(name)), gpu_memory_gib)
    if (match := _NAME.fullmatch(name.strip())) is None:
        raise UsageError(f"--machine={name} names no machine", remedy=_EXAMPLES)
    first, second, words = match.groups()
    nodes, count = (int(first), int(second)) if first and second else (1, int(first or 1))
    if not nodes or not count or nodes * count > _MOST_GPUS:
        raise UsageError(f"--machine={name}: from 1 to {_MOST_GPUS:,} GPUs can be planned", remedy=_EXAMPLES)
    gpu = _gpu(words, gpu_memory_gib, device)
    return _of_gpus([gpu] * count, nodes)


def published_machine(accelerator_name: str, count: int, nodes: int = 1) -> NamedMachine:
    """Return the machine of a published system; `count` 0 is one whose processors serve, by the name of these."""
    if not count:
        return NamedMachine(title=accelerator_name, nodes=nodes, gpus=(), device="cpu")
    memory = None if accelerator(accelerator_name) else 0.0
    return _of_gpus([_gpu(accelerator_name, memory, "")] * count, nodes)


def described_machine(description: Mapping[str, object]) -> NamedMachine:
    """Return the machine of a system description, with MLPerf's keys. Raises UsageError for one without counts."""
    said = {key: str(value) for key, value in description.items()}
    count, nodes = (whole_number(said.get(key, "")) for key in ("accelerators_per_node", "number_of_nodes"))
    if count is None:
        raise UsageError("the system description states no number of accelerators (accelerators_per_node)")
    if count == 0:
        sockets, name = said.get("host_processors_per_node", "1"), said.get("host_processor_model_name", "processors")
        cores = whole_number(said.get("host_processor_core_count", ""))
        total = cores * (whole_number(sockets) or 1) if cores else None
        return NamedMachine(title=f"{sockets} x {name}", nodes=nodes or 1, gpus=(), device="cpu", cores=total)
    if count * (nodes or 1) > _MOST_GPUS:
        raise UsageError(f"the system description states {count:,} accelerators, more than can be planned")
    return published_machine(said.get("accelerator_model_name", ""), count, nodes or 1)


def with_gpu_memory(machine: NamedMachine, gib: float | None) -> NamedMachine:
    """Return the machine with so much memory of each GPU, in GiB; None leaves it as it is."""
    if gib is None:
        return machine
    gpus = tuple(_with_memory(gpu, gib) for gpu in machine.gpus)
    return NamedMachine(**{**vars(machine), "gpus": gpus})


def _machine_of_file(path: Path) -> NamedMachine:
    try:
        fields = read_object(path)
        if "gpus" not in fields:
            return described_machine(fields)
        facts = read_record(path, MachineFacts)
    except OSError as error:
        raise UsageError(f"cannot read --machine={path}", cause=str(error.strerror), remedy=_EXAMPLES) from error
    except (ValueError, CmError) as error:
        raise UsageError(
            f"--machine={path} describes no machine",
            cause=error.what if isinstance(error, CmError) else str(error),
            remedy="give the machine.json that cm run script --tags=get,sut,description writes there",
        ) from error
    cores, memory = facts.cpu.sockets * facts.cpu.cores_per_socket, facts.memory.usable_bytes
    if not facts.gpus:
        return NamedMachine(
            title=f"{facts.cpu.sockets} x {facts.cpu.model_name}",
            nodes=1,
            gpus=(),
            device="cpu",
            cores=cores,
            memory_bytes=memory,
        )
    own = [gpu for gpu in facts.gpus if gpu.vendor == facts.gpus[0].vendor]
    return NamedMachine(**{**vars(_of_gpus(own, 1)), "cores": cores, "memory_bytes": memory})


def _of_gpus(gpus: Sequence[GpuFacts], nodes: int) -> NamedMachine:
    """Return the machine that has these GPUs on each node, each with a UUID of its own."""
    first = gpus[0]
    device = next((vendor.device for vendor in vendors() if vendor.name == first.vendor), "")
    numbered = tuple(
        gpu if gpu.uuid else replace(gpu, uuid=f"GPU-{number:08x}-0000-0000-0000-000000000000")
        for number, gpu in enumerate(gpus)
    )
    title = f"{len(gpus)} x {first.name}"
    return NamedMachine(
        title=f"{nodes} nodes of {title}" if nodes > 1 else title, nodes=nodes, gpus=numbered, device=device
    )


def _gpu(words: str, memory_gib: float | None, device: str) -> GpuFacts:
    """Return the GPU of a name. Raises UsageError for one that is not known, or that several rows have."""
    row = _row(words)
    if row is None and memory_gib is None:
        raise UsageError(
            f"the accelerator {words} is not in the table of known accelerators",
            cause="its memory is not known",
            remedy=f"give the memory of each with --gpu_memory=<GiB>; or {_nearest(words)}name one of the table, "
            f"{_EXAMPLES}",
        )
    name = words if row is None else row.title
    vendor = _vendor(name if row is None else " ".join((row.vendor, *row.names)), device)
    gib = memory_gib if memory_gib is not None else row.memory_gb[0] if row else 0
    unknown = GpuFacts(
        name=name,
        uuid="",
        memory_bytes=None,
        max_sm_mhz=None,
        pcie_generation=None,
        pcie_width=None,
        driver="",
        vendor=vendor,
    )
    return _with_memory(unknown, gib) if gib else unknown


def _with_memory(gpu: GpuFacts, gib: float) -> GpuFacts:
    return replace(gpu, memory_bytes=round(gib * _GIB))


def _row(words: str) -> Accelerator | None:
    if (exact := accelerator(words)) is not None:
        return exact
    rows = accelerators_named(words)
    if len(rows) > 1:
        raise UsageError(
            f"--machine: several accelerators are called {words}",
            remedy=f"name one of them: {', '.join(row.title for row in rows)}",
        )
    return rows[0] if rows else None


def _nearest(words: str) -> str:
    close = nearest(words, [row.title for row in known_accelerators()], "")
    return f"{close}; " if close else ""


def _vendor(name: str, device: str) -> str:
    """Return the vendor of a GPU, by its name or by vLLM's build for it. Raises UsageError where neither says it."""
    known = [vendor.name for vendor in vendors() if vendor.name.lower() in name.lower()]
    known += [vendor.name for vendor in vendors() if vendor.device == device]
    if not known:
        raise UsageError(
            f"it is not known who makes the accelerator {name}",
            cause="vLLM has a build for each vendor's",
            remedy=f"give --device: {', '.join(f'{vendor.device} for {vendor.name}' for vendor in vendors())}",
        )
    return known[0]

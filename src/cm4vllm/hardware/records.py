"""Facts about the machine, each in exact units, before anybody words them for a page."""

from __future__ import annotations

from cm4vllm.common.records import Record

__all__ = ["CpuFacts", "GpuFacts", "HostFacts", "MachineFacts"]


class HostFacts(Record, frozen=True, kw_only=True):
    """The operating system and what it runs on. `virtualised` is None where nothing tells."""

    os_name: str
    os_version: str
    kernel: str
    machine: str
    python: str
    virtualised: bool | None
    memory_bytes: int
    disk_bytes: int
    disk_type: str


class CpuFacts(Record, frozen=True, kw_only=True):
    """The processors that this machine shows; None where it does not show them."""

    model_name: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    logical_cpus: int
    max_mhz: float | None
    caches: dict[str, str]
    numa_nodes: int | None
    flags: list[str]


class GpuFacts(Record, frozen=True, kw_only=True):
    """One GPU as its driver describes it."""

    name: str
    uuid: str
    memory_bytes: int
    max_sm_mhz: float | None
    pcie_generation: int | None
    pcie_width: int | None
    driver: str


class MachineFacts(Record, frozen=True, kw_only=True):
    host: HostFacts
    cpu: CpuFacts
    gpus: list[GpuFacts]

"""The record of a node before a server is started on it, and the nodes' records of a server."""

from pathlib import Path

from cm4vllm.common.records import Record, read_record
from cm4vllm.records.machine import MachineFacts
from cm4vllm.records.server import ServerRecord


class NodeReport(Record, frozen=True, kw_only=True):
    """The state of a node before a start. `interfaces` are its network interfaces by address; `ports` are free.

    `machine` is its hardware, `gpu_uuids` are the GPUs, or MIG parts, that programs on it see, in their order.
    """

    host: str
    kernel: str = ""
    python: str = ""
    program: str = ""
    packages: dict[str, str] = {}
    model: str = ""
    cores: int = 0
    memory_bytes: int = 0
    gpus: list[str] = []
    gpu_uuids: list[str] = []
    machine: MachineFacts | None = None
    interfaces: dict[str, str] = {}
    ports: list[int] = []


def reports_of(server: ServerRecord) -> list[NodeReport]:
    """Return the reports of the nodes of a server, its head first; none for a server on one machine.

    Raises CmError for a report that cannot be read.
    """
    return [read_record(Path(node.report), NodeReport) for node in server.nodes if node.report]

"""A node's report on itself, made by a program that runs there, and the comparison of the reports before a start.

    python -m cm4vllm.serving.clusters.node_report PYTHON MODEL

prints one line of JSON, a `NodeReport`: the versions in vLLM's environment PYTHON, the digest of cm4vllm's own source,
the digest of the files of the folder MODEL, the hardware, and free ports.
"""

import hashlib
import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from cm4vllm.common.errors import UsageError
from cm4vllm.common.processors import usable_processors
from cm4vllm.hardware.gpus.gpu import gpus_to_plan
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.records.node import NodeReport
from cm4vllm.serving.installation.packages import packages_of
from cm4vllm.serving.ports import free_port

#: Files up to this size count by their content, larger ones by name and size: weights may be 1 TB.
_MOST_BYTES = 2**24
#: The first word of the line with the report: a login shell may print lines of its own.
MARK = "cm4vllm-node-report "


def own_report(python: Path, model: str) -> NodeReport:
    """Return the report of this machine on itself."""
    import psutil

    machine = detect_machine()
    gpus = gpus_to_plan(machine.gpus, os.environ)
    return NodeReport(
        host=socket.gethostname(),
        kernel=platform.release(),
        python=platform.python_version(),
        program=_folder_digest(Path(__file__).resolve().parents[2], "*.py"),
        packages=packages_of(python) if python.exists() else {},
        model=_folder_digest(Path(model), "*"),
        cores=usable_processors(),
        memory_bytes=machine.memory.usable_bytes,
        gpus=[gpu.gpu.name for gpu in gpus],
        gpu_uuids=[gpu.uuid for gpu in gpus],
        machine=machine,
        interfaces={
            address.address.partition("%")[0]: name
            for name, addresses in psutil.net_if_addrs().items()
            for address in addresses
            if address.family in (socket.AF_INET, socket.AF_INET6)
        },
        ports=_free_ports(3),
    )


def _free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port("0.0.0.0", 0))  # noqa: S104 - bound for a moment, to see that it is free
    return sorted(ports)


def _folder_digest(folder: Path, pattern: str) -> str:
    """Return the digest of those of a folder's files that fit the pattern; empty for no folder.

    Files count by name and content, large ones by name and size.
    """
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob(pattern) if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)}\0{size}\0".encode())
        if size <= _MOST_BYTES:
            digest.update(path.read_bytes())
    return digest.hexdigest()


#: What is equal on all nodes before a server is started on them, each in the words of a message.
_EQUAL: Mapping[str, Callable[[NodeReport], str]] = {
    "versions in vLLM's environment": lambda report: ", ".join(
        f"{key} {value}" for key, value in report.packages.items()
    ),
    "digest of cm4vllm's source": lambda report: report.program[:16],
    "release of Python": lambda report: report.python,
    "digest of the model's files": lambda report: report.model[:16],
}
#: What may differ, as between nodes of several kinds, and is reported.
_ALIKE: Mapping[str, Callable[[NodeReport], str]] = {
    "GPUs": lambda report: ", ".join(report.gpus) or "none",
    "cores": lambda report: str(report.cores),
    "memory": lambda report: f"{report.memory_bytes / 2**30:.0f} GiB",
    "kernel": lambda report: report.kernel,
}


def require_alike(reports: Mapping[str, NodeReport], *, workers: int, on_gpus: bool) -> list[str]:
    """Return the differences of the nodes' hardware in words; `reports` are by node, with `workers` on each.

    Raises UsageError where a node lacks vLLM or has too few GPUs, and where versions or digests differ.
    """
    for name, report in reports.items():
        if "vllm" not in report.packages:
            raise UsageError(
                f"the node {name} has no vLLM at the path of this machine's",
                cause="its environment of vLLM does not exist there, or has no package vllm",
                remedy="share the CM home (CM_REPOS) with all nodes by a file system, or give --install_on_nodes=yes",
            )
        if on_gpus and len(report.gpus) < workers:
            raise UsageError(
                f"the node {name} has {len(report.gpus)} GPUs for {workers} workers",
                remedy="give more --nodes, or smaller --tp_size, --pp_size or --dp_size",
            )
    for title, value in _EQUAL.items():
        if difference := _difference(reports, value):
            raise UsageError(
                f"the nodes differ in the {title}",
                cause=difference,
                remedy="give --install_on_nodes=yes, or share one installation by a file system",
            )
    return [
        f"the nodes differ in {title}: {text}"
        for title, value in _ALIKE.items()
        if (text := _difference(reports, value))
    ]


def _difference(reports: Mapping[str, NodeReport], value: Callable[[NodeReport], str]) -> str:
    values = {name: value(report) or "none" for name, report in reports.items()}
    return "; ".join(f"{name}: {text}" for name, text in values.items()) if len(set(values.values())) > 1 else ""


def main(arguments: Sequence[str]) -> int:
    """Print the report of this machine."""
    print(MARK + msgspec.json.encode(own_report(Path(arguments[0]), arguments[1])).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

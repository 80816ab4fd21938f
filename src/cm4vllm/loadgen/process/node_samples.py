"""Samples of the nodes of a server over several, taken on each through its launcher while a run is made."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.common.progress import warn
from cm4vllm.common.sample_files import write_sample_file
from cm4vllm.hardware.gpu_samples import GPU_SAMPLES_FILE, GpuSample, GpusSample
from cm4vllm.hardware.machine_samples import read_machine_samples
from cm4vllm.loadgen.process.machine_load import load_between
from cm4vllm.loadgen.records import MachineLoad
from cm4vllm.serving.clusters.launchers.choice import launcher_of
from cm4vllm.serving.clusters.launchers.interface import Launcher
from cm4vllm.serving.clusters.node_processes import node_program
from cm4vllm.serving.records import ServerRecord

__all__ = ["NodeSamples", "nodes_sampled"]

#: The samples of a node, * being its number: the head is 1.
NODE_FILES = "machine_metrics-*.jsonl"
_END_S = 10.0


@dataclass(frozen=True)
class NodeSamples:
    """The files with the samples of each node, in the order of the nodes."""

    files: tuple[Path, ...] = ()

    def loads(self) -> list[MachineLoad]:
        """Return the work of each node during the run. A node without two samples is left out, with a warning."""
        loads = []
        for number, path in enumerate(self.files, 1):
            known = [sample for sample in read_machine_samples(path) if sample.busy_s is not None]
            load = load_between(known[0], known[-1]) if len(known) > 1 else None
            if load is None:
                warn(f"node {number} of the server gave no samples of its processors")
            else:
                loads.append(load)
        return loads

    def write_gpus(self, path: Path) -> None:
        """Write the samples of the GPUs of all nodes into one file; no file without samples."""
        looks = [read_machine_samples(file) for file in self.files]
        samples = [
            GpusSample(at_s=several[0].at_s, gpus=gpus)
            for several in zip(*looks, strict=False)
            if (gpus := _numbered([sample.gpus for sample in several]))
        ]
        if samples:
            write_sample_file(path, samples)


@contextmanager
def nodes_sampled(server: ServerRecord, folder: Path, launcher: Launcher | None = None) -> Iterator[NodeSamples]:
    """Sample each node of a server through the block; no node where the server is on this machine alone.

    `launcher` takes the place of the one that started the server.
    """
    launcher = launcher or launcher_of(server)
    if launcher is None:
        yield NodeSamples()
        return
    program = node_program("cm4vllm.hardware.machine_samples")
    files = tuple(folder / NODE_FILES.replace("*", str(number)) for number in range(1, len(launcher.nodes) + 1))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for node, path in zip(launcher.nodes, files, strict=True):
            with path.open("wb") as output, contextlib.suppress(OSError):
                running.append(
                    subprocess.Popen(
                        launcher.words(node, program),
                        stdin=subprocess.PIPE,
                        stdout=output,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )
        yield NodeSamples(files)
    finally:
        _end(running)
        NodeSamples(files).write_gpus(folder / GPU_SAMPLES_FILE)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the programs: each writes its last sample when its standard input ends."""
    for process in running:
        if process.stdin is not None:
            process.stdin.close()
    for process in running:
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _numbered(nodes: Sequence[Sequence[GpuSample]]) -> list[GpuSample]:
    """Return the GPUs of all nodes with numbers that go on from node to node, and the node in their names."""
    gpu_samples: list[GpuSample] = []
    for number, gpus in enumerate(nodes, 1):
        begin = len(gpu_samples)
        gpu_samples += [replace(gpu, index=begin + gpu.index, name=f"{gpu.name}, node {number}") for gpu in gpus]
    return gpu_samples

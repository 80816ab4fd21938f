"""Load of the machines during a run: the shares of server, client and others, and slowed-down processors.

This machine is sampled when the run begins and when it has ended. Each node of a server over several is sampled all
the time, through its launcher.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace

from cm4vllm.common.progress import warn
from cm4vllm.common.records import write_sample_file
from cm4vllm.hardware.machine_samples import MachineSample, machine_sample, read_machine_samples, throttling_between
from cm4vllm.records.metrics import GPU_SAMPLES_FILE, GpuSample, GpusSample
from cm4vllm.records.run import MachineLoad
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.vllm.server_needs import uses_ray
from cm4vllm.serving.clusters.launchers import Launcher, launcher_of
from cm4vllm.serving.clusters.node_processes import node_program
from cm4vllm.serving.supervisor import descendants

#: The samples of a node, * being its number: the head is 1.
NODE_FILES = "machine_metrics-*.jsonl"
_END_S = 10.0


class MachineMeter:
    """Measures the machine from its creation on. Its own are this process, its children, and the server's processes."""

    def __init__(self, server: ServerRecord) -> None:
        """Begin to measure the load of this machine beside that of the server and the client."""
        self._supervisors = tuple(server.supervisors)
        # Ray starts the workers, not the server: their processes are not known here. Nor are those of other nodes.
        here = all(node.launcher == "local" for node in server.nodes)
        self._knows_server = server.owned and not uses_ray(server.options) and here
        self._begin = time.monotonic()
        self._first = machine_sample(self._begin)
        self._own = self._own_s()

    def load(self) -> MachineLoad | None:
        """Return the load measured until now; None where the kernel shows none. The client's processes have ended."""
        load = _load_between(self._first, machine_sample(self._begin))
        if load is None or not self._knows_server:
            return load
        return replace(load, own_s=round(max(0.0, self._own_s() - self._own), 2))

    def _own_s(self) -> float:
        """Return the processor time of its own processes, and of their children that have ended."""
        pids = [pid for supervisor in self._supervisors for pid in (supervisor, *descendants(supervisor))]
        total = 0.0
        for pid in (os.getpid(), *pids):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total


def _load_between(first: MachineSample, last: MachineSample) -> MachineLoad | None:
    """Return the load of a machine between two samples; None if the kernel does not show it."""
    if first.busy_s is None or last.busy_s is None:
        return None
    return MachineLoad(
        processors=last.processors,
        wall_s=round(last.at_s - first.at_s, 3),
        busy_s=round(last.busy_s - first.busy_s, 2),
        stolen_s=round((last.stolen_s or 0.0) - (first.stolen_s or 0.0), 2),
        throttled=throttling_between(first.throttled, last.throttled),
    )


@dataclass(frozen=True)
class NodeSamples:
    """The files with the samples of each node, in the order of the nodes."""

    files: tuple[Path, ...] = ()

    def loads(self) -> list[MachineLoad]:
        """Return the work of each node during the run. A node without two samples is left out, with a warning."""
        loads = []
        for number, path in enumerate(self.files, 1):
            known = [sample for sample in read_machine_samples(path) if sample.busy_s is not None]
            load = _load_between(known[0], known[-1]) if len(known) > 1 else None
            if load is None:
                warn(f"node {number} of the server gave no samples of its processors")
            else:
                loads.append(load)
        return loads

    def write_gpus(self, path: Path) -> None:
        """Write the samples of the GPUs of all nodes into one file; no file without samples."""
        together = zip(*map(read_machine_samples, self.files), strict=False)
        numbered = [(several[0].at_s, _number_gpus([sample.gpus for sample in several])) for several in together]
        if samples := [GpusSample(at_s=at_s, gpus=gpus) for at_s, gpus in numbered if gpus]:
            write_sample_file(path, samples)


@contextmanager
def nodes_sampled(server: ServerRecord, folder: Path, launcher: Launcher | None = None) -> Iterator[NodeSamples]:
    """Sample each node of a server through the block; no node where the server is on this machine alone.

    `launcher` takes the place of the one that started the server.
    """
    if (launcher := launcher or launcher_of(server)) is None:
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


def _number_gpus(nodes: Sequence[Sequence[GpuSample]]) -> list[GpuSample]:
    """Return the GPUs of all nodes with numbers that go on from node to node, and the node in their names."""
    gpu_samples: list[GpuSample] = []
    for number, gpus in enumerate(nodes, 1):
        before = len(gpu_samples)
        gpu_samples += [replace(gpu, index=before + gpu.index, name=f"{gpu.name}, node {number}") for gpu in gpus]
    return gpu_samples

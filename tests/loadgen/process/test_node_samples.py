"""Samples of each node of a server: by a program that the launcher runs there, which ends with its standard input."""

import sys
import time
from pathlib import Path

import msgspec

from cm4vllm.common.records import read_sample_file
from cm4vllm.hardware.machine_samples import MachineSample, read_machine_samples
from cm4vllm.loadgen.process.machine_load import NodeSamples, nodes_sampled
from cm4vllm.records.metrics import GPU_SAMPLES_FILE, GpuSample, GpusSample
from cm4vllm.records.server import NodeRecord, ServerRecord
from cm4vllm.serving.clusters.launchers.choice import launcher_of
from cm4vllm.serving.clusters.launchers.local import LocalLauncher


def server(*nodes: NodeRecord) -> ServerRecord:
    return ServerRecord(endpoint="", model_name="m", max_model_len=1, version="", owned=True, nodes=list(nodes))


def test_each_node_is_sampled_through_the_block(tmp_path):
    with nodes_sampled(server(), tmp_path, LocalLauncher(("n1", "n2"))) as nodes:
        deadline = time.monotonic() + 20
        while not all(path.stat().st_size for path in nodes.files):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)  # the kernel counts in steps of 10 ms
    assert [path.name for path in nodes.files] == ["machine_metrics-1.jsonl", "machine_metrics-2.jsonl"]
    assert all(len(read_machine_samples(path)) >= 2 for path in nodes.files)
    loads = nodes.loads()
    assert len(loads) == 2
    assert all(0 <= load.busy <= 1.1 and load.own is None and load.wall_s > 0 for load in loads)


class Silent(LocalLauncher):
    def words(self, node, program):
        return [sys.executable, "-c", "print('Welcome')"] if node == "n2" else list(program)


def test_a_node_that_gives_no_samples_is_named(tmp_path, capsys):
    with nodes_sampled(server(), tmp_path, Silent(("n1", "n2"))) as nodes:
        time.sleep(0.5)
    nodes.loads()
    assert "node 2 of the server gave no samples" in capsys.readouterr().out


def test_the_gpus_of_all_nodes_are_numbered_through(tmp_path):
    files = []
    for node in (1, 2):
        gpus = [GpuSample(index=place, name="H100", power_w=100.0 * node + place) for place in (0, 1)]
        samples = [MachineSample(at_s=at, processors=2, gpus=gpus) for at in (0.0, 2.0, 4.0)]
        files.append(tmp_path / f"{node}.jsonl")
        lines = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples[: 4 - node])
        files[-1].write_bytes(b"Last login: today\n" + lines)
    NodeSamples(tuple(files)).write_gpus(tmp_path / GPU_SAMPLES_FILE)
    looks = read_sample_file(tmp_path / GPU_SAMPLES_FILE, GpusSample)
    assert [look.at_s for look in looks] == [0.0, 2.0]
    assert [(gpu.index, gpu.name, gpu.power_w) for gpu in looks[0].gpus] == [
        (0, "H100, node 1", 100.0),
        (1, "H100, node 1", 101.0),
        (2, "H100, node 2", 200.0),
        (3, "H100, node 2", 201.0),
    ]


def test_only_the_nodes_of_other_machines_are_sampled():
    assert launcher_of(server()) is None
    assert launcher_of(server(NodeRecord(name="node1", launcher="local"))) is None
    for kind in ("ssh", "slurm"):
        launcher = launcher_of(server(*(NodeRecord(name=name, launcher=kind) for name in ("a", "b"))))
        assert launcher is not None and (launcher.name, launcher.nodes) == (kind, ("a", "b"))


def test_a_server_of_this_machine_leaves_no_file(tmp_path: Path):
    with nodes_sampled(server(), tmp_path) as nodes:
        pass
    assert nodes.loads() == [] and not list(tmp_path.iterdir())

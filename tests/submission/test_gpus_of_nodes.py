"""The GPUs of a server over several nodes: the first of those that each node shows its programs."""

from cm4vllm.records.node import NodeReport
from cm4vllm.records.server import ServerRecord
from cm4vllm.submission.gpus_in_use import gpus_of_nodes

REPORTS = [NodeReport(host=f"n{node}", gpu_uuids=[f"GPU-{node}-{place}" for place in range(8)]) for node in (1, 2)]


def server(version: str, *sizes: str) -> ServerRecord:
    argv = ["python", "-m", "vllm.entrypoints.cli.main", "serve", "m", *sizes]
    return ServerRecord(endpoint="", model_name="m", max_model_len=1, version=version, owned=True, argv=argv)


def test_each_node_gives_as_many_as_it_has_workers():
    used = gpus_of_nodes(server("0.32.0", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"), REPORTS)
    assert used == ["GPU-1-0", "GPU-1-1", "GPU-2-0", "GPU-2-1"]


def test_the_cpu_backend_uses_none():
    assert gpus_of_nodes(server("0.32.0+cpu", "--tensor-parallel-size", "2"), REPORTS) == []

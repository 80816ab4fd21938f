"""Cores and GPUs are shared out among servers and their workers, or refused."""

from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.serving.arguments import ServerSettings, server_argv, server_env
from cm4vllm.serving.clusters.placement import (
    core_bindings,
    gpu_groups,
    in_few_processes,
    own_cores,
    placed,
    visible_gpus,
)


@pytest.mark.parametrize(
    ("cores", "servers", "workers", "bindings"),
    [
        ([0, 1], 1, 2, ["0|1"]),
        ([0, 1], 2, 1, ["0", "1"]),
        (list(range(8)), 2, 2, ["0-1|2-3", "4-5|6-7"]),
        ([0, 2, 4, 6], 1, 2, ["0,2|4,6"]),
        ([3, 5, 7], 1, 2, ["3|5"]),
        (list(range(7)), 1, 1, ["0-6"]),
    ],
)
def test_cores_are_shared_evenly(cores, servers, workers, bindings):
    assert core_bindings(cores, servers, workers) == bindings


def test_no_core_is_given_twice():
    cores = list(range(64))
    for servers in range(1, 5):
        for workers in range(1, 5):
            used = []
            for binding in core_bindings(cores, servers, workers):
                for group in binding.split("|"):
                    first, _, last = group.partition("-")
                    used += range(int(first), int(last or first) + 1)
            assert len(used) == len(set(used)) == 64 // (servers * workers) * servers * workers


def test_too_few_cores_are_told():
    with pytest.raises(UsageError, match="2 servers of 2 workers need 4 cores"):
        core_bindings([0, 1], 2, 2)


def test_gpus_are_given_by_what_is_visible():
    assert gpu_groups(visible_gpus({}, 4), 2, 2) == ["0,1", "2,3"]
    named = visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}, 8)
    assert gpu_groups(named, 3, 1) == ["GPU-a", "GPU-b", "GPU-c"]


def test_too_few_gpus_are_told():
    with pytest.raises(UsageError, match="need 4 GPUs"):
        gpu_groups(visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, 8), 2, 2)


def test_the_cores_of_this_process_are_those_it_may_use():
    assert own_cores()


def server(**given):
    return ServerSettings(model="owner/name", name="n", **given)


def test_servers_alike_on_a_cpu_have_cores_of_their_own(monkeypatch):
    monkeypatch.setattr("cm4vllm.serving.clusters.placement.own_cores", lambda: [0, 1, 2, 3])
    parts = placed(server(tp_size=2, port=9000), 2, 0, {})
    assert [(part.cpu_binding, part.port) for part in parts] == [("0|1", 9000), ("2|3", 9001)]
    assert placed(server(), 1, 0, {}) == [server()]


@pytest.mark.parametrize(
    ("given", "servers", "cores", "backend", "threads"),
    [
        ({}, 1, 1, "uni", 1),
        ({}, 1, 2, "uni", 1),
        ({}, 1, 3, "uni", 2),
        ({}, 1, 4, "", 0),
        ({}, 2, 4, "", 0),
        ({"distributed_executor_backend": "uni"}, 2, 8, "uni", 3),
        ({}, 0, 4, "", 0),
        ({"tp_size": 2}, 1, 2, "", 0),
        ({"device": "cuda"}, 1, 2, "", 0),
        ({"cpu_binding": "0"}, 1, 2, "", 0),
        ({"distributed_executor_backend": "mp"}, 1, 2, "mp", 0),
        ({"distributed_executor_backend": "uni"}, 1, 8, "uni", 7),
    ],
)
def test_on_few_cores_the_worker_is_in_the_engines_process(given, servers, cores, backend, threads):
    chosen = in_few_processes(server(**given), servers, cores)
    assert (chosen.distributed_executor_backend, chosen.threads) == (backend, threads)
    assert server_env(chosen).get("OMP_NUM_THREADS", "0") == str(threads)
    assert ("VLLM_ENABLE_V1_MULTIPROCESSING" in server_env(chosen)) is (backend == "uni")


def test_servers_alike_on_gpus_see_only_their_own():
    parts = placed(server(device="cuda", tp_size=2), 2, 8, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert [server_env(part)["CUDA_VISIBLE_DEVICES"] for part in parts] == ["4,5", "6,7"]
    assert "CUDA_VISIBLE_DEVICES" not in server_env(placed(server(device="cuda"), 1, 8, {})[0])
    assert server_env(placed(server(device="rocm"), 2, 8, {})[1])["HIP_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("given", "servers", "why"),
    [
        ({"pp_size": 2}, 1, "pipeline"),
        ({"ray_address": "head:6379"}, 1, "Ray"),
        ({"cpu_binding": "0"}, 2, "same cores"),
        ({}, 0, "replicas"),
    ],
)
def test_what_the_cpu_backend_cannot_do_is_refused(given, servers, why):
    with pytest.raises(UsageError, match=why):
        placed(server(**given), servers, 0, {})


def test_a_server_on_ray_is_told_where_the_cluster_is():
    chosen = server(device="cuda", ray_address="10.0.0.1:6379", tp_size=8, pp_size=2)
    words = server_argv(Path("python"), chosen)
    assert words[words.index("--distributed-executor-backend") + 1] == "ray"
    assert server_env(chosen)["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert chosen.workers == 16

"""Cores and GPUs are shared out among servers and their workers, or refused."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from cm4vllm.common.errors import ServerUnreachable, UsageError
from cm4vllm.common.processors import CpuQuota
from cm4vllm.records.vllm.options import stored_options
from cm4vllm.serving.clusters.launchers import LocalLauncher
from cm4vllm.serving.clusters.node_processes import copy_to_nodes, installation
from cm4vllm.serving.clusters.placement import core_bindings, gpu_groups, in_few_processes, node_layout, placed_servers
from cm4vllm.serving.options.arguments import ServerSettings, server_argv, server_env
from gpu_machines import gpus


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
    with pytest.raises(UsageError, match="2 servers of 2 workers need 4 cores"):
        core_bindings([0, 1], 2, 2)


def test_gpus_are_given_by_what_is_visible():
    assert gpu_groups(gpus(4), {}, 2, 2) == ["0,1", "2,3"]
    named = {"CUDA_VISIBLE_DEVICES": "GPU-5,GPU-7,GPU-6"}
    assert gpu_groups(gpus(8), named, 3, 1) == ["GPU-5", "GPU-7", "GPU-6"]
    with pytest.raises(UsageError, match="need 4 GPUs, and this machine has 0 visible of the 8") as caught:
        gpu_groups(gpus(8), {"CUDA_VISIBLE_DEVICES": ""}, 2, 2)
    assert "CUDA_VISIBLE_DEVICES= is set" in caught.value.cause


@pytest.mark.parametrize(
    ("given", "servers", "needed"),
    [
        ({"tp_size": 16}, 1, 16),
        ({}, 9, 9),
        ({"tp_size": 2, "pp_size": 2}, 3, 12),
        ({"dp_size": 5, "tp_size": 2}, 1, 10),
    ],
)
def test_more_workers_than_gpus_are_refused_with_both_numbers(given, servers, needed):
    with pytest.raises(UsageError, match=rf"need {needed} GPUs, and this machine has 8\b"):
        placed_servers(server(device="cuda", **given), servers, gpus(8), {})


def test_workers_that_others_may_have_are_not_judged():
    assert placed_servers(server(device="cuda", tp_size=16, ray_address="head:6379"), 1, gpus(8), {})
    assert placed_servers(server(device="cuda", tp_size=16), 1, gpus(8), {}, workers=0)
    assert placed_servers(server(device="rocm", tp_size=16), 1, (), {})


@pytest.mark.parametrize(
    ("visible", "there"),
    [("0,0", 0), ("-1", 0), ("0,9", 1), ("NoDevFiles", 0), ("none", 0), ("3,4,-1,5", 2), ("GPU-9", 0), ("1,GPU-2", 1)],
)
def test_gpus_that_the_driver_does_not_show_are_not_given_away(visible, there):
    with pytest.raises(UsageError, match=rf"3 servers of 1 workers need 3 GPUs, .* has {there} visible of the 8"):
        placed_servers(server(device="cuda"), 3, gpus(8), {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"HIP_VISIBLE_DEVICES": "4,5"}, ["4", "5"]),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, ["4", "5"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, ["0", "1"]),
        ({"ROCR_VISIBLE_DEVICES": "2,4,5", "HIP_VISIBLE_DEVICES": "2,1"}, ["2", "1"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-dc91284879207f2b,GPU-0"}, ["0", "1"]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "6,7"}, ["6", "7"]),
    ],
)
def test_amds_variables_number_what_the_one_before_leaves(env, words):
    parts = placed_servers(server(device="rocm"), 2, gpus(8, "AMD"), env)
    assert [server_env(part)["HIP_VISIBLE_DEVICES"] for part in parts] == words
    assert [server_env(part)["CUDA_VISIBLE_DEVICES"] for part in parts] == words  # an inherited one would differ
    beyond = {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "4,5"}
    with pytest.raises(UsageError, match="has 0 visible of the 8"):
        placed_servers(server(device="rocm"), 2, gpus(8, "AMD"), beyond)


def test_each_server_has_one_part_of_mig_or_partitions_of_an_amd_gpu():
    split = gpus(1, mig=3)
    parts = placed_servers(server(device="cuda"), 3, split, {})
    assert [server_env(part)["CUDA_VISIBLE_DEVICES"] for part in parts] == ["MIG-0", "MIG-1", "MIG-2"]
    with pytest.raises(UsageError, match="need 4 GPUs, and this machine has 1 .in 3 parts."):
        placed_servers(server(device="cuda"), 4, split, {})
    with pytest.raises(UsageError, match="a program sees 1 part of MIG"):
        placed_servers(server(device="cuda", tp_size=2), 1, split, {})
    parts = placed_servers(server(device="rocm", tp_size=4), 2, gpus(1, "AMD", partitions=8), {})
    assert [server_env(part)["HIP_VISIBLE_DEVICES"] for part in parts] == ["0,1,2,3", "4,5,6,7"]


@pytest.mark.parametrize(
    ("cpus", "servers", "given", "threads"),
    [
        (0.5, 1, {"cpu_binding": "auto"}, 1),
        (16.0, 1, {}, 15),
        (16.0, 2, {}, 7),
        (9.5, 1, {"tp_size": 2}, 4),
        (7.65, 1, {}, 6),
    ],
)
def test_threads_keep_to_the_quota_of_the_control_group(monkeypatch, cpus, servers, given, threads):
    monkeypatch.setattr("cm4vllm.serving.clusters.placement.own_cores", lambda: list(range(64)))
    monkeypatch.setattr("cm4vllm.serving.clusters.placement.cpu_quota", lambda: CpuQuota(cpus, 0.1, Path("/")))
    for part in placed_servers(server(**given), servers, (), {}):
        env = server_env(part)
        assert (env["OMP_NUM_THREADS"], env["VLLM_CPU_OMP_THREADS_BIND"]) == (str(threads), "nobind")
    assert server_env(placed_servers(server(cpu_binding="0-3"), 1, (), {})[0])["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"


def server(**given):
    return ServerSettings(model="owner/name", name="n", **given)


def test_servers_alike_have_cores_or_gpus_of_their_own(monkeypatch):
    monkeypatch.setattr("cm4vllm.serving.clusters.placement.own_cores", lambda: [0, 1, 2, 3])
    parts = placed_servers(server(tp_size=2, port=9000), 2, (), {})
    assert [(part.cpu_binding, part.port) for part in parts] == [("0|1", 9000), ("2|3", 9001)]
    assert placed_servers(server(), 1, (), {}) == [server()]
    parts = placed_servers(server(device="cuda", tp_size=2), 2, gpus(8), {"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert [server_env(part)["CUDA_VISIBLE_DEVICES"] for part in parts] == ["4,5", "6,7"]
    assert "CUDA_VISIBLE_DEVICES" not in server_env(placed_servers(server(device="cuda"), 1, gpus(8), {})[0])


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
        placed_servers(server(**given), servers, (), {})


def test_a_server_on_ray_is_told_where_the_cluster_is():
    chosen = server(device="cuda", ray_address="10.0.0.1:6379", tp_size=8, pp_size=2)
    words = server_argv(Path("python"), chosen)
    assert words[words.index("--distributed-executor-backend") + 1] == "ray"
    assert server_env(chosen)["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert chosen.workers == 16


# --- the options of each node in one server over several, and the sizes that are refused


def words(nodes, rank, **sizes) -> str:
    layout = node_layout(nodes, **{"tp_size": 1, "pp_size": 1, "dp_size": 1} | sizes)
    return " ".join(layout.options(rank, "10.0.0.1", (2000, 2001)))


def test_a_tensor_group_crosses_nodes_and_whole_engines_are_distributed():
    assert words(2, 0, tp_size=16) == "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 2000"
    assert words(2, 1, tp_size=16).startswith("--headless --nnodes 2 --node-rank 1 ")
    assert node_layout(2, tp_size=16, pp_size=1, dp_size=1).workers == 8
    first = "--data-parallel-address 10.0.0.1 --data-parallel-rpc-port 2001"
    assert words(2, 0, dp_size=4, tp_size=4) == f"--data-parallel-size-local 2 {first}"
    assert words(2, 1, dp_size=4, tp_size=4) == (
        f"--headless --data-parallel-size-local 2 --data-parallel-start-rank 2 {first}"
    )


@pytest.mark.parametrize("sizes", [{"tp_size": 4}, {"dp_size": 4}, {"tp_size": 2, "dp_size": 2}, {"pp_size": 4}])
def test_every_option_is_one_of_vllm(sizes):
    for nodes in (2, 4):
        assert node_layout(nodes, **{"tp_size": 1, "pp_size": 1, "dp_size": 1} | sizes, options=stored_options())
        given = {word for rank in (0, 1) for word in words(nodes, rank, **sizes).split() if word.startswith("--")}
        assert given <= set(stored_options())


@pytest.mark.parametrize(
    ("nodes", "sizes"), [(2, {}), (2, {"tp_size": 3}), (4, {"dp_size": 6, "tp_size": 2}), (3, {"tp_size": 8})]
)
def test_workers_that_cannot_be_distributed_are_refused(nodes, sizes):
    with pytest.raises(UsageError, match="cannot be distributed over"):
        words(nodes, 0, **sizes)
    with pytest.raises(UsageError, match="--nnodes"):
        node_layout(2, tp_size=2, pp_size=1, dp_size=1, options={"--headless", "--tensor-parallel-size"})


# --- copies on a node that does not share this machine's files: its /opt is another one, in a mount namespace


@dataclass(frozen=True)
class OtherFiles(LocalLauncher):
    """The node n2 has a folder of its own at `place`: that of `there`."""

    place: Path = Path()
    there: Path = Path()

    def words(self, node, program):
        if node == "n1":
            return list(program)
        mounted = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(self.there), str(self.place)]
        return ["unshare", "--mount", *mounted, *program]


@pytest.fixture
def nodes(tmp_path):
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("mount namespaces need root")
    launcher = OtherFiles(("n1", "n2"), place=tmp_path / "here", there=tmp_path / "there")
    folder = launcher.place / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "weights").write_bytes(b"w" * 100_000)
    launcher.there.mkdir()
    return launcher


def test_a_node_gets_what_it_lacks_once(nodes, capsys):
    folder = nodes.place / "env"
    copy_to_nodes(nodes, [folder])
    copy = nodes.there / "env"
    assert (copy / "weights").read_bytes() == b"w" * 100_000
    assert (copy / "bin" / "python").is_symlink()
    assert "n1: has all of it" in (said := capsys.readouterr().out) and f"n2: copied {folder}" in said
    copy_to_nodes(nodes, [folder])
    assert "n2: has all of it" in capsys.readouterr().out
    (folder / "weights").write_bytes(b"v" * 100_001)
    copy_to_nodes(nodes, [folder])
    assert (copy / "weights").read_bytes() == b"v" * 100_001


def test_all_nodes_look_for_one_file_and_one_that_cannot_be_written_to_is_named(nodes):
    folder, seen = nodes.place / "env", set()

    class Full(OtherFiles):
        def words(self, node, program):
            seen.update(folder.glob(".cm4vllm-shared-*"))
            return ["false"] if program[0] == "tar" else super().words(node, program)

    with pytest.raises(ServerUnreachable, match="cannot be copied to the node n2"):
        copy_to_nodes(Full(nodes.nodes, place=nodes.place, there=nodes.there), [folder])
    assert len(seen) == 1 and not list(folder.glob(".cm4vllm-shared-*"))  # no folder changes while it is read


def test_shared_files_are_not_written_to(nodes):
    folder = nodes.place / "env"
    before = {path: path.lstat().st_mtime_ns for path in nodes.place.rglob("*") if not path.is_dir()}
    copy_to_nodes(LocalLauncher(("n1", "n2")), [folder])
    assert {path: path.lstat().st_mtime_ns for path in nodes.place.rglob("*") if not path.is_dir()} == before


def test_the_installation_is_without_what_the_system_has(tmp_path):
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/usr/bin/python3")
    model = tmp_path / "model"
    model.mkdir()
    folders = installation(python, str(model))
    assert {tmp_path / "vllm", model} <= set(folders)
    assert not [folder for folder in folders if folder.is_relative_to("/usr")]
    assert not [folder for folder in folders for other in folders if folder != other and folder.is_relative_to(other)]


def test_what_a_first_start_compiled_goes_to_the_nodes_too(tmp_path, monkeypatch):
    python = tmp_path / "vllm" / "bin" / "python"
    places = [tmp_path / "cache/vllm", tmp_path / "flash/.cache/flashinfer", tmp_path / "triton"]
    for folder in (python.parent, *places):
        folder.mkdir(parents=True)
    python.symlink_to("/usr/bin/python3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path / "flash"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    assert set(places) <= set(installation(python, ""))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "nowhere"))
    assert places[0] not in installation(python, ""), "a cache that is not there is not asked for"

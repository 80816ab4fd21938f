"""Each question to a driver and each file of the kernel goes unanswered in turn: only its own fact is left open."""

import ast
import contextlib
import json
import re
import shutil
from pathlib import Path

import pynvml
import pytest
from machines import put
from test_amd import library
from tests.script.main_job import asked, planned

from cm4vllm.doctor.machine_page import MachineSettings, report_machine
from cm4vllm.hardware.gpus.gpu import detect_gpus, silent_gpus
from cm4vllm.hardware.gpus.vendors import amd, nvml
from cm4vllm.hardware.machine_facts import (
    cpu_env,
    cpu_lines,
    detect_machine,
    gpu_env,
    gpu_lines,
    host_lines,
    memory_lines,
    network_lines,
    storage_lines,
)
from cm4vllm.hardware.machine_samples import energy_watched, look_at_gpus, package_counters, throttling
from cm4vllm.hardware.memory import free_memory
from cm4vllm.hardware.readiness import machine_limits, unready
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.rules import catalogue
from cm4vllm.serving.fit.advice import AdviceSettings, asked_of
from cm4vllm.serving.gpu_memory import gpu_memory
from cm4vllm.serving.installation.vllm_choice import require_device
from gpu_replay import Replay
from offenders import offenders
from syntax import nodes_of

SRC = Path(__file__).resolve().parents[2] / "src" / "cm4vllm"
RECORDINGS = Path(__file__).with_name("recordings")
QUESTION = re.compile(r"nvml[A-Z]\w+|amdsmi_(?!init$|shut_down$)\w+")
TEXTS = {path.relative_to(SRC).as_posix(): path.read_text() for path in sorted(SRC.rglob("*.py"))}
ASKED = sorted({word for text in TEXTS.values() for word in re.findall(r'"(\w+)"', text) if QUESTION.fullmatch(word)})
ERRORS = (
    pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
    AttributeError("function not breaches"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    KeyError(10),
)


class Silent:
    """A driver that answers all questions but one."""

    def __init__(self, whole, question, error):
        self._whole, self._question, self._error = whole, question, error

    def __getattr__(self, name):
        if name != self._question:
            return getattr(self._whole, name)

        def call(*_):
            raise self._error

        return call


def described(gpus=None, machine=None):
    machine = machine or detect_machine()
    used = None if gpus is None else [gpu.uuid for gpu in gpus]
    asked_for = SystemAsked(submitter="s", division="open", system_type="datacenter", vllm="0.32.0", used=used)
    return describe_system(machine, asked_for)


def everything_works(gpus):
    assert gpu_env(gpus)["CM_HOST_GPU_COUNT"] == str(len(gpus))
    assert gpu_lines(gpus)
    silent_gpus()
    assert described(gpus)["number_of_nodes"] == "1"
    gpu_memory()
    throttling()
    with energy_watched() as watch:
        assert watch.counters or watch.missing
    require_device("cpu")


def replay(recording):
    return Replay(json.loads((RECORDINGS / f"{recording}.json").read_text()))


@pytest.fixture
def drivers(monkeypatch):
    """Return a function that puts drivers in place of this machine's."""

    def put_in_place(nvidia=None, of_amd=None):
        monkeypatch.setattr(nvml.VENDOR, "opened", lambda: contextlib.nullcontext(nvidia))
        monkeypatch.setattr(amd.VENDOR, "opened", lambda: contextlib.nullcontext(of_amd))

    return put_in_place


def test_the_questions_are_known():
    assert {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTotalEnergyConsumption", "amdsmi_get_gpu_vram_info"} <= set(ASKED)
    assert len(ASKED) > 30


@pytest.mark.parametrize("recording", ["l40s-x4", "h100-mig-3g40gb-x2"])
def test_each_question_to_nvml_may_fail(drivers, recording):
    def check(question, error):
        driver = Silent(replay(recording), question, error)
        drivers(driver)
        gpus = detect_gpus()
        if error is ERRORS[0]:
            everything_works(gpus)
        look_at_gpus([(nvml.VENDOR, driver)])
        if gpus:
            require_device("cuda", {})
        assert bool(gpus) == (question not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"))

    cases = [(question, error) for question in ASKED if question.startswith("nvml") for error in ERRORS]
    assert offenders(check, cases) == []


@pytest.mark.parametrize("missing", [False, True])
def test_each_question_to_amdsmi_may_fail(drivers, missing):
    def check(question):
        driver = library(**{question: False})
        if missing:
            delattr(driver, question)
        drivers(None, driver)
        gpus = detect_gpus()
        everything_works(gpus)
        assert bool(gpus) == (question != "amdsmi_get_processor_handles")

    questions = [question for question in ASKED if hasattr(library(), question)]
    assert len(questions) > 8 and offenders(check, [(question,) for question in questions]) == []


@pytest.mark.parametrize("question", ["nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName"])
def test_doctor_advice_and_a_plan_for_the_cpu_need_no_answer(drivers, tmp_path, question):
    drivers(Silent(replay("l40s-x4"), question, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)))
    assert report_machine(MachineSettings(round="v6.1"), tmp_path, [])["benchmarks"]
    assert asked_of(AdviceSettings(model=next(iter(catalogue().models)))).memory_bytes > 0
    (tmp_path / "files").mkdir()
    assert planned(tmp_path, asked(tmp_path, "_vllm", {"device": "cpu"}, tmp_path / "files"))


FILES = {
    "sys/class/powercap/intel-rapl:0/name": "package-0",
    "sys/class/powercap/intel-rapl:0/energy_uj": "100",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850",
    "sys/class/dmi/id/sys_vendor": "Maker",
    "sys/class/dmi/id/product_name": "Machine",
    "sys/firmware/dmi/tables/DMI": "no table",
    "sys/class/net/eth0/speed": "10000",
    "sys/class/net/eth0/device/vendor": "0x8086",
    "sys/hypervisor/type": "",
    "sys/devices/system/edac/mc/mc0/size_mb": "1",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "sys/devices/system/cpu/smt/active": "1",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "1",
    "sys/devices/system/node/node0/cpulist": "0-15",
    "sys/devices/system/node/node1/cpulist": "",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemFree: 96 kB",
    "sys/fs/cgroup/cpu.max": "150000 100000",
    "sys/fs/cgroup/cpu.stat": "nr_periods 3\nnr_throttled 1\nthrottled_usec 5",
    "sys/fs/cgroup/memory.max": "1073741824",
    "sys/fs/cgroup/memory.current": "1024",
    "sys/fs/cgroup/memory.stat": "inactive_file 512",
    "proc/self/cgroup": "0::/",
    "proc/sys/net/ipv4/ip_local_port_range": "32768 60999",
}


def read_all(root):
    machine = detect_machine(root)
    for lines in (
        host_lines(machine.host),
        cpu_lines(machine.cpu, machine.host),
        memory_lines(machine.memory),
        storage_lines(machine.disks, machine.root_bytes),
        network_lines(machine.network),
    ):
        assert lines
    assert machine.cpu.logical_cpus and machine.memory.total_bytes
    assert cpu_env(machine.cpu, machine.host)
    assert described(machine=machine)["host_processors_per_node"]
    unready(root)
    machine_limits(root)
    free_memory(root)
    throttling(root)
    list(package_counters(root))


@pytest.mark.parametrize("kind", ["a folder", "a loop of links", "noise", "nothing"])
def test_each_file_of_the_kernel_may_be_unreadable(server, kind):
    put(server, FILES)
    for folder in server.glob("sys/devices/system/*/*"):  # one of many alike is enough
        if re.fullmatch(r"cpu([1-79]|1\d)|memory([1-9]|\d\d)", folder.name):
            shutil.rmtree(folder)
    read_all(server)
    kept = server.with_name(server.name + "-kept")
    shutil.copytree(server, kept)

    def check(path):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if kind == "a folder":
            path.mkdir()
        elif kind == "a loop of links":
            path.symlink_to(path.name)
        elif kind == "noise":
            path.write_bytes(b"\xff\xfe \x00:\n=-1 x\n")
        try:
            read_all(server)
        finally:
            path.unlink(missing_ok=True) if not path.is_dir() or path.is_symlink() else path.rmdir()
            copied = kept / path.relative_to(server)
            shutil.copytree(copied, path) if copied.is_dir() else shutil.copy(copied, path)

    cases = [path for path in sorted(server.rglob("*")) if "cpu8" not in path.parts]
    assert len(cases) > 60
    assert offenders(check, [(path,) for path in cases]) == []


#: Modules that read other files too, of their own, of a container engine, or those of a tree.
OWN_FILES = set(
    "records/known_hardware.py hardware/system_file.py common/programs/containers.py submission/privacy.py".split()
)
READS = set("exists glob is_dir is_file iterdir open read_bytes read_text readlink resolve stat".split())
KERNEL = re.compile(r"/?sys/(block|class|devices|firmware|fs|hypervisor)\b.*")


@pytest.mark.xdist_group("source")
def test_no_driver_is_asked_outside_the_wrapper():
    breaches = []
    for name in TEXTS:
        for node in nodes_of(SRC / name):
            if isinstance(node, ast.Attribute) and QUESTION.fullmatch(node.attr):
                breaches.append((name, node.attr))
            if isinstance(node, ast.Import) and name not in (
                "hardware/gpus/vendors/nvml.py",
                "hardware/gpus/vendors/amd.py",
            ):
                breaches += [(name, alias.name) for alias in node.names if alias.name in ("pynvml", "amdsmi")]
    assert breaches == []


@pytest.mark.xdist_group("source")
def test_no_file_of_the_kernel_is_read_outside_the_wrapper():
    breaches = []
    for name in TEXTS:
        nodes = nodes_of(SRC / name)
        words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        of_kernel = any(KERNEL.fullmatch(word) for word in words)
        if name in OWN_FILES or not (of_kernel or name.startswith("hardware/")):
            continue
        calls = [node.func for node in nodes if isinstance(node, ast.Call)]
        used = {call.attr for call in calls if isinstance(call, ast.Attribute)}
        used |= {call.id for call in calls if isinstance(call, ast.Name) and call.id == "open"}
        breaches += [(name, call) for call in sorted(used & READS)]
    assert breaches == []

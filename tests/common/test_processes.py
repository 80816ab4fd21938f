"""Child processes: their output, their exit in words, and their end with their parent."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from cm4vllm.common.errors import InstallError
from cm4vllm.common.programs import environments
from cm4vllm.common.programs.containers import (
    Container,
    Mount,
    ask_engine,
    engine_for,
    engine_version,
    engines,
    missing_hook,
    require_ready,
    run_words,
)
from cm4vllm.common.programs.environments import (
    make_environment,
    pip_settings,
    require_resolved,
    require_success,
    site_packages,
)
from cm4vllm.common.programs.processes import Completed, exit_in_words, run

SRC = Path(__file__).parents[2] / "src"


def test_output_and_status_are_kept():
    done = run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"])
    assert not done.ok
    assert done.status == 7
    assert set(done.output.split()) == {"out", "err"}


def test_the_log_holds_everything_and_the_tail_its_end(tmp_path):
    done = run([sys.executable, "-c", "print('\\n'.join(map(str, range(500))))"], log=tmp_path / "log")
    assert (tmp_path / "log").read_text().count("\n") == 500
    assert done.tail(2) == "498\n499"


@pytest.mark.parametrize(
    ("status", "words"), [(7, "exit status 7"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")]
)
def test_exit_in_words(status, words):
    assert exit_in_words(status) == words


CHILD = f"""
import sys, time
sys.path.insert(0, {str(SRC)!r})
from cm4vllm.common.programs.processes import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
print(child.pid, flush=True)
child.wait()
"""


def test_a_child_dies_with_its_parent_even_by_kill_9():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
        words = {process.stdout.readline().strip(), process.stdout.readline().strip()}
        pid = int((words - {"ready"}).pop())
        process.send_signal(signal.SIGKILL)
        process.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(30)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("logged", [False, True])
def test_what_a_command_started_ends_with_it_when_it_is_left(tmp_path, logged):
    pid = tmp_path / "pid"
    log = tmp_path / "log" if logged else None
    for timeout_s in (1, 20):  # in the first second the shell may have stood still
        begin = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            run(["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"], log=log, timeout_s=timeout_s)
        assert time.monotonic() - begin < 50
        if pid.exists() and pid.read_text():
            break
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid.read_text())).wait(30)


# --- the messages of failed installations: each names the cause


INDEX = "http://127.0.0.1:9"  # the discard port: no program listens there


def pip(*words):
    argv = [sys.executable, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--dry-run", *words]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return Completed(tuple(argv), done.returncode, done.stdout)


@pytest.mark.parametrize("constraint", ["", "cm4vllm-none<2\n"], ids=["", "a constraint of the user"])
def test_a_machine_without_a_network_is_named_as_the_cause(tmp_path, constraint):
    (tmp_path / "constraint.txt").write_text(constraint)
    words = ["--retries=1", f"--index-url={INDEX}", f"--constraint={tmp_path / 'constraint.txt'}", "cm4vllm-none==1"]
    with pytest.raises(InstallError) as failed:
        require_success(pip(*words), "it cannot be installed", "--my_index")
    assert failed.value.what == "it cannot be installed"
    assert failed.value.cause == "pip has no connection to the package index: [Errno 111] Connection refused"
    assert "where the machine has a network" in failed.value.remedy
    assert "--my_index or `pip config`" in failed.value.remedy


def test_a_release_that_an_index_does_not_have_is_no_failure_of_the_network(tmp_path):
    with pytest.raises(InstallError) as failed:
        require_success(pip("--no-index", f"--find-links={tmp_path}", "cm4vllm-none==1"), "it cannot be installed")
    assert "No matching distribution found for cm4vllm-none==1" in failed.value.cause


@pytest.mark.parametrize(
    "said", ["error: externally-managed-environment\n\nThis environment is ...", "ERROR: [Errno 13] Permission denied"]
)
def test_another_users_python_is_answered_with_a_virtual_environment(said):
    with pytest.raises(InstallError) as failed:
        require_success(Completed(("pip",), 1, said), "it cannot be installed")
    assert "use a virtual environment" in failed.value.remedy
    assert said.splitlines()[0] in failed.value.cause


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    path = tmp_path_factory.mktemp("wheel") / "demo0-1-py3-none-any.whl"
    files = {
        "demo0/__init__.py": "",
        "demo0-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo0\nVersion: 1\n",
        "demo0-1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "demo0-1.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("environment"))


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"PIP_TARGET": "{elsewhere}", "PIP_CONSTRAINT": "{elsewhere}/none.txt", "PIP_NO_SUCH_OPTION": "1"}, ""),
        (
            {},
            "[global]\nconstraint = {elsewhere}/none.txt\n[install]\nuser = true\ntarget = {elsewhere}\n"
            "--root = {elsewhere}\n",
        ),
    ],
    ids=["variables", "a file"],
)
def test_packages_get_into_the_environment_whatever_the_users_settings_of_pip(
    wheel, environment, tmp_path, monkeypatch, variables, text
):
    """Settings are variables, or stand in the user's file."""
    elsewhere, file = tmp_path / "elsewhere", tmp_path / "pip" / "pip.conf"
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(elsewhere=elsewhere))
    file.parent.mkdir()
    file.write_text(text.format(elsewhere=elsewhere))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = environments.pip(environment, ["--no-index", "--force-reinstall", str(wheel)])
    assert done.ok, done.output
    assert (site_packages(environment.parents[1]) / "demo0" / "__init__.py").exists()
    assert not elsewhere.exists()
    assert environments.pip(environment, ["demo0"], action="uninstall").ok


def test_the_users_indexes_and_proxies_stay(environment, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    monkeypatch.setenv("PIP_RETRIES", "0")
    done = environments.pip(environment, ["cm4vllm-none==1"])
    assert not done.ok
    assert INDEX.removeprefix("http://") in done.output.replace("'", "") or "port=9" in done.output


FILES = ("XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "PIP_CONFIG_FILE")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Yield the files of pip's settings of a machine, of a user, and that a variable names, the least first."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    paths = {name: tmp_path / name / "pip" / "pip.conf" for name in FILES}
    for name, path in paths.items():
        path.parent.mkdir(parents=True)
        monkeypatch.setenv(name, str(path if name == "PIP_CONFIG_FILE" else tmp_path / name))
    return paths


def test_settings_hold_in_pip_s_own_order(files, monkeypatch):
    """As `pip config debug` shows it: a machine's file, the user's or the one that is named, the environment."""
    machine, user, named = files.values()
    machine.write_text("[global]\nindex-url = https://a/\nproxy = https://p/\n[install]\ntimeout = 3\n")
    user.write_text("[global]\nindex-url = https://b/\ntimeout = 4\n")
    expected = {"PIP_INDEX_URL": "https://b/", "PIP_PROXY": "https://p/", "PIP_TIMEOUT": "3"}
    variables, before = pip_settings()  # this machine's /etc/pip.conf may have more
    assert expected.items() | {("PIP_CONFIG_FILE", os.devnull)} <= variables.items()
    named.write_text("[global]\nextra_index_url =\n  https://c/\n  https://d/\nprefix = /x\n")
    monkeypatch.setenv("PIP_TIMEOUT", "5")
    monkeypatch.setenv("PIP_TARGET", "/y")
    variables, unused = pip_settings()
    assert variables["PIP_INDEX_URL"] == "https://a/"
    assert variables["PIP_EXTRA_INDEX_URL"].split() == ["https://c/", "https://d/"]
    assert (variables["PIP_TIMEOUT"], variables["PIP_TARGET"]) == ("5", "")
    assert set(unused) == {"PIP_TARGET", "global.prefix", *before}
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert "PIP_INDEX_URL" not in pip_settings()[0]


@pytest.mark.parametrize("text", ["index-url = https://a/\n", "[global\nx\n", "[global]\nno-index\n"])
def test_settings_that_pip_cannot_read_are_refused_with_the_file(files, text):
    files["XDG_CONFIG_DIRS"].write_text(text)
    with pytest.raises(InstallError, match="cannot be read") as failed:
        pip_settings()
    assert str(files["XDG_CONFIG_DIRS"]) in failed.value.what


@pytest.mark.parametrize("index", ["https://index.invalid/simple", "https://wheels.invalid", "http://a..b/"])
def test_an_index_without_an_address_is_an_error_at_once(index, monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    began = time.monotonic()
    with pytest.raises(InstallError, match="cannot be reached") as failed:
        require_resolved(index, "--my_index")
    assert time.monotonic() - began < 30
    assert "--my_index or `pip config`" in failed.value.remedy
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    require_resolved(index)
    require_resolved(INDEX)


# --- the command that runs a container, by engine and device; what is missing for it is named


NVIDIA = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n"


def container(**changes):
    given = {
        "image": "registry/vllm:1",
        "program": ("python3", "-m", "vllm"),
        "host_network": True,
        "shm_size": "16g",
        "mounts": (Mount("/model"), Mount("/cache", writable=True)),
        "passed": ("HF_TOKEN",),
    }
    return Container(**{**given, **changes})


def fake_engine(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_whole_command_of_docker(tmp_path):
    words = run_words(engines()["docker"], container(device="cuda", name="one", label="a=b"), tmp_path)
    assert words == [
        *("docker", "run", "--rm", "--name=one", "--label=a=b", "--network=host", "--shm-size=16g", "--gpus=all"),
        *("--volume=/model:/model:ro", "--volume=/cache:/cache", "--env", "HF_TOKEN"),
        *("--entrypoint=python3", "registry/vllm:1", "-m", "vllm"),
    ]


@pytest.mark.parametrize(
    ("engine", "device", "words"),
    [
        ("podman", "cuda", ["--device=nvidia.com/gpu=all"]),
        ("docker", "rocm", ["--device=/dev/kfd", "--device=/dev/dri"]),
        ("docker", "cpu", ["--cap-add=SYS_NICE"]),
        ("apptainer", "cuda", ["--nv"]),
        ("apptainer", "rocm", ["--rocm"]),
    ],
)
def test_a_device_has_the_options_of_the_engine(tmp_path, engine, device, words):
    made = run_words(engines()[engine], container(device=device), tmp_path)
    before = made[: made.index("registry/vllm:1")]
    assert [word for word in before if word in words] == words
    others = {"--gpus=all", "--device=nvidia.com/gpu=all", "--device=/dev/kfd", "--nv", "--rocm"} - set(words)
    assert not others & set(before)


def test_the_groups_of_amds_device_files_go_in_by_number(tmp_path):
    for name in ("kfd", "dri/renderD128"):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    group = (tmp_path / "dev/kfd").stat().st_gid
    words = run_words(engines()["docker"], container(device="rocm"), tmp_path)
    assert [word for word in words if word.startswith("--group-add")] == ([f"--group-add={group}"] if group else [])


def test_apptainer_takes_the_program_after_the_image(tmp_path):
    words = run_words(engines()["apptainer"], container(device="cpu"), tmp_path)
    assert words == [
        *("apptainer", "exec", "--no-home", "--bind=/model:/model:ro", "--bind=/cache:/cache"),
        *("registry/vllm:1", "python3", "-m", "vllm"),
    ]


def test_the_image_has_its_own_program_where_none_is_given():
    assert run_words(engines()["docker"], Container(image="one")) == ["docker", "run", "--rm", "one"]


@pytest.mark.parametrize("option", ["--ipc=host", "--shm-size=2g"])
def test_the_users_own_shared_memory_takes_the_place_of_ours(option):
    words = run_words(engines()["podman"], container(options=(option,)))
    assert [word for word in words if word.startswith(("--ipc", "--shm-size"))] == [option]


def test_mounts_have_no_label_of_selinux(tmp_path):
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").touch()
    assert "--security-opt=label=disable" in run_words(engines()["podman"], container(), tmp_path)
    assert "--security-opt=label=disable" not in run_words(engines()["podman"], container(), tmp_path / "none")


def test_no_engine_is_named_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError) as raised:
        engine_for("auto")
    assert raised.value.exit_code == 42
    assert "podman, docker, apptainer not found on PATH" in str(raised.value)
    with pytest.raises(InstallError, match="docker not found"):
        engine_for("docker")


def test_the_first_engine_on_path_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_engine(tmp_path, "docker", "echo Docker version 27.3.1, build ce12230")
    assert engine_for("auto").name == "docker"
    assert engine_version(engines()["docker"]) == "27.3.1"
    assert ask_engine(engines()["podman"], "--version").status == 127


def test_a_daemon_that_does_not_respond_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_engine(tmp_path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(InstallError, match="does not respond") as raised:
        require_ready(engines()["docker"])
    assert "Cannot connect" in raised.value.cause


def test_the_hook_for_nvidias_gpus_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    podman, docker = engines()["podman"], engines()["docker"]
    hook = missing_hook(podman, "cuda", tmp_path)
    assert hook is not None
    assert "nvidia-ctk cdi generate" in hook.remedy
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text(NVIDIA)
    assert missing_hook(podman, "cuda", tmp_path) is None
    assert missing_hook(docker, "cuda", tmp_path) is not None
    fake_engine(tmp_path, "nvidia-ctk", "true")
    assert missing_hook(docker, "cuda", tmp_path) is None
    assert missing_hook(podman, "cpu", tmp_path / "none") is None

"""The container of a server: what it gets of this machine, and that no value of the environment is in its command."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.serving.launched import gone

from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.common.programs import containers
from cm4vllm.records.published_server import container_words
from cm4vllm.records.server import ContainerRecord
from cm4vllm.records.vllm.options import OPTIONS_FILE, read_options
from cm4vllm.serving import server_container as module
from cm4vllm.serving.installation.install import PROOF
from cm4vllm.serving.installation.packages import PACKAGES
from cm4vllm.serving.launch_settings import LaunchSettings, container_notes, require_usable
from cm4vllm.serving.options.arguments import ServerSettings, server_argv, server_env
from cm4vllm.serving.server_container import (
    _reported_image,
    container_options,
    removal_words,
    server_container,
    supervised_words,
)

SECRET = "s3cret-of-the-test"
#: Files of other programs, some by a name that a model's have.
OF_A_HOME = ("kaggle.json", "config.json", "params.json", "secrets.txt", "settings.py")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def image(**changes) -> ContainerRecord:
    given = {
        "engine": "docker",
        "engine_version": "27.3.1",
        "image": "vllm/vllm-openai:v0.32.0",
        "digest": "sha256:12",
        "reference": "docker.io/vllm/vllm-openai@sha256:12",
        "device": "cuda",
        "shm_size": "16g",
    }
    return ContainerRecord(**{**given, **changes})


def settings(model, **changes) -> ServerSettings:
    return ServerSettings(device="cuda", model=str(model), name="m", container="vllm/vllm-openai:v0.32.0", **changes)


def test_the_model_is_mounted_read_only_where_it_is(model):
    assert server_container(image(), settings(model)).mounts == [f"{model}:ro"]


def test_files_that_links_of_the_model_lead_to_are_mounted_too(model, tmp_path):
    (tmp_path / "model.safetensors").write_text("x")
    (model / "model.safetensors").symlink_to(tmp_path / "model.safetensors")
    assert server_container(image(), settings(model)).mounts == [f"{model}:ro", f"{tmp_path}/model.safetensors:ro"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.json", '{"model_type": "llama"}'), ("model-00001-of-00002.safetensors", "x"), ("modeling_new.py", "")],
)
def test_files_of_another_model_and_of_a_snapshot_are_mounted_where_links_lead_to_them(model, tmp_path, name, text):
    other, content, snapshot = (tmp_path / part for part in ("other", "hub/blobs", "hub/snapshots/1"))
    for folder in (other, content, snapshot):
        folder.mkdir(parents=True)
    (model / "config.json").unlink()
    (other / name).write_text(text)
    (content / "ab12").write_text(text)
    (snapshot / name).symlink_to("../../blobs/ab12")
    for target, mounted in ((other / name, [other / name]), (snapshot / name, [snapshot / name, content / "ab12"])):
        (model / name).unlink(missing_ok=True)
        (model / name).symlink_to(target)
        assert server_container(image(), settings(model)).mounts == [f"{path}:ro" for path in (model, *mounted)]


def test_of_a_snapshot_in_the_hubs_cache_the_contents_are_mounted(tmp_path):
    blobs, snapshot = tmp_path / "models--a" / "blobs", tmp_path / "models--a" / "snapshots" / "1"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    (blobs / "ab12").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/ab12")
    (snapshot / "LICENSE").symlink_to("../../blobs/ab12")
    assert server_container(image(), settings(snapshot)).mounts == [f"{snapshot}:ro", f"{blobs}:ro"]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("everything", "/"),
        ("users.txt", "/etc/passwd"),
        ("config.json", "/none/config.json"),
        ("weights.safetensors", "../secret.json"),
        ("config.json", "../home/config.json"),
        ("settings.py", "../home/settings.py"),
        ("tokenizer.json", "../home/link/tokenizer.json"),
    ],
)
def test_links_of_a_model_that_lead_to_what_it_does_not_need_are_named_and_not_mounted(
    model, tmp_path, capsys, name, target
):
    home = tmp_path / "home"
    (home / "link").mkdir(parents=True)
    for file in (tmp_path / "secret.json", *(home / name for name in OF_A_HOME)):
        file.write_text('{"auths": {}}')
    (home / "link" / "tokenizer.json").symlink_to(home / "kaggle.json")
    (model / "config.json").unlink()
    (model / name).symlink_to(target)
    assert server_container(image(), settings(model)).mounts == [f"{model}:ro"]
    assert f"{model}/{name} -> {target}" in capsys.readouterr().out


def test_of_a_model_of_the_hub_the_hubs_folder_is_mounted(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    made = settings("Qwen/Qwen3-8B")
    record = server_container(image(), made)
    assert record.mounts == [str(tmp_path / "hub")]
    assert server_env(made)["HF_HOME"] == str(tmp_path / "hub")
    assert "HF_HOME" in record.passed


def test_variables_go_in_by_name_alone(model, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("VLLM_PORT", "tcp://10.0.0.7:8000")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    record = server_container(image(), settings(model))
    assert {"HF_TOKEN", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "VLLM_NO_USAGE_STATS"} <= set(record.passed)
    assert "HTTPS_PROXY" in record.passed
    assert "VLLM_PORT" not in record.passed
    assert "PATH" not in record.passed
    assert "PYTHONPATH" not in record.passed
    argv = server_argv(Path("python3"), settings(model), 8000)
    for words in (supervised_words(record, argv), container_words(record, argv)):
        assert SECRET not in " ".join(words)
        assert words[words.index("HF_TOKEN") - 1] == "--env"
    assert record.passed == sorted(record.passed)
    assert not any(value == SECRET for value in os.environ if value in record.passed)


def test_the_supervised_container_is_labelled_named_and_watched(model):
    record = server_container(image(), settings(model))
    argv = server_argv(Path("python3"), settings(model), 8000)
    words = supervised_words(record, argv)
    assert "--name={container}" in words
    assert any(word.startswith("--label=cm4vllm.supervisor=") and word.endswith(".{supervisor}") for word in words)
    assert "--volume={watched}:/cm4vllm-watched:ro" in words
    assert "--pull=never" in words
    inside = words[words.index(record.reference) + 1 :]
    assert inside == ["/cm4vllm/first_process.py", "/cm4vllm-watched/supervisor", *argv]
    assert removal_words(record) == ["docker", "rm", "--force", "{container}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"--env HF_TOKEN={SECRET}", "a secret in --container_args"),
        (f"--env=VLLM_API_KEY={SECRET}", "a secret in --container_args"),
        ("--detach", "--detach cannot be given"),
        ("--network=bridge", "--network cannot be given"),
        ("-itd", "-d cannot be given"),
        ("-tp8000:8000", "-p cannot be given"),
        ("--pod new:x", "--pod cannot be given"),
        ("--label cm4vllm.supervisor=1", "cm4vllm.supervisor cannot be given"),
        ("-lcm4vllm.supervisor=1", "cm4vllm.supervisor cannot be given"),
        ("--volume='/a", "cannot be read"),
    ],
)
def test_words_for_the_engine_that_cannot_be_given_are_refused(text, words):
    with pytest.raises(UsageError, match=words) as raised:
        container_options(text)
    assert SECRET not in str(raised.value)
    assert raised.value.exit_code == 20


def test_other_words_for_the_engine_are_taken():
    assert container_options("-it -v/data:/data -eNCCL_DEBUG") == ["-it", "-v/data:/data", "-eNCCL_DEBUG"]
    assert container_options("--label=owner=me -l team=a") == ["--label=owner=me", "-l", "team=a"]
    assert container_options("--env NCCL_DEBUG --ulimit memlock=-1") == "--env NCCL_DEBUG --ulimit memlock=-1".split()


# --- refusals of what no container can run: before anything is pulled, in plan and run alike


#: The module of vLLM that has the parser of its options.
SERVE = """
from argparse import ArgumentParser as FlexibleArgumentParser
class ServeSubcommand:
    def subparser_init(self, subparsers):
        parser = subparsers.add_parser("serve", add_help=False)
        parser.add_argument("--seed", type=int)
        return parser
def cmd_init(): return [ServeSubcommand()]
"""
IMAGE = {"CM_VLLM_CONTAINER": "vllm/vllm-openai:v0.32.0", "CM_MLPERF_DEVICE": "cpu"}


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Put an engine on PATH that has no image."""

    def put(name="podman", text="echo podman version 4.3.1; [ $1 != image ]"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    put()
    return put


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"CM_MLPERF_INFERENCE_API_SERVER": "http://127.0.0.1:1"}, "--container cannot be given with --api_server"),
        ({"CM_VLLM_SERVER_NODES": "a,b"}, "--container cannot be given with --nodes"),
        ({"CM_RAY_ADDRESS": "127.0.0.1:6379"}, "--container cannot be given with --ray_address"),
        ({"CM_VLLM_CONTAINER_ARGS": "--env HF_TOKEN=s3cret-of-the-test"}, "a secret in --container_args"),
        ({"CM_VLLM_CONTAINER": "--privileged"}, "is not the name of an image"),
        ({"CM_VLLM_CONTAINER": "", "CM_VLLM_CONTAINER_ENGINE": "docker"}, "--container_engine needs --container"),
        ({"CM_VLLM_CONTAINER": "", "CM_VLLM_CONTAINER_ARGS": "--ipc=host"}, "--container_args needs --container"),
    ],
)
def test_what_contradicts_itself_is_refused(engine, given, words):
    with pytest.raises(UsageError, match=words) as raised:
        require_usable(LaunchSettings.of({**IMAGE, **given}))
    assert "s3cret" not in str(raised.value)


def test_an_engine_that_is_missing_or_does_not_respond_is_refused(engine, tmp_path):
    docker = LaunchSettings.of({**IMAGE, "CM_VLLM_CONTAINER_ENGINE": "docker"})
    engine("docker", "echo Docker version 27.3.1, build 1; [ $1 != image ]")
    assert "this engine was not tried" in container_notes(docker)[1]
    engine("docker", "echo no daemon; exit 1")
    with pytest.raises(InstallError, match="does not respond") as raised:
        require_usable(docker)
    assert raised.value.exit_code == 42
    (tmp_path / "podman").unlink()
    (tmp_path / "docker").unlink()
    with pytest.raises(InstallError, match="not found on PATH"):
        require_usable(LaunchSettings.of(IMAGE))
    require_usable(LaunchSettings.of({}))


def test_a_missing_hook_is_refused(engine, monkeypatch):
    monkeypatch.setattr(module, "missing_hook", lambda name, device: containers.engines()["podman"].hooks.get(device))
    with pytest.raises(InstallError, match="no NVIDIA GPU") as raised:
        require_usable(LaunchSettings.of({**IMAGE, "CM_MLPERF_DEVICE": "cuda"}))
    assert "nvidia-ctk cdi generate" in raised.value.remedy
    assert raised.value.exit_code == 42


def test_the_plan_shows_the_whole_command_and_what_is_pulled(engine, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "s3cret-of-the-test")
    env = {**IMAGE, "CM_VLLM_CONTAINER_ARGS": "--ulimit=memlock=-1", "CM_VLLM_SERVER_MAX_NUM_SEQS": "64"}
    pulled, run, command = container_notes(LaunchSettings.of(env))
    assert pulled == "vllm/vllm-openai:v0.32.0: not on this machine: pulled"
    assert run == "run by podman 4.3.1 (tried podman 4.3.1 of Debian 12 with runc, on processors), for cpu:"
    assert command.startswith("podman run --rm --network=host --shm-size=16g --cap-add=SYS_NICE ")
    assert "--ulimit=memlock=-1 --entrypoint=python3 vllm/vllm-openai:v0.32.0 -P -m vllm" in command
    assert "--max-num-seqs=64" in command.replace(" ", "=")
    assert "--env HF_TOKEN" in command
    assert "s3cret" not in command


# --- the proof of an image's vLLM: its program prints all that is known, and the log of the container is read


#: The parts of vLLM that the proof uses.
ENGINE = """
class SamplingParams:
    def __init__(self, **_): pass
class LLM:
    def __init__(self, **_): print('{"device": "loading"')
    def generate(self, prompts, sampling, use_tqdm):
        class Part: token_ids = TOKENS; outputs = None
        Part.outputs = [Part]
        return [Part]
"""
PROVED_IMAGE = ContainerRecord(
    engine="podman", engine_version="5.0", image="vllm:1", digest="sha256:0", reference="vllm@sha256:0"
)


@pytest.fixture
def proved(tmp_path):
    """Return what a vLLM that generates these tokens reports, by the log of its proof."""

    def prove(tokens, serve=SERVE, device="cpu"):
        files = {
            "vllm/__init__.py": ENGINE.replace("TOKENS", tokens),
            "vllm/platforms.py": "class current_platform: device_name = 'cpu'",
            "vllm/entrypoints/__init__.py": "",
            "vllm/entrypoints/cli/__init__.py": "",
            "vllm/entrypoints/cli/serve.py": serve,
            "vllm-9.9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n",
        }
        for name, text in files.items():
            (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "site" / name).write_text(text)
        with (tmp_path / "proof.log").open("wb") as log:
            env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
            subprocess.run([sys.executable, PROOF, *PACKAGES], stdout=log, stderr=log, env=env, check=False)
        return _reported_image(PROVED_IMAGE, "python3", device, tmp_path)

    return prove


def test_the_device_the_versions_and_the_options_are_read_from_the_log(proved, tmp_path):
    image = proved("[5]")
    assert (image.device, image.python, image.packages["vllm"]) == ("cpu", "python3", "9.9.9")
    assert image.packages["python"].startswith("3.") and set(image.packages) <= {"python", *PACKAGES}
    assert "--seed" in read_options(tmp_path / "vllm.json")
    with pytest.raises(InstallError, match="computes on cpu, not on cuda"):
        proved("[5]", device="cuda")


def test_a_release_whose_parser_is_elsewhere_leaves_no_file(proved, tmp_path):
    proved("[5]", serve="")
    assert not (tmp_path / OPTIONS_FILE).exists()


def test_an_image_whose_vllm_generates_no_token_is_refused_with_the_place_of_its_log(proved, tmp_path):
    with pytest.raises(InstallError, match="vllm:1 does not generate a token") as caught:
        proved("[]")
    assert caught.value.cause.splitlines()[-1] == "no token was generated"
    assert f"{tmp_path / 'proof.log'}; --container_python" in caught.value.remedy


# --- the first process of a container, run outside of one: ends with its program, and with the writer of its pipe


PROGRAM = Path(module.__file__).parent / "in_container" / "first_process.py"


@pytest.fixture
def pipe(tmp_path):
    """Yield a named pipe with a writer: its path, and the descriptor."""
    path = tmp_path / "supervisor"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    yield path, descriptor
    with contextlib.suppress(OSError):
        os.close(descriptor)


def start(pipe, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, pipe[0], *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def python(pipe, code: str) -> subprocess.Popen[str]:
    return start(pipe, sys.executable, "-c", code)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
        ("import os, time\nif os.fork() == 0:\n    os._exit(0)\ntime.sleep(0.5)", 0),  # an orphan to be reaped
    ],
)
def test_it_ends_with_the_status_of_its_program(pipe, code, status):
    process = python(pipe, code)
    assert process.communicate(timeout=40)[0] == ""
    assert process.returncode == status


def test_a_signal_reaches_the_program(pipe):
    code = "import signal, time; signal.signal(15, lambda *_: exit(3)); print('up', flush=True); time.sleep(60)"
    process = python(pipe, code)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(40) == 3
    process.stdout.close()


def test_it_ends_when_the_supervisor_is_gone(pipe):
    process = python(pipe, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    program = psutil.Process(int(process.stdout.readline()))
    began = time.monotonic()
    os.close(pipe[1])
    assert "the supervisor of this container has ended" in process.communicate(timeout=40)[0]
    assert process.returncode == 97
    assert time.monotonic() - began < 30
    assert gone([program])  # killed before, and perhaps not yet gone


def test_without_the_pipe_or_the_program_nothing_is_started(pipe, tmp_path):
    for process, words, status in (
        (start((tmp_path / "none", 0), "/bin/echo", "started"), "cannot be watched", 97),
        (start(pipe, "/no/such/program"), "/no/such/program cannot be started in the container", 127),
    ):
        assert words in process.communicate(timeout=40)[0]
        assert process.returncode == status

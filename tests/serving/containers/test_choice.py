"""Refusals of what no container can run: before anything is pulled, in plan and run alike."""

import pytest

from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.common.programs import containers
from cm4vllm.serving.containers import image as image_module
from cm4vllm.serving.launch_settings import LaunchSettings, container_notes, require_usable

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


def test_a_missing_engine_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match="not found on PATH"):
        require_usable(LaunchSettings.of(IMAGE))
    require_usable(LaunchSettings.of({}))


def test_a_daemon_that_does_not_respond_is_refused(engine):
    engine("docker", "echo no daemon; exit 1")
    with pytest.raises(InstallError, match="does not respond") as raised:
        require_usable(LaunchSettings.of({**IMAGE, "CM_VLLM_CONTAINER_ENGINE": "docker"}))
    assert raised.value.exit_code == 42


def test_a_missing_hook_is_refused(engine, monkeypatch):
    monkeypatch.setattr(
        image_module, "missing_hook", lambda name, device: containers.engines()["podman"].hooks.get(device)
    )
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


def test_an_engine_that_was_not_tried_says_so(engine):
    engine("docker", "echo Docker version 27.3.1, build 1; [ $1 != image ]")
    assert (
        "this engine was not tried"
        in container_notes(LaunchSettings.of({**IMAGE, "CM_VLLM_CONTAINER_ENGINE": "docker"}))[1]
    )

"""The command that runs a container, by engine and device; what is missing for it is named."""

from pathlib import Path

import pytest

from cm4vllm.common.errors import InstallError
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
        ("docker", "cuda", ["--gpus=all"]),
        ("podman", "rocm", ["--device=/dev/kfd", "--device=/dev/dri"]),
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


def test_every_engine_says_whether_it_was_tried():
    tried = {name: bool(engine.tried) for name, engine in engines().items()}
    assert tried == {"podman": True, "docker": False, "apptainer": False}
    assert all(engine.mount != engine.writable_mount for engine in engines().values())

"""The container of a server: what it gets of this machine, and that no value of the environment is in its command."""

import os
from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.records.published_server import container_words
from cm4vllm.records.server import ContainerRecord
from cm4vllm.serving.containers.server_container import (
    container_options,
    removal_words,
    server_container,
    supervised_words,
)
from cm4vllm.serving.options.arguments import ServerSettings, server_argv, server_env

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
    [
        ("config.json", '{"model_type": "llama"}'),
        ("params.json", '{"dim": 4096}'),
        ("model-00001-of-00002.safetensors", "x"),
        ("tokenizer_config.json", "{}"),
        ("modeling_new.py", ""),
    ],
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
        ("home", "/root"),
        ("everything", "/"),
        ("users.txt", "/etc/passwd"),
        ("passwd", "/etc/passwd"),
        ("config.json", "/none/config.json"),
        ("weights.safetensors", "../secret.json"),
        ("kaggle.json", "../home/kaggle.json"),
        ("config.json", "../home/config.json"),
        ("params.json", "../home/params.json"),
        ("secrets.txt", "../home/secrets.txt"),
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


def test_the_published_command_is_what_a_user_would_type(model):
    record = server_container(image(options=["--ulimit=memlock=-1"]), settings(model))
    argv = server_argv(Path("python3"), settings(model), 8000)
    line = " ".join(container_words(record, argv))
    assert line.startswith("docker run --rm --network=host --shm-size=16g --gpus=all ")
    assert f"--ulimit=memlock=-1 --entrypoint=python3 {record.reference} -P -m vllm" in line
    assert "{" not in line


def test_the_image_has_its_own_packages(model):
    inside, outside = settings(model), ServerSettings(device="cuda", model=str(model), name="m")
    assert "PYTHONPATH" not in server_env(inside)
    assert server_env(inside) == server_env(outside)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"--env HF_TOKEN={SECRET}", "a secret in --container_args"),
        (f"--env=VLLM_API_KEY={SECRET}", "a secret in --container_args"),
        ("--detach", "--detach cannot be given"),
        ("--network=bridge", "--network cannot be given"),
        ("-id", "-d cannot be given"),
        ("-itd", "-d cannot be given"),
        ("-d=true", "-d cannot be given"),
        ("-tp8000:8000", "-p cannot be given"),
        ("-itP", "-P cannot be given"),
        ("--pod=x", "--pod cannot be given"),
        ("--pod new:x", "--pod cannot be given"),
        ("--pod-id-file=/tmp/id", "--pod-id-file cannot be given"),
        ("--restart=always", "--restart cannot be given"),
        ("--label=cm4vllm.supervisor=1", "cm4vllm.supervisor cannot be given"),
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
    assert container_options("--env NCCL_DEBUG --ulimit memlock=-1") == [
        "--env",
        "NCCL_DEBUG",
        "--ulimit",
        "memlock=-1",
    ]

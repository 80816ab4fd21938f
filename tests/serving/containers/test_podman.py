"""A server in a real container of podman: started, stopped, and gone however it ends. A peer takes vLLM's place."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import peer

from cm4vllm.common.errors import InstallError, ServerDied
from cm4vllm.common.programs.containers import engine_version, engines
from cm4vllm.records.server import ContainerRecord
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.server import start_all, stop
from cm4vllm.serving.server_container import (
    ImageSettings,
    VllmImage,
    container_options,
    known_image,
    remove_leftovers,
    vllm_image,
)
from cm4vllm.serving.supervision.death_reasons import death_reason
from cm4vllm.serving.supervision.own_supervisors import give_way
from cm4vllm.serving.supervisor import descendants, title_of
from host_container import host_container

PODMAN = engines()["podman"]
ARGV = [sys.executable, str(Path(peer.__file__)), "{port}"]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    with host_container(tmp_path_factory.mktemp("image")) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.env.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture
def image(host):
    digest, reference = known_image(PODMAN, host.image)
    return VllmImage(
        container=ContainerRecord(
            engine="podman",
            engine_version=engine_version(PODMAN),
            image=host.image,
            digest=digest,
            reference=reference,
            device="cpu",
            shm_size="1g",
            options=container_options(host.options),
        ),
        python=sys.executable,
        device="cpu",
        packages={"vllm": "0.32.0"},
    )


def started(image, folder, argv=ARGV):
    folder.mkdir(exist_ok=True)
    settings = ServerSettings(model=str(folder), name=peer.MODEL, container=image.container.image)
    return start_all(Path(sys.executable), [(settings, folder)], timeout_s=60, argv=argv, image=image)[0]


def wait_until_none(host, timeout_s=30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while host.containers():
        assert time.monotonic() < deadline, host.podman("ps", "--all")
        time.sleep(0.05)


def test_an_image_has_a_digest_and_an_exact_reference(host, image):
    assert image.container.digest.startswith("sha256:")
    assert host.podman("image", "inspect", "--format", "{{.Id}}", image.container.reference)
    assert known_image(PODMAN, "localhost/none:here") == ("", "")


def test_a_server_serves_at_its_port_and_ends_when_stopped(host, image, tmp_path):
    record = started(image, tmp_path / "server")
    try:
        assert record.endpoint.startswith("http://127.0.0.1:")
        assert record.argv[-1] == record.endpoint.rpartition(":")[2]
        assert record.container.digest == image.container.digest
        assert record.packages == {"vllm": "0.32.0"}
        assert len(host.containers()) == 1
        assert death_reason(record) is None
        assert remove_leftovers("podman") == []
    finally:
        stop(record)
    assert host.containers() == []


def test_its_processes_give_way_to_the_client(image, tmp_path):
    record = started(image, tmp_path / "server")
    try:
        give_way(record)
        inside = [pid for pid in descendants(record.supervisor_pid) if peer.__file__ in title_of(pid)]
        served = [pid for pid in inside if "first_process" not in title_of(pid) and "podman" not in title_of(pid)]
        assert len(served) == 1
        assert os.getpriority(os.PRIO_PROCESS, served[0]) == os.getpriority(os.PRIO_PROCESS, 0) + record.niceness
    finally:
        stop(record)


def test_a_server_that_ends_in_its_container_is_reported_with_its_log(host, image, tmp_path):
    with pytest.raises(ServerDied) as raised:
        started(image, tmp_path / "server", [sys.executable, "-c", "raise SystemExit('no room')"])
    assert raised.value.exit_code == 33
    assert "no room" in raised.value.cause
    assert host.containers() == []


def test_a_container_that_is_killed_ends_the_server(host, image, tmp_path):
    record = started(image, tmp_path / "server")
    try:
        host.podman("kill", *host.containers())
        deadline = time.monotonic() + 30
        while (reason := death_reason(record)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "it ended by itself" in reason
    finally:
        stop(record)
    assert host.containers() == []


def test_kill_9_of_the_supervisor_ends_the_container(host, image, tmp_path):
    record = started(image, tmp_path / "server")
    try:
        os.kill(record.supervisor_pid, signal.SIGKILL)
        wait_until_none(host)
    finally:
        stop(record)


OWNER = """
import sys, time
sys.path[:0] = [{tests!r}, {here!r}]
from pathlib import Path
import msgspec
import test_podman as t
from cm4vllm.serving.server_container import VllmImage
t.started(msgspec.json.decode({image!r}, type=VllmImage), Path({folder!r}))
print("ready", flush=True)
time.sleep(600)
"""


def test_kill_9_of_the_owner_ends_the_container(host, image, tmp_path):
    import msgspec

    here = Path(__file__).parent
    code = OWNER.format(
        tests=str(here.parents[1]), here=str(here), image=msgspec.json.encode(image), folder=str(tmp_path / "server")
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert "ready\n" in owner.stdout
            assert len(host.containers()) == 1
        finally:
            owner.kill()
    wait_until_none(host)


def test_a_container_that_was_left_behind_is_removed(host, image, tmp_path):
    label = next(word for word in supervised(image, tmp_path) if word.startswith("--label="))
    words = [label.replace("{supervisor}", "999999999"), *host.options.split(), image.container.reference]
    name = host.podman("create", "--name=cm4vllm-left", *words, "/usr/bin/true")
    assert name
    host.podman(
        "create", "--name=cm4vllm-other", label.rpartition("=")[0] + "=1.999999999", *words[1:], "/usr/bin/true"
    )
    try:
        assert remove_leftovers("podman") == ["cm4vllm-left"]
    finally:
        host.podman("rm", "--force", "cm4vllm-other")


def supervised(image, folder):
    from cm4vllm.serving.server_container import supervised_words

    return supervised_words(image.container, [sys.executable])


def test_no_variables_value_is_in_the_command_of_the_engine(host, image, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_OF_THE_TEST", "a-value-of-the-test")
    record = started(image, tmp_path / "server")
    try:
        spec = json.loads((tmp_path / "server" / "supervisor-spec.json").read_text())
        assert "VLLM_OF_THE_TEST" in spec["argv"]
        assert "a-value-of-the-test" not in json.dumps(spec)
        (name,) = host.containers()
        inspected = json.loads(host.podman("inspect", name))[0]
        assert "VLLM_OF_THE_TEST=a-value-of-the-test" in inspected["Config"]["Env"]
    finally:
        stop(record)


def test_an_image_without_vllm_is_refused_with_its_log(host, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = ImageSettings(image=host.image, options=host.options, python="/usr/bin/python3")
    with pytest.raises(InstallError, match="does not generate a token") as raised:
        vllm_image(settings, "cpu")
    assert "No module named 'vllm'" in raised.value.cause
    assert "--container_python" in raised.value.remedy


def test_an_image_that_cannot_be_pulled_is_named(host, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InstallError, match="podman cannot pull localhost/none:here") as raised:
        vllm_image(ImageSettings(image="localhost/none:here"), "cpu")
    assert raised.value.exit_code == 42

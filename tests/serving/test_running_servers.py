"""Servers of ours on this machine: seen from outside, and stopped by name alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import peer
from tests.serving.launched import family, launch

from cm4vllm.common.errors import UsageError
from cm4vllm.serving.launch import running_servers, status_text, stop_one
from cm4vllm.serving.server import SERVER_FILE, stop
from cm4vllm.serving.supervision.death_reasons import death_reason
from cm4vllm.serving.supervision.own_supervisors import end_supervisors, supervisor_spec


@pytest.fixture
def server(tmp_path):
    record = launch(tmp_path / "one")
    yield record
    stop(record)


def ours(record):
    return [server for server in running_servers() if server.supervisor == record.supervisor_pid]


def test_a_running_server_is_found_and_described(server, tmp_path):
    (running,) = ours(server)
    assert (running.record, running.folder) == (server, tmp_path / "one")
    text = status_text([running])
    assert text.startswith(f"{server.endpoint} serves")
    assert f"model       {peer.MODEL}, up to 2,048 tokens" in text
    assert str(tmp_path / "one" / "server.log") in text
    (tmp_path / "one" / SERVER_FILE).unlink()
    (starting,) = ours(server)
    assert starting.record is None
    assert status_text([starting]).startswith("starting for")
    process = family(server.supervisor_pid)[1]
    process.suspend()
    process.kill()
    assert "DOES NOT SERVE" in status_text([running])


def test_a_server_that_inherits_a_key_is_started_recorded_and_asked_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-very-secret-value-3")
    record = launch(tmp_path, "own-key")
    try:
        assert record.access.key_env == "VLLM_API_KEY"
        (running,) = ours(record)
        assert f"{record.endpoint} serves" in status_text([running])
        monkeypatch.delenv("VLLM_API_KEY")
        text = status_text([running])
        assert "not checked: the environment variable VLLM_API_KEY is not set" in text
    finally:
        stop(record)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert "sk-very-secret-value-3" not in path.read_text(errors="replace")


@pytest.mark.parametrize("by", ["folder", "port"])
def test_a_server_is_stopped_by_its_folder_or_its_port(server, tmp_path, by):
    port = int(server.endpoint.rpartition(":")[2])
    stopped = stop_one(str(tmp_path / "one")) if by == "folder" else stop_one(str(tmp_path / "other"), port)
    assert stopped.record == server
    assert ours(server) == []
    assert death_reason(server) is not None


def test_nothing_else_is_stopped_and_what_runs_is_listed(server, tmp_path):
    with pytest.raises(UsageError, match="no server started by cm4vllm runs in") as caught:
        stop_one(str(tmp_path / "other"))
    assert server.endpoint in caught.value.cause
    assert len(ours(server)) == 1


def looks_like_ours(spec, user):
    """Start a process of a user whose command line has the supervisor's name and a specification."""
    words = ["python3", "-c", "import time; print('up', flush=True); time.sleep(60)"]
    words += ["cm4vllm.serving.supervisor", str(spec)]
    return subprocess.Popen(words, user=user, stdout=subprocess.PIPE, cwd="/")


def _pipe(path):
    os.mkfifo(path)


def _without_state(path):
    path.write_text(json.dumps({"state": str(path.with_name("state.json"))}))


def _of_another(path):
    _without_state(path)
    path.with_name("state.json").write_text(json.dumps({"supervisor": os.getpid()}))


def _state_is_a_pipe(path):
    _without_state(path)
    _pipe(path.with_name("state.json"))


@pytest.mark.parametrize(
    "made", [_pipe, _without_state, _of_another, _state_is_a_pipe, lambda path: path.write_text('{"state": 5}')]
)
@pytest.mark.parametrize("user", [os.geteuid(), 65534] if os.geteuid() == 0 else [os.geteuid()])
def test_a_command_line_alone_makes_no_server(made, user, tmp_path):
    """A supervisor is known by its number in the state of its server, which is a plain file of the same user."""
    made(tmp_path / "spec.json")
    with looks_like_ours(tmp_path / "spec.json", user) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            assert [running for running in running_servers() if running.supervisor == process.pid] == []
            with pytest.raises(UsageError, match="no server started by cm4vllm runs"):
                stop_one(str(tmp_path))
            end_supervisors([process.pid])
            assert process.poll() is None
        finally:
            process.kill()


def test_a_command_that_starts_a_supervisor_is_none(server, tmp_path):
    """The command line of the specification of a server that runs, as of a program that traces the supervisor."""
    with looks_like_ours(supervisor_spec(server.supervisor_pid), os.geteuid()) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            assert [running.supervisor for running in running_servers() if running.folder == tmp_path / "one"] == [
                server.supervisor_pid
            ]
        finally:
            process.kill()

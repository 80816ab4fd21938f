"""A server's life with real processes: ready only when it served, ended with all that came of it."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent))
import peer
from tests.serving.launched import PEER, family, gone, launch, settings

from cm4vllm.common.errors import NotWritable, PortInUse, ServerDied, ServerNotReady, ServerUnsuitable, UsageError
from cm4vllm.common.records import read_record
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.serving import server as module
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.ports import free_port, listens
from cm4vllm.serving.server import SERVER_FILE, start_all, stop
from cm4vllm.serving.supervision.death_reasons import LOG_FILE, death_reason


def test_a_server_without_the_endpoint_that_will_be_asked_is_refused_and_ended(tmp_path):
    with pytest.raises(ServerUnsuitable, match="scale-out"):
        launch(tmp_path, api=Api.GENERATE)
    assert not (tmp_path / SERVER_FILE).exists()


def test_a_ready_server_is_recorded_and_ends_when_stopped(tmp_path):
    record = launch(tmp_path)
    try:
        assert read_record(tmp_path / SERVER_FILE, ServerRecord) == record
        assert record.owned
        assert record.endpoint.startswith("http://127.0.0.1:")
        assert record.max_model_len == 2048
        assert record.argv[-1] == record.endpoint.rpartition(":")[2]
        assert death_reason(record) is None
        processes = family(record.supervisor_pid)
        assert len(processes) == 2
        assert record.niceness == 10
    finally:
        stop(record)
    assert gone(processes, 0.1)
    assert "the run that owned it ended" in death_reason(record)
    stop(record)  # twice does no harm


@pytest.mark.parametrize("option", ["--distributed-executor-backend=ray", "--data-parallel-backend ray", ""])
def test_a_server_whose_workers_ray_starts_works_in_an_empty_folder(tmp_path, monkeypatch, option):
    """Ray adds the present folder of a program to the path of the workers that it starts for it."""
    (tmp_path / "vllm").mkdir()
    monkeypatch.chdir(tmp_path)
    record = launch(tmp_path / "out", *option.split())
    try:
        (server,) = (process for process in family(record.supervisor_pid) if process.pid != record.supervisor_pid)
        cwd = Path(server.cwd())
        assert (list(cwd.iterdir()) == []) if option else (cwd == tmp_path)
    finally:
        stop(record)
    assert cwd.exists() is not bool(option)


def test_a_token_reaches_the_server_and_no_file_or_command_line(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    record = launch(tmp_path, extra="--hf-token s3cret-of-the-test")
    try:
        servers = [process for process in family(record.supervisor_pid) if process.pid != record.supervisor_pid]
        assert [process.environ().get("HF_TOKEN") for process in servers] == ["s3cret-of-the-test"]
        for process in family(record.supervisor_pid):
            assert "s3cret" not in " ".join(process.cmdline())
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
    finally:
        stop(record)


@pytest.mark.timing
def test_servers_start_and_end_at_the_same_time(tmp_path):
    begin = time.monotonic()
    parts = [(settings(), tmp_path / str(number)) for number in range(4)]
    records = start_all(Path(sys.executable), parts, timeout_s=20, argv=[*PEER, "late"])
    try:
        assert peer.LATE_S < time.monotonic() - begin < 4 * peer.LATE_S
        assert len({record.endpoint for record in records}) == 4
        for record, (_, folder) in zip(records, parts, strict=True):
            assert read_record(folder / SERVER_FILE, ServerRecord) == record
            assert death_reason(record) is None
        processes = [process for record in records for process in family(record.supervisor_pid)]
    finally:
        stop(replace(records[0], members=records[1:]))
    assert gone(processes, 0.1)


def test_where_one_of_several_fails_none_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REFUSING_S", 0.3)
    parts = [
        (settings(), tmp_path / "a"),
        (ServerSettings(model="m", name="other"), tmp_path / "b"),
        (settings(), tmp_path / "c"),
    ]
    with pytest.raises(ServerNotReady, match="other"):
        start_all(Path(sys.executable), parts, timeout_s=60, argv=PEER)
    for _, folder in parts:
        assert not (folder / SERVER_FILE).exists()
        assert gone_by_state(folder)


def test_one_port_is_not_given_to_two_servers(tmp_path):
    port = free_port("127.0.0.1", 0)
    with pytest.raises(UsageError, match="two servers would have"):
        start_all(Path(sys.executable), [(settings(port=port), tmp_path / name) for name in "ab"], argv=PEER)
    assert gone_by_state(tmp_path / "a")


def test_listening_is_not_readiness(tmp_path):
    begin = time.monotonic()
    record = launch(tmp_path, "late")
    stop(record)
    assert time.monotonic() - begin > peer.LATE_S
    assert record.ready_after_s >= peer.LATE_S


def test_a_server_whose_completions_fail_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REFUSING_S", 0.5)
    with pytest.raises(ServerNotReady) as caught:
        launch(tmp_path, "engine-dead")
    assert "EngineCore encountered an issue" in caught.value.cause
    assert not (tmp_path / SERVER_FILE).exists()
    assert gone_by_state(tmp_path)


def gone_by_state(folder) -> bool:
    state = json.loads((folder / "supervisor.json").read_bytes())
    return not psutil.pid_exists(state["server"]) and not psutil.pid_exists(state["supervisor"])


def test_a_server_that_never_listens_is_given_up_and_ended(tmp_path, monkeypatch):
    def looked_at(endpoint):
        """Let the process begin first: it may take longer than the second that the server gets."""
        deadline = time.monotonic() + 30
        while not (log := tmp_path / LOG_FILE).exists() or "I am loading" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return listens(endpoint)

    monkeypatch.setattr(module, "listens", looked_at)
    with pytest.raises(ServerNotReady) as caught:
        launch(
            tmp_path, timeout_s=1, argv=[sys.executable, "-uc", "print('I am loading'); import time; time.sleep(60)"]
        )
    assert "I am loading" in caught.value.cause
    assert gone_by_state(tmp_path)


def test_a_server_that_dies_is_told_with_its_own_words_and_one_remedy(tmp_path):
    code = "raise ValueError('max_model_len (9) is greater than the derived max_model_len (4)')"
    begin = time.monotonic()
    with pytest.raises(ServerDied) as caught:
        launch(tmp_path, timeout_s=60, argv=[sys.executable, "-c", code])
    assert time.monotonic() - begin < 30
    assert "exit status 1" in caught.value.cause
    assert "ValueError: max_model_len (9)" in caught.value.cause
    assert caught.value.remedy == f"lower --max_model_len; its whole log: {tmp_path / LOG_FILE}"


def test_a_program_that_does_not_exist(tmp_path):
    with pytest.raises(ServerDied) as caught:
        launch(tmp_path, argv=["/nonexistent/python"])
    assert "/nonexistent/python cannot be started" in caught.value.cause


#: Starts a peer, and beside it a process that is long in ending.
SLOW_TO_END = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.timing
def test_a_death_is_told_before_all_that_it_leaves_has_ended(tmp_path):
    record = launch(tmp_path, argv=[sys.executable, "-c", SLOW_TO_END, *PEER[1:]])
    peer_process = psutil.Process(record.supervisor_pid).children()[0]
    (slow,) = peer_process.children()
    time.sleep(0.5)
    begin = time.monotonic()
    peer_process.kill()
    while (reason := death_reason(record)) is None and time.monotonic() < begin + 10:
        time.sleep(0.02)
    assert time.monotonic() - begin < 1.5
    assert reason.startswith("it ended by itself: killed by SIGKILL")
    assert slow.is_running()
    stop(record)
    assert gone([slow], 1)


def test_a_port_that_is_taken_is_told_with_its_holder(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} is in use") as caught:
            launch(tmp_path, port=port)
    assert f"process {os.getpid()}" in caught.value.cause
    assert "--port" in caught.value.remedy


def test_a_given_port_is_used(tmp_path):
    port = free_port("127.0.0.1", 0)
    record = launch(tmp_path, port=port)
    stop(record)
    assert record.endpoint.endswith(f":{port}")


def test_a_port_lost_between_choice_and_start_is_told(tmp_path):
    code = "raise OSError(98, 'Address already in use')"
    with pytest.raises(PortInUse):
        launch(tmp_path, argv=[sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("wrong", "words"), [({"port": 70000}, "does not exist"), ({"host": "no.such.host.invalid"}, "address")]
)
def test_impossible_addresses_are_refused(tmp_path, wrong, words):
    with pytest.raises(UsageError, match=words):
        launch(tmp_path, **wrong)


def test_a_folder_that_cannot_be_one_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable):
        launch(tmp_path / "file" / "server")


def test_the_environments_own_sitecustomize_is_still_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    site = Path(module.__file__).parent / "end_with_supervisor"
    done = subprocess.run(
        [sys.executable, "-c", "import sitecustomize; print(sitecustomize.__file__)"],
        text=True,
        capture_output=True,
        env={"PYTHONPATH": f"{site}{os.pathsep}{tmp_path}"},
    )
    assert (done.stdout, done.stderr) == (f"mine\n{tmp_path / 'sitecustomize.py'}\n", "")

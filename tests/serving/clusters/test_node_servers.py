"""One server over several nodes, which are processes of this machine: ready, dead, and ended however its owner ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import node_peer
import peer
from launched import gone

from cm4vllm.common.errors import ServerDied, ServerUnreachable, UsageError
from cm4vllm.common.records import read_record
from cm4vllm.records.node import NodeReport
from cm4vllm.records.published_server import hosts_of
from cm4vllm.records.server import NodeRecord, ServerRecord
from cm4vllm.serving.clusters.launchers import LocalLauncher
from cm4vllm.serving.clusters.node_report import require_alike
from cm4vllm.serving.clusters.placement import node_layout
from cm4vllm.serving.launch_settings import LaunchSettings, require_usable
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.server import NodeLaunch, start_all, stop
from cm4vllm.serving.supervision.death_reasons import death_reason

ARGV = [sys.executable, str(Path(node_peer.__file__)), "{port}"]


@pytest.fixture
def python(tmp_path):
    """Make a Python whose environment has a package of the name vllm."""
    info = tmp_path / "site" / "vllm-0.32.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def launch(python, folder, *, nodes=2, launcher=None, extra="", **sizes) -> ServerRecord:
    layout = node_layout(nodes, **{"tp_size": 1, "pp_size": 1, "dp_size": 1} | sizes)
    launcher = launcher or LocalLauncher(tuple(f"n{number}" for number in range(1, nodes + 1)))
    host = launcher.address(launcher.nodes[0])
    settings = ServerSettings(model="m", name=peer.MODEL, extra=extra, host=host, **sizes)
    start = NodeLaunch(launcher, layout)
    record = start_all(python, [(settings, folder)], timeout_s=60, argv=ARGV, nodes=start)[0]
    wait_until_begun(record)
    return record


def wait_until_begun(record) -> None:
    """Wait until the processes on all nodes have begun: the head may be ready before."""
    deadline = time.monotonic() + 30
    for rank, node in enumerate(record.nodes):
        while f"rank {rank} with" not in Path(node.log).read_text():
            assert time.monotonic() < deadline, node.name
            time.sleep(0.05)


def processes_of(record) -> list[psutil.Process]:
    roots = [psutil.Process(pid) for pid in record.supervisors]
    return [process for root in roots for process in [root, *root.children(recursive=True)]]


def test_a_server_is_on_all_nodes_its_keys_in_no_command_line_and_no_file_and_leaves_none(
    python, tmp_path, monkeypatch
):
    secrets = ("k3y-of-the-server-5f1c", "hf_t0kenOfTheHub5f1cAbCdEfGhIjKlMnOp")
    monkeypatch.setenv("VLLM_API_KEY", secrets[0])
    record = launch(python, tmp_path / "server", nodes=3, tp_size=3, extra=f"--hf-token={secrets[1]}")
    try:
        assert read_record(tmp_path / "server" / "server.json", ServerRecord) == record
        assert [node.name for node in record.nodes] == ["n1", "n2", "n3"]
        assert ["--headless" in node.argv for node in record.nodes] == [False, True, True]
        assert record.argv == record.nodes[0].argv
        assert record.options["nnodes"] in (3, "3")
        assert len(record.supervisors) == 3
        assert "rank 2" in Path(record.nodes[2].log).read_text()
        assert death_reason(record) is None
        processes = processes_of(record)
        assert len(processes) == 6
        require_no_word_of(secrets, tmp_path)
        environ = psutil.Process(record.nodes[1].supervisor_pid).children()[0].environ()
        assert (environ["VLLM_API_KEY"], environ["HF_TOKEN"]) == secrets
    finally:
        stop(record)
    assert gone(processes)


def test_logs_of_an_earlier_start_are_replaced_and_files_of_others_kept(python, tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "server-n1.log").write_text("mine")
    (folder / "spare-1.log").write_text("mine")
    for _ in range(2):
        record = launch(python, folder, tp_size=2)
        stop(record)
    assert (folder / "kept-server-n1.log").read_text() == "mine"
    assert (folder / "spare-1.log").read_text() == "mine"
    assert sorted(path.name for path in folder.glob("kept-*")) == ["kept-server-n1.log"]
    assert Path(record.nodes[0].log).read_text().count("rank 0 with") == 1


def test_the_node_whose_log_has_the_cause_is_named_at_a_failing_start(python, tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_FAULT", "1")
    with pytest.raises(ServerDied) as failed:
        launch(python, tmp_path / "server", tp_size=2)
    assert "on the node n2: it ended by itself: exit status 1" in failed.value.cause
    assert "MemoryError: no room for the weights of this rank" in failed.value.cause


def require_no_word_of(secrets, folder) -> None:
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    texts = lines + [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert not [secret for secret in secrets for text in texts if secret in text]


#: Starts a server, prints the reason of its end and the seconds until it was known, and ends.
WATCHING_OWNER = """
import os, sys, time
sys.path[:0] = [{tests!r}]
from pathlib import Path
import test_node_servers as t
from cm4vllm.serving.clusters.launchers import chosen_launcher
launcher = chosen_launcher({launcher!r}, {nodes!r}, os.environ)
record = t.launch(Path({python!r}), Path({folder!r}), launcher=launcher, tp_size=2)
print("ready", flush=True)
while (reason := t.death_reason(record)) is None:
    time.sleep(0.05)
print(f"ended {{time.time()}} {{reason}}", flush=True)
t.stop(record)
"""


def killed_once(python, folder, victim, seed, *, launcher="local", nodes="2") -> None:
    """Start a server over two nodes, kill a part of it, and see that the cause is named and nothing is left."""
    owner = watching_owner(python, folder, launcher=launcher, nodes=nodes)
    require_ready(owner, seed)
    kill_a_part(owner, folder, victim, seed)


def watching_owner(python, folder, *, launcher="local", nodes="2") -> subprocess.Popen:
    words = {"python": str(python), "folder": str(folder), "launcher": launcher, "nodes": nodes}
    code = WATCHING_OWNER.format(tests=str(Path(__file__).parent), **words)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def require_ready(owner, seed) -> None:
    lines = []
    for line in owner.stdout:
        lines.append(line)
        if line == "ready\n":
            return
    raise AssertionError(f"seed {seed}: not ready: {lines} {owner.wait()}")


def kill_a_part(owner, folder, victim, seed) -> None:
    """Kill a part of a server that is ready, and see that the cause is named and nothing is left."""
    record = read_record(folder / "server.json", ServerRecord)
    port = record.endpoint.rpartition(":")[2]
    head, worker = sorted(peers(port), key=lambda process: "--headless" in process.cmdline())
    launchers = [psutil.Process(node.supervisor_pid) for node in record.nodes]
    begin = time.time()
    {"head": head, "worker": worker, "launcher": launchers[seed % 2], "cm": psutil.Process(owner.pid)}[victim].kill()
    line = next((line for line in owner.stdout if line.startswith("ended ")), "")
    owner.wait(60)
    owner.stdout.close()
    if victim != "cm":
        node = record.nodes[{"head": 0, "worker": 1, "launcher": seed % 2}[victim]].name
        how = "it ended by itself: killed by SIGKILL"
        if victim == "launcher":
            how = f"the {record.nodes[0].launcher} command, or its supervisor, was ended"
        assert f"on the node {node}: {how}" in line, f"seed {seed}: {victim}: {line}"
        assert float(line.split()[1]) - begin < 30, f"seed {seed}: {victim}: {line}"
    deadline = time.monotonic() + 30
    while left := peers(port):
        assert time.monotonic() < deadline, f"seed {seed}: {victim}: {left}"
        time.sleep(0.1)


def peers(port) -> list[psutil.Process]:
    """Return the processes of the small server with a port, on all nodes that are on this machine."""
    texts = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if node_peer.__file__ in words and port in words and "/python" in words[0]:
            texts.append(process)
    return texts


def test_after_a_kill_of_each_part_nothing_is_left_and_the_server_starts_again(python, tmp_path):
    for victims in (["head", "launcher"], ["worker", "cm"]):
        owners = {victim: watching_owner(python, tmp_path / victim) for victim in victims}
        # Both have started before a part is killed: a start ends what is left of others, which would hide it.
        for owner in owners.values():
            require_ready(owner, 1)
        for victim, owner in owners.items():
            kill_a_part(owner, tmp_path / victim, victim, 1)
    stop(launch(python, tmp_path / "again", tp_size=2))


def test_a_node_that_cannot_run_cm4vllm_is_named_before_a_start(python, tmp_path):
    class Unreachable(LocalLauncher):
        def words(self, node, program):
            refused = "echo 'ssh: connect to host n2 port 22: Connection refused' >&2; exit 255"
            return ["sh", "-c", refused] if node == "n2" else list(program)

    with pytest.raises(ServerUnreachable, match="the node n2 cannot run cm4vllm") as failed:
        launch(python, tmp_path / "server", launcher=Unreachable(("n1", "n2")), tp_size=2)
    assert "Connection refused" in failed.value.cause
    assert not list(tmp_path.glob("server/*.log"))


def test_a_node_that_cannot_be_reached_is_named_by_a_plan(tmp_path, monkeypatch):
    for name, text in {"ssh": "[ $1 = -G ] && echo hostname 127.0.0.1 && exit; echo refused >&2; exit 255"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    env = {"CM_VLLM_SERVER_NODES": "n1,n2", "CM_VLLM_SERVER_TP_SIZE": "2", "CM_MLPERF_DEVICE": "cpu"}
    with pytest.raises(ServerUnreachable, match="the node n1 in --nodes cannot be reached") as failed:
        require_usable(LaunchSettings.of(env))
    assert "refused" in failed.value.cause and "BatchMode=yes" in failed.value.remedy
    require_usable(LaunchSettings.of({**env, "CM_VLLM_SERVER_LAUNCHER": "local"}))


@pytest.mark.parametrize(
    ("key", "value", "flag"),
    [("CM_RAY_ADDRESS", "127.0.0.1:1", "ray_address"), ("CM_VLLM_SERVER_REPLICAS", "2", "replicas")],
)
def test_nodes_are_not_for_ray_nor_for_several_servers(key, value, flag):
    with pytest.raises(UsageError, match=f"--nodes cannot be given with --{flag}"):
        require_usable(LaunchSettings.of({"CM_VLLM_SERVER_NODES": "n1,n2", key: value}))


REPORT = NodeReport(host="h", packages={"vllm": "0.32.0"}, program="a" * 64, python="3.11.2", model="b" * 64, cores=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packages": {"vllm": "0.31.0"}}, "versions in vLLM's environment"),
        ({"program": "c" * 64}, "cm4vllm's source"),
        ({"python": "3.12.1"}, "release of Python"),
        ({"model": ""}, "the model's files"),
        ({"packages": {}}, "n2 has no vLLM"),
    ],
)
def test_nodes_that_differ_are_refused_and_other_hardware_is_reported(changes, message):
    with pytest.raises(UsageError, match=message):
        require_alike({"n1": REPORT, "n2": replace(REPORT, **changes)}, workers=1, on_gpus=False)
    other = {"n1": REPORT, "n2": replace(REPORT, cores=4)}
    assert require_alike(other, workers=1, on_gpus=False) == ["the nodes differ in cores: n1: 8; n2: 4"]
    with pytest.raises(UsageError, match="n1 has 0 GPUs for 8 workers"):
        require_alike(other, workers=8, on_gpus=True)


def test_names_and_addresses_of_nodes_are_not_published():
    ssh = NodeRecord(name="gpu-a17", launcher="ssh", env={"VLLM_HOST_IP": "10.1.2.3"})
    local = NodeRecord(name="node1", launcher="local", env={"VLLM_HOST_IP": "127.0.0.1"})
    record = ServerRecord(
        endpoint="http://10.1.2.3:80", model_name="m", max_model_len=1, version="", owned=True, nodes=[ssh, local]
    )
    assert hosts_of(record) == {"gpu-a17", "10.1.2.3"}

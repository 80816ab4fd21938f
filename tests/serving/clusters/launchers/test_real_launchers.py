"""One server over the nodes of a real launcher: `CLUSTER_NODES=HOST,HOST`, or a number in an allocation of Slurm.

Each node needs the checkout and its environment at the same path. A small server takes the place of vLLM.
test_namespace_launchers.py runs these tests over nodes that it makes.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import node_peer
import test_node_servers
from test_node_servers import python  # noqa: F401 - a fixture

from cm4vllm.common.records import read_record
from cm4vllm.loadgen.process.machine_load import nodes_sampled
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.clusters.launchers import chosen_launcher
from cm4vllm.serving.server import stop
from cm4vllm.serving.supervision.death_reasons import death_reason

NODES = os.environ.get("CLUSTER_NODES", "")
pytestmark = [
    pytest.mark.timing,
    pytest.mark.skipif(not NODES, reason="CLUSTER_NODES names no hosts of ssh, and no number of nodes of Slurm"),
]
OWNER = """
import os, sys, time
sys.path[:0] = [{tests!r}]
from pathlib import Path
import test_node_servers as t
from cm4vllm.serving.clusters.launchers import chosen_launcher
launcher = chosen_launcher("auto", {nodes!r}, os.environ)
t.launch(Path({python!r}), Path({folder!r}), nodes=len(launcher.nodes), launcher=launcher, tp_size=len(launcher.nodes))
print("ready", flush=True)
time.sleep(600)
"""


def start(python, folder) -> ServerRecord:  # noqa: F811
    launcher = chosen_launcher("auto", NODES, os.environ)
    count = len(launcher.nodes)
    return test_node_servers.launch(python, folder, nodes=count, launcher=launcher, tp_size=count)


def servers_left(port: str) -> list[str]:
    """Return the processes of the server with a port, of all nodes that are on this machine."""
    return [
        " ".join(words)
        for process in psutil.process_iter(["cmdline"])
        if (words := process.info["cmdline"] or []) and node_peer.__file__ in words and port in words
    ]


def wait_until_none_is_left(port: str) -> None:
    deadline = time.monotonic() + 15
    while left := servers_left(port):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def port_of(record) -> str:
    return record.endpoint.rpartition(":")[2]


def test_a_server_starts_on_all_nodes_and_ends(python, tmp_path):  # noqa: F811
    record = start(python, tmp_path / "server")
    assert death_reason(record) is None
    stop(record)
    wait_until_none_is_left(port_of(record))


def test_the_death_of_a_node_is_named(python, tmp_path):  # noqa: F811
    record = start(python, tmp_path / "server")
    port = port_of(record)
    try:
        victims = [
            process
            for process in psutil.process_iter(["cmdline"])
            if "--headless" in (words := process.info["cmdline"] or [])
            and node_peer.__file__ in words
            and port in words
            and words[0] != "srun"
        ]
        assert victims, "no node but the head is on this machine"
        victims[0].kill()
        begin = time.monotonic()
        while (reason := death_reason(record)) is None:
            assert time.monotonic() - begin < 10
            time.sleep(0.05)
        assert f"on the node {record.nodes[1].name}: it ended by itself: killed by SIGKILL" in reason
    finally:
        stop(record)
    wait_until_none_is_left(port)


@pytest.mark.parametrize("victim", ["owner", "launcher"])
def test_a_kill_of_the_owner_or_of_a_launcher_leaves_no_process(python, tmp_path, victim):  # noqa: F811
    folder = tmp_path / "server"
    code = OWNER.format(tests=str(Path(__file__).parents[1]), nodes=NODES, python=str(python), folder=str(folder))
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert any(line == "ready\n" for line in owner.stdout)
    record = read_record(folder / "server.json", ServerRecord)
    assert servers_left(port_of(record))
    if victim == "launcher":
        os.kill(record.nodes[1].supervisor_pid, 9)
        deadline = time.monotonic() + 15
        while left := [line for line in servers_left(port_of(record)) if "--headless" in line]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until_none_is_left(port_of(record))


def test_after_ten_seeded_kills_nothing_is_left_and_the_server_starts_again(python, tmp_path):  # noqa: F811
    for seed in range(10):
        victim = random.Random(seed).choice(["head", "worker", "launcher", "cm"])
        test_node_servers.killed_once(python, tmp_path / f"server-{seed}", victim, seed, launcher="auto", nodes=NODES)
    record = start(python, tmp_path / "again")
    stop(record)
    wait_until_none_is_left(port_of(record))


def test_a_key_stands_in_no_command_line_of_a_launcher(python, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("VLLM_API_KEY", "k3y-of-the-server-5f1c")
    record = start(python, tmp_path / "server")
    try:
        test_node_servers.require_no_word_of(["k3y-of-the-server-5f1c"], tmp_path)
        environs = [process.environ() for process in test_node_servers.peers(port_of(record))]
        assert [environ["VLLM_API_KEY"] for environ in environs] == ["k3y-of-the-server-5f1c"] * 2
    finally:
        stop(record)


def test_the_nodes_are_sampled_and_leave_no_process(python, tmp_path):  # noqa: F811
    record = start(python, tmp_path / "server")
    try:
        with nodes_sampled(record, tmp_path) as nodes:
            time.sleep(3)
        assert [load.busy >= 0 for load in nodes.loads()] == [True, True]
    finally:
        stop(record)
    words = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in words if "cm4vllm.hardware.machine_samples" in line]

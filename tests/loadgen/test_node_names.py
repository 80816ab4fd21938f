"""A system on another machine: LoadGen's query dispatch library asks each node for its name."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_vllm import Behaviour, FakeVllm
from msgspec.structs import replace

from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.serving.probing.node_names import network_name, node_names
from cm4vllm.submission.system_records import runs_here
from commands import need

ADDRESSES = ("10.211.7.1", "10.211.7.2")
#: The program of the second host: it ends with its input.
SERVE = """
import sys
sys.path.insert(0, sys.argv[1])
from fake_vllm import Behaviour, FakeVllm
with FakeVllm(Behaviour(metrics=lambda: sys.argv[2], host=sys.argv[3])) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


def listing(*names: str) -> str:
    return json.dumps({"data": [{"id": name} for name in names]})


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def second_host() -> Iterator[str]:
    """A network namespace that a pair of virtual cards joins with this one: its name."""
    need("ip")
    name, ours, theirs = f"cm{os.getpid()}", f"cma{os.getpid()}", f"cmb{os.getpid()}"
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {getattr(error, 'stderr', '') or error}")
    try:
        try:
            ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
            ip("addr", "add", f"{ADDRESSES[0]}/24", "dev", ours)
            ip("link", "set", ours, "up")
            ip("-n", name, "addr", "add", f"{ADDRESSES[1]}/24", "dev", theirs)
            ip("-n", name, "link", "set", theirs, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no pair of virtual network cards can be made here: {error.stderr}")
        yield name
    finally:
        subprocess.run(["ip", "link", "del", ours], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def served_on(host: str, *names: str) -> Iterator[str]:
    """Serve on the second host; give the address."""
    words = [sys.executable, "-c", SERVE, str(Path(__file__).parent), listing(*names), ADDRESSES[1]]
    with subprocess.Popen(
        ["ip", "netns", "exec", host, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield f"http://{ADDRESSES[1]}:{int(server.stdout.readline())}"
        server.communicate("", timeout=20)


def test_a_run_over_a_network_has_the_name_that_the_second_host_gives(tmp_path, make_settings, second_host):
    with served_on(second_host, "tiny", "rack-1") as endpoint:
        assert not runs_here(endpoint) and runs_here(f"http://{ADDRESSES[0]}")
        record = run(make_settings(endpoint, "Offline", "performance", network=True), tmp_path / "run")
    assert read_detail_log(tmp_path / "run" / DETAIL_LOG).values["sut_name"] == "Network SUT: rack-1"
    assert record.client.completed == record.client.requests and record.settings.network


def test_a_run_of_another_division_asks_no_node(tmp_path, make_settings):
    with FakeVllm() as server:  # which lists no models
        run(make_settings(server.endpoint, "Offline", "performance"), tmp_path / "run")
    assert read_detail_log(tmp_path / "run" / DETAIL_LOG).values["sut_name"] == "PySUT"


def test_each_node_is_asked_and_no_two_have_one_name(make_settings):
    names = iter(())
    behaviour = Behaviour(metrics=lambda: listing("tiny", *next(names)))
    with FakeVllm(behaviour) as first, FakeVllm(behaviour) as other:
        server = make_settings(first.endpoint, "Offline", "performance").server
        both = replace(server, replicas=[other.endpoint])
        names = iter([["a"], ["b"], [], ["b"], ["a"], ["a"]])
        assert network_name(both) == "Network SUT: a, b"
        assert node_names(both) == ["tiny", "b"]
        with pytest.raises(ServerUnsuitable, match="the same name a") as refused:
            node_names(both)
    assert "--served-model-name tiny NODE" in refused.value.remedy
    with pytest.raises(ServerUnreachable):
        network_name(server)


def test_a_node_without_a_name_is_refused_before_loadgen_starts(tmp_path, make_settings):
    with FakeVllm() as server, pytest.raises(ServerUnsuitable, match="not a server that can be measured"):
        run(make_settings(server.endpoint, "Offline", "performance", network=True), tmp_path / "run")

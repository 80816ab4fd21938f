"""A Ray cluster: what is refused before Ray is asked. The cluster itself is started in tests/script/test_ray.py."""

import socket
import sys

import pytest

from cm4vllm.common.errors import PortInUse, ServerDied, ServerUnreachable, UsageError
from cm4vllm.serving.clusters.ray_cluster import RAY_FILE, RaySettings, look, start
from cm4vllm.serving.ports import free_port


def settings(tmp_path, **given):
    return RaySettings(python=sys.executable, folder=str(tmp_path / "ray"), node_ip="127.0.0.1", **given)


@pytest.mark.parametrize("address", ["", "head", "head:", ":6379", "head:x"])
def test_a_worker_needs_the_address_of_a_head(tmp_path, address):
    with pytest.raises(UsageError, match="address of a head"):
        start(settings(tmp_path, role="worker", address=address))


def test_a_head_that_is_not_there_is_told_before_a_worker_starts(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(ServerUnreachable, match="run,ray-cluster,_head"):
            start(settings(tmp_path, role="worker", address=f"127.0.0.1:{closed.getsockname()[1]}"))


def test_something_else_that_listens_there_is_no_cluster():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ServerUnreachable):
        look(sys.executable, f"127.0.0.1:{other.getsockname()[1]}")


def test_a_port_in_use_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(PortInUse):
        start(settings(tmp_path, port=other.getsockname()[1]))


def test_a_head_that_does_not_start_leaves_nothing(tmp_path):
    with pytest.raises(ServerDied, match="No module named"):  # this Python has no Ray
        start(settings(tmp_path, port=free_port("127.0.0.1", 0)))
    assert not (tmp_path / "ray" / RAY_FILE).exists()

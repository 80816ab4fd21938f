"""Ports for servers that will listen only after many seconds."""

import os
import socket
from pathlib import Path

import pytest

from cm4vllm.common.errors import PortInUse
from cm4vllm.serving.ports import free_port, listens, reachable


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0"])
def test_a_chosen_port_is_none_that_the_kernel_gives_to_others_meanwhile(host):
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for _ in range(20):
        port = free_port(host, 0)
        assert not first <= port <= last
        assert not listens(f"http://{reachable(host)}:{port}")


def test_two_choices_are_seldom_the_same():
    assert len({free_port("127.0.0.1", 0) for _ in range(20)}) > 15


def test_a_port_that_is_taken_is_not_chosen_and_not_given():
    with socket.create_server(("127.0.0.1", free_port("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert listens(f"http://127.0.0.1:{port}")
        with pytest.raises(PortInUse, match=str(port)) as caught:
            free_port("127.0.0.1", port)
    assert caught.value.cause.startswith(f"process {os.getpid()} (")

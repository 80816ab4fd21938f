"""A Ray cluster: what is refused before Ray is asked. The cluster itself is started in tests/script/test_ray.py."""

import socket
import sys

import pytest

from cm4vllm.common.errors import PortInUse, ServerDied, ServerUnreachable, UsageError
from cm4vllm.serving.clusters.ray_cluster import RAY_FILE, RaySettings, look, start
from cm4vllm.serving.ports import free_port


def settings(tmp_path, **given):
    return RaySettings(python=sys.executable, folder=str(tmp_path / "ray"), node_ip="127.0.0.1", **given)


@pytest.mark.parametrize(
    "address", ["", "head", "head:", ":6379", "head:x", "head:²", f"head:{'9' * 5000}", "head:65536"]
)
def test_a_worker_needs_the_address_of_a_head(tmp_path, address):
    with pytest.raises(UsageError, match="address of a head"):
        start(settings(tmp_path, role="worker", address=address))


def test_a_head_that_is_not_there_is_told_before_a_worker_starts(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(ServerUnreachable, match="run,ray-cluster,_head"):
            start(settings(tmp_path, role="worker", address=f"127.0.0.1:{closed.getsockname()[1]}"))


#: In Ray's place: fails where the program that starts it works in a folder with files.
RAY = """
import os
assert os.listdir() == [], os.getcwd()
def init(**_): pass
def nodes(): return []
"""


def test_workers_find_no_module_in_the_folder_of_the_command(tmp_path, monkeypatch):
    """Ray adds the present folder of a program to the path of the workers that it starts for it."""
    packages = tmp_path / "packages" / "ray"
    (packages / "util").mkdir(parents=True)
    (packages / "__init__.py").write_text(RAY)
    (packages / "util" / "__init__.py").write_text("")
    names = ("placement_group", "placement_group_table", "remove_placement_group")
    (packages / "util" / "placement_group.py").write_text("\n".join(f"{name} = None" for name in names))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "dataclasses.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path / "here")
    with socket.create_server(("127.0.0.1", 0)) as head:
        assert look(str(python), f"127.0.0.1:{head.getsockname()[1]}").nodes == []


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

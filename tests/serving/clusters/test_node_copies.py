"""Copies on a node that does not share this machine's files: its /opt is another one, in a mount namespace."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from cm4vllm.common.errors import ServerUnreachable
from cm4vllm.serving.clusters.launchers.local import LocalLauncher
from cm4vllm.serving.clusters.node_copies import copy_to_nodes, installation


@dataclass(frozen=True)
class OtherFiles(LocalLauncher):
    """The node n2 has a folder of its own at `place`: that of `there`."""

    place: Path = Path()
    there: Path = Path()

    def words(self, node, program):
        if node == "n1":
            return list(program)
        mounted = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(self.there), str(self.place)]
        return ["unshare", "--mount", *mounted, *program]


@pytest.fixture
def nodes(tmp_path):
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("mount namespaces need root")
    launcher = OtherFiles(("n1", "n2"), place=tmp_path / "here", there=tmp_path / "there")
    folder = launcher.place / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "weights").write_bytes(b"w" * 100_000)
    launcher.there.mkdir()
    return launcher


def test_a_node_gets_what_it_lacks_once(nodes, capsys):
    folder = nodes.place / "env"
    copy_to_nodes(nodes, [folder])
    copy = nodes.there / "env"
    assert (copy / "weights").read_bytes() == b"w" * 100_000
    assert (copy / "bin" / "python").is_symlink()
    assert "n1: has all of it" in (said := capsys.readouterr().out) and f"n2: copied {folder}" in said
    copy_to_nodes(nodes, [folder])
    assert "n2: has all of it" in capsys.readouterr().out
    (folder / "weights").write_bytes(b"v" * 100_001)
    copy_to_nodes(nodes, [folder])
    assert (copy / "weights").read_bytes() == b"v" * 100_001


def test_all_nodes_look_for_one_file_so_that_no_folder_changes_while_it_is_read(nodes):
    folder, seen = nodes.place / "env", set()

    class Noting(OtherFiles):
        def words(self, node, program):
            seen.update(folder.glob(".cm4vllm-shared-*"))
            return super().words(node, program)

    copy_to_nodes(Noting(nodes.nodes, place=nodes.place, there=nodes.there), [folder])
    assert len(seen) == 1 and not list(folder.glob(".cm4vllm-shared-*"))


def test_shared_files_are_not_written_to(nodes):
    folder = nodes.place / "env"
    before = {path: path.lstat().st_mtime_ns for path in nodes.place.rglob("*") if not path.is_dir()}
    copy_to_nodes(LocalLauncher(("n1", "n2")), [folder])
    assert {path: path.lstat().st_mtime_ns for path in nodes.place.rglob("*") if not path.is_dir()} == before


def test_a_node_that_cannot_be_written_to_is_named(nodes):
    class Full(OtherFiles):
        def words(self, node, program):
            return ["false"] if program[0] == "tar" else super().words(node, program)

    full = Full(nodes.nodes, place=nodes.place, there=nodes.there)
    with pytest.raises(ServerUnreachable, match="cannot be copied to the node n2"):
        copy_to_nodes(full, [nodes.place / "env"])


def test_the_installation_is_without_what_the_system_has(tmp_path):
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/usr/bin/python3")
    model = tmp_path / "model"
    model.mkdir()
    folders = installation(python, str(model))
    assert {tmp_path / "vllm", model} <= set(folders)
    assert not [folder for folder in folders if folder.is_relative_to("/usr")]
    assert not [folder for folder in folders for other in folders if folder != other and folder.is_relative_to(other)]

"""Findings of a large submission are kept by digest; several submissions are checked by several processes."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from cm4vllm.results import file_listing
from cm4vllm.results.check_command import kept_findings, submission_processes
from cm4vllm.results.check_command.kept_findings import CheckedSubmission
from cm4vllm.results.check_command.tree_check import check_tree


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept_findings, "_LARGE", 1)
    return tmp_path / "kept"


def test_what_was_found_is_kept_until_a_file_changes(tree: Path, keep: Path) -> None:
    first = check_tree(tree, keep=keep)
    (file,) = keep.iterdir()
    name, state, checked = msgspec.json.decode(file.read_bytes()[64:], type=tuple[str, str, CheckedSubmission])
    # so that what was kept is told from what is found again
    kept_findings.kept_findings(keep).put(name, state, msgspec.structs.replace(checked, results=77))
    again = check_tree(tree, keep=keep)
    assert again.findings == first.findings and again.submissions[0].results == 77
    path = next(path for path in sorted(tree.rglob("user.conf")) if "server" in path.parts)
    before = path.stat()
    path.write_text("*.Server.target_qps = 1000\n".ljust(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    changed = check_tree(tree, keep=keep)
    assert changed.submissions[0].results == 10
    assert {finding.code for finding in changed.findings} - {finding.code for finding in first.findings} == {
        "USER-CONF-DIFFERS"
    }
    assert check_tree(tree, round_name="v5.0", keep=keep).submissions[0].round == "v5.0"
    assert len(list(keep.iterdir())) == 1


def test_what_is_damaged_or_cannot_be_written_is_found_again(tree: Path, keep: Path, tmp_path: Path) -> None:
    first = check_tree(tree, keep=keep)
    (file,) = keep.iterdir()
    for damage in (b"", b"{}", b'{"digest": 1}', file.read_bytes()[:-9]):
        file.write_bytes(damage)
        assert check_tree(tree, keep=keep) == first
    (tmp_path / "a file").write_text("")
    assert check_tree(tree, keep=tmp_path / "a file") == first


def test_a_small_submission_is_not_kept(tree: Path, tmp_path: Path) -> None:
    check_tree(tree, keep=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_processes_find_what_one_finds(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tree / "open" / "NeuralMagic", tree / "closed" / "Another")
    alone = check_tree(tree)
    monkeypatch.setattr(submission_processes, "MANY", 2)
    assert check_tree(tree) == alone


def test_nothing_is_kept_of_files_that_may_still_be_changing(
    tree: Path, keep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_listing, "RECENT_S", 60.0)
    check_tree(tree, keep=keep)
    assert not keep.exists()


def test_nothing_is_kept_of_a_tree_with_a_link_to_a_folder_elsewhere(tree: Path, keep: Path, tmp_path: Path) -> None:
    home = tree / "open" / "NeuralMagic"
    (home / "documentation" / "inside").symlink_to(home / "code")
    check_tree(tree, keep=keep)
    assert len(list(keep.iterdir())) == 1
    shutil.rmtree(keep)
    (tmp_path / "elsewhere").mkdir()
    (home / "documentation" / "outside").symlink_to(tmp_path / "elsewhere")
    check_tree(tree, keep=keep)
    assert not keep.exists()


def test_a_file_beside_the_divisions_is_found_though_findings_are_kept(tree: Path, keep: Path) -> None:
    check_tree(tree, keep=keep)
    (tree / "notes.txt").write_text("beside the divisions")
    assert "notes.txt" in {finding.file for finding in check_tree(tree, keep=keep).findings}

"""Files appear whole or not at all."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cm4vllm.common.errors import DiskFull, NotWritable
from cm4vllm.common.files import require_space, sha256_of_tree, staged_folder, writable_folder, write_bytes, write_text


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_text(path, "old")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(DiskFull):
        write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_written_files_can_be_read_by_others(tmp_path):
    write_text(tmp_path / "a", "x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) & 0o044 == 0o044 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_staged_folder_replaces_the_old_one_when_its_block_ends_well(tmp_path):
    target = tmp_path / "run"
    for content in ("one", "two"):
        with staged_folder(target) as folder:
            write_text(folder / "log", content)
    assert (target / "log").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_staged_folder_that_failed_is_kept_aside_and_never_takes_the_place(tmp_path):
    target = tmp_path / "run"
    with staged_folder(target) as folder:
        write_text(folder / "log", "good")
    with pytest.raises(KeyboardInterrupt), staged_folder(target) as folder:
        write_text(folder / "log", "half")
        raise KeyboardInterrupt
    assert (target / "log").read_text() == "good"
    assert (tmp_path / "run.failed" / "log").read_text() == "half"
    assert not (tmp_path / "run.partial").exists()


def test_the_digest_of_a_tree_depends_on_names_and_contents(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    first = sha256_of_tree(tmp_path)
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "y")
    assert sha256_of_tree(tmp_path) != first


def test_missing_space_is_refused_with_the_figures(tmp_path):
    with pytest.raises(DiskFull, match="MiB needed"):
        require_space(tmp_path / "not" / "yet", 2**62, "the results")


def test_a_file_where_a_folder_should_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="is a file"):
        writable_folder(tmp_path / "file" / "results")


def test_a_place_where_no_folder_can_be_made_is_refused():
    with pytest.raises(NotWritable, match="/proc/results"):
        writable_folder(Path("/proc/results"))


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("the cause")])
def test_a_staging_folder_that_vanished_masks_no_error(tmp_path, failure):
    with pytest.raises(type(failure)) as caught, staged_folder(tmp_path / "a") as staging:
        staging.rmdir()
        raise failure
    assert caught.value is failure


def test_a_staging_folder_that_vanished_is_an_error_with_a_cause(tmp_path):
    with pytest.raises(NotWritable) as caught, staged_folder(tmp_path / "a") as staging:
        staging.rmdir()
    assert "a.partial" in caught.value.cause
    assert not (tmp_path / "a").exists()


def test_a_file_that_finds_its_staging_folder_gone_has_the_same_cause(tmp_path):
    with pytest.raises(NotWritable) as caught, staged_folder(tmp_path / "a") as staging:
        staging.rmdir()
        (staging / "settings.json").read_text()
    assert "a.partial was removed" in caught.value.cause


def test_a_staging_folder_that_was_removed_and_made_again_has_the_same_cause(tmp_path):
    with pytest.raises(NotWritable) as caught, staged_folder(tmp_path / "a") as staging:
        (staging / "settings.json").touch()
        staging.rename(tmp_path / "elsewhere")
        write_text(staging / "metrics", "the last words")
        (staging / "settings.json").unlink()
    assert "a.partial was removed" in caught.value.cause


def test_what_cannot_be_written_into_a_staging_folder_is_named(tmp_path):
    with pytest.raises(DiskFull, match="no space left"), staged_folder(tmp_path / "a") as staging:
        raise OSError(errno.ENOSPC, "No space left on device", str(staging / "log"))
    with pytest.raises(FileNotFoundError), staged_folder(tmp_path / "a") as staging:
        (staging / "missing").read_text()


def test_a_target_whose_staging_folder_vanished_stays_as_it_was(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()
    with pytest.raises(NotWritable), staged_folder(tmp_path / "a") as staging:
        staging.rmdir()
    assert (tmp_path / "a" / "old").exists()


OBSTACLES = {
    "file": lambda path: path.write_text("x"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link in a circle": lambda path: path.symlink_to(path.name),
    "link to a folder": lambda path: path.symlink_to("far"),
    "full folder": lambda path: (path / "a" / "b").mkdir(parents=True),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("place", ["run", "run.partial", "run.old", "run.failed"])
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_whatever_lies_there_a_staged_folder_takes_its_place_and_leaves_nothing(tmp_path, place, obstacle):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "kept").touch()
    target = tmp_path / "run"
    OBSTACLES[obstacle](tmp_path / place)
    for content in ("one", "two"):
        with staged_folder(target) as folder:
            write_text(folder / "log", content)
    assert (target / "log").read_text() == "two"
    assert not target.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "run"]
    assert (tmp_path / "far" / "kept").exists()


AS_ANOTHER_USER = """
import os, shutil, sys, tempfile
from pathlib import Path
from cm4vllm.common import terminal_text
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import staged_folder, write_text
os.setgroups([]), os.setgid(65534), os.setuid(65534)  # after the imports: Python may lie where only root reads
try:
    with staged_folder(Path(sys.argv[1])) as folder:
        write_text(folder / "log", sys.argv[2])
except CmError as error:
    print(type(error).__name__, error.cause)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    ("left", "said"),
    [("run", ""), ("run.old", ""), ("run.failed", ""), ("run.partial", "NotWritable"), (".", "NotWritable")],
)
def test_what_another_user_left_neither_loses_a_run_nor_ends_in_a_traceback(left, said):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are for the owner alone
        mine = Path(name)
        mine.chmod(0o755)
        (mine / left / "deep").mkdir(parents=True)
        (mine / left / "deep" / "file").touch()
        if left != ".":
            os.chown(mine, 65534, 65534)
        for content in ("one", "two"):
            done = subprocess.run(
                [sys.executable, "-c", AS_ANOTHER_USER, mine / "run", content],
                text=True,
                capture_output=True,
                check=False,
            )
            assert done.stderr == ""
            assert done.stdout.startswith(said)
            assert bool(done.stdout) == bool(said)
            assert said or (mine / "run" / "log").read_text() == content

"""Files appear whole or not at all."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.errors import DiskFull, NotWritable
from cm4vllm.common.files import (
    MOST_BYTES,
    beginning_of,
    bytes_of,
    mapped,
    require_space,
    sha256_of_tree,
    text_of,
    writable_folder,
    write_bytes,
    write_text,
)
from cm4vllm.common.folders.temporary_folders import scratch_folder


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


def test_the_digest_of_a_tree_depends_on_names_and_contents(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    first = sha256_of_tree(tmp_path)
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "y")
    assert sha256_of_tree(tmp_path) != first


def test_missing_space_is_refused_with_the_figures(tmp_path):
    with pytest.raises(DiskFull, match="MiB needed"):
        require_space(tmp_path / "not" / "yet", 2**62, "the results")


@pytest.mark.parametrize(("place", "words"), [("/proc/results", "/proc/results"), ("/etc/hostname/x", "is a file")])
def test_a_place_where_no_folder_can_be_made_is_refused(place, words):
    with pytest.raises(NotWritable, match=words):
        writable_folder(Path(place))


def test_a_file_is_read_whole_up_to_a_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert bytes_of(path) == bytes_of(path, 5) == beginning_of(path, 9) == b"12345"
    assert beginning_of(path, 2) == b"12"
    for read in (bytes_of, text_of):
        with pytest.raises(OSError, match="longer than 4 bytes") as refused:
            read(path, 4)
        assert refused.value.filename == str(path)


@pytest.mark.parametrize("size", [MOST_BYTES + 1, 5 * 2**30, 2**40])
def test_a_file_with_holes_is_refused_at_once(tmp_path, size):
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, size)
    for read in (bytes_of, text_of):
        with pytest.raises(OSError, match="longer than 67,108,864 bytes"):
            read(path)
    with mapped(path) as data:
        assert data.find(b"\0") == 0 and len(data) == size


def test_a_file_of_the_kernel_and_an_empty_one_are_read(tmp_path):
    """The kernel states a length of zero for what it makes up."""
    assert text_of(Path("/proc/self/status")).startswith("Name:")
    (tmp_path / "empty").touch()
    with mapped(tmp_path / "empty") as data:
        assert data == b""


# --- temporary files on a disk that is full, or that cannot be written to


WRITE = """
import sys
from pathlib import Path
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_text
from cm4vllm.common.folders.temporary_folders import scratch_folder
try:
    with scratch_folder() as folder:
        {}
except CmError as error:
    print(type(error).__name__, error)
"""
#: A file system of 64 KiB in a mount namespace of its own, of which other processes see nothing.
MOUNTED = 'mount -t tmpfs -o size=64k none "$TMPDIR" && exec "$@"'


@pytest.mark.parametrize(
    "write", ["write_text(folder / 'x', 'x' * 2**18)", "(folder / 'x').write_bytes(b'x' * 2**18)"], ids=["ours", "raw"]
)
def test_a_full_disk_for_temporary_files_is_named_with_the_variable_that_names_another(tmp_path, write):
    unshare = ["unshare", "--mount", "--map-root-user"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("no mount namespace can be made here")
    done = subprocess.run(
        [*unshare, "sh", "-c", MOUNTED, "-", sys.executable, "-c", WRITE.format(write)],
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"DiskFull the disk of the folder for temporary files, {tmp_path}, is full"), done
    assert "TMPDIR" in done.stdout


def test_where_no_temporary_folder_can_be_made_the_variable_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(NotWritable, match="no folder for temporary files can be made") as failed, scratch_folder():
        pass
    assert "TMPDIR" in failed.value.remedy


def test_a_full_disk_elsewhere_is_not_blamed_on_the_temporary_folder():
    with pytest.raises(DiskFull, match="another disk"), scratch_folder() as folder:
        write_text(folder / "small", "x")
        raise DiskFull("another disk")
    assert not folder.exists()


KILLED = """
import os, signal
from cm4vllm.common.folders.temporary_folders import scratch_folder
with scratch_folder("cm4vllm-test-") as folder:
    (folder / "half").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_in_use_stays(tmp_path, monkeypatch):
    done = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = (path for path in tmp_path.iterdir() if path.is_dir())
    mine = tmp_path / "cm4vllm-test-mine.scratch"  # the name of ours alone does not make it ours, however old it is
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "notes.txt").touch()
    os.utime(mine, (1, 1))
    (tmp_path / "cm4vllm-test-file.scratch").write_text("no folder")
    (tmp_path / "cm4vllm-test-results").mkdir()
    (tmp_path / "cm4vllm-test-results" / "mine").write_text("no folder of ours")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder("cm4vllm-other-"):
        assert left.exists()  # of another kind
    with scratch_folder("cm4vllm-test-") as used:
        assert not left.exists()
        (used / "mine").write_text("x")
        with scratch_folder("cm4vllm-test-"):
            assert used.exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        "cm4vllm-test-file.scratch",
        "cm4vllm-test-mine.scratch",
        "cm4vllm-test-results",
    }
    assert (mine / "deep" / "notes.txt").exists()

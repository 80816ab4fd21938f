"""Temporary files on a disk that is full, or that cannot be written to."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from cm4vllm.common.errors import DiskFull, NotWritable
from cm4vllm.common.files import write_text
from cm4vllm.common.folders.temporary_folders import scratch_folder

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

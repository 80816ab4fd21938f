"""The place of a result after a killed command, beside a running one, and with files of another user."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.common.conftest import FOREIGN, KIND, files_of, fill, made

from cm4vllm.common.errors import NotWritable, UsageError
from cm4vllm.common.files import write_text
from cm4vllm.common.folders.owned_folders import begun_folder, discard, recover, staged_file
from cm4vllm.common.folders.ownership_notes import Kind, require_replaceable

KILLED = """
import os, signal, sys
from pathlib import Path
from cm4vllm.common.folders import owned_folders
place = sys.argv[2]
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if place != "block":
    setattr(owned_folders, place, die)
with owned_folders.staged_folder(Path(sys.argv[1])) as staging:
    (staging / "log").write_text("new")
    if place == "block":
        die()
"""


@pytest.mark.parametrize("place", ["block", "_finish", "_put_in_place", "note_all", "_removed_from", "unmark"])
def test_a_command_that_is_killed_loses_no_earlier_result_and_what_it_left_is_kept(tmp_path, place):
    made(tmp_path / "out", log="old")
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "out", place], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    kept = [path for path in tmp_path.iterdir() if path.name in ("out", "kept-out")]
    assert any((path / "log").read_text() in ("old", "new") for path in kept)
    recover(tmp_path / "out")
    assert (tmp_path / "out" / "log").read_text() in ("old", "new")
    made(tmp_path / "out", log="last")
    assert files_of(tmp_path / "out") == {"log": b"last"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out.")]
    assert {path.name for path in tmp_path.glob("kept*")} <= {"kept-out.partial", "kept-out"}


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from cm4vllm.common.folders import owned_folders
with getattr(owned_folders, sys.argv[1])(Path(sys.argv[2])) as place:
    folder = place or Path(sys.argv[2])
    if sys.argv[1] != "staged_file":
        folder.joinpath("sub").mkdir()
        folder = folder / "log"
    folder.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


#: What is being made, by the function that makes it: where a killed command leaves its files.
MAKING = {"staged_folder": "out.partial", "staged_file": "out.partial", "begun_folder": "out"}


def killed(how, target):
    done = subprocess.run([sys.executable, "-c", KILLED_AT, how, target], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    return target.parent / MAKING[how]


def again(how, target):
    if how == "begun_folder":
        require_replaceable(target, Kind("a test", "--folder"))
        with begun_folder(target):
            (target / "log").write_text("new")
    elif how == "staged_file":
        with staged_file(target) as place:
            place.write_text("new")
    else:
        made(target, KIND)


@pytest.mark.parametrize("how", MAKING)
@pytest.mark.parametrize("mine", ["notes.txt", "sub/thesis.tex"])
def test_what_a_user_put_into_the_folder_of_a_killed_command_is_kept_and_said(tmp_path, capsys, how, mine):
    left = killed(how, tmp_path / "out")
    fill(left, {mine: b"mine"})
    again(how, tmp_path / "out")
    kept = tmp_path / f"kept-{left.name}"
    assert (kept / mine).read_bytes() == b"mine"
    assert str(kept) in capsys.readouterr().out
    assert not left.exists() or how == "begun_folder"
    new = tmp_path / "out"
    assert (new if new.is_file() else new / "log").read_text() == "new"


def test_a_killed_command_leaves_nothing_of_a_single_file(tmp_path):
    killed("staged_file", tmp_path / "out")
    again("staged_file", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.cm4vllm.json", "out"]


@pytest.mark.parametrize("how", ["staged_folder", "begun_folder"])
@pytest.mark.parametrize("files", [{"thesis.tex": b"words"}, FOREIGN, {"log": b"half"}])
def test_another_folder_of_the_same_inode_is_the_users(tmp_path, how, files):
    left = killed(how, tmp_path / "out")
    inode = left.stat().st_ino
    for _ in range(50):
        shutil.rmtree(left)
        left.mkdir()
        if left.stat().st_ino == inode:
            break
    else:
        pytest.skip("this file system gives each folder another inode")
    fill(left, files)
    if how == "begun_folder":
        with pytest.raises(UsageError, match="is not replaced"):
            again(how, tmp_path / "out")
    else:
        again(how, tmp_path / "out")
    assert files_of(left) == files


def test_what_failed_in_its_place_is_replaced_without_the_files_that_came_later(tmp_path):
    with pytest.raises(ValueError), begun_folder(tmp_path / "out"):
        write_text(tmp_path / "out" / "log", "half")
        raise ValueError
    (tmp_path / "out" / "why.txt").write_text("mine")
    again("begun_folder", tmp_path / "out")
    assert files_of(tmp_path) == {"out/log": b"new", "kept-out/why.txt": b"mine"}


def test_a_folder_that_a_running_command_fills_in_its_place_is_not_touched(tmp_path):
    with begun_folder(tmp_path / "out"):
        write_text(tmp_path / "out" / "log", "first")
        for call in (lambda: again("begun_folder", tmp_path / "out"), lambda: discard(tmp_path / "out")):
            with pytest.raises(NotWritable) as caught:
                call()
            assert "another command" in caught.value.cause
    assert files_of(tmp_path) == {"out/log": b"first"}


AS_ANOTHER_USER = """
import os, shutil, sys, tempfile
from pathlib import Path
from cm4vllm.common import terminal_text
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_text
from cm4vllm.common.folders.owned_folders import staged_folder
os.setgroups([]), os.setgid(65534), os.setuid(65534)  # after the imports: Python may lie where only root reads
try:
    with staged_folder(Path(sys.argv[1])) as folder:
        write_text(folder / "log", sys.argv[2])
except CmError as error:
    print(type(error).__name__, error.cause)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("left", "said"), [("run", ""), ("run.partial", ""), (".", "NotWritable")])
def test_what_another_user_left_neither_loses_a_run_nor_ends_in_a_traceback(left, said):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are for the owner alone
        mine = Path(name)
        mine.chmod(0o755)
        (mine / left / "deep").mkdir(parents=True)
        (mine / left / "deep" / "file").touch()
        if left != ".":
            os.chown(mine, 65534, 65534)
        for content in ("one", "two"):
            words = [sys.executable, "-c", AS_ANOTHER_USER, mine / "run", content]
            done = subprocess.run(words, text=True, capture_output=True, check=False)
            assert done.stderr == ""
            assert said in done.stdout
            assert said or (mine / "run" / "log").read_text() == content

"""Commands replace and remove their own results, and nothing that belongs to the user."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cm4vllm.common.errors import DiskFull, NotWritable, UsageError
from cm4vllm.common.files import write_text
from cm4vllm.common.folders.owned_folders import (
    begun_folder,
    discard,
    move_result,
    recover,
    staged_file,
    staged_folder,
    write_noted,
    write_result_file,
)
from cm4vllm.common.folders.ownership_notes import Kind, foreign, mark, note_files, remove_marked, require_replaceable

OBSTACLES = {
    "file": lambda path: path.write_text("x"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link in a circle": lambda path: path.symlink_to(path.name),
    "link to a folder": lambda path: path.symlink_to("far"),
    "full folder": lambda path: (path / "a" / "b").mkdir(parents=True),
    "pipe": os.mkfifo,
}

KIND = Kind("a test", "--folder", recognised=lambda folder: (folder / "record.json").is_file())


def files_of(folder):
    """Return the files of a folder with their contents, and its links; without the notes of cm4vllm."""
    return {
        path.relative_to(folder).as_posix(): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or path.is_file()) and not path.name.endswith(".cm4vllm.json")
    }


def made(target, kind=None, **files):
    with staged_folder(target, kind) as staging:
        for name, text in (files or {"log": "new"}).items():
            write_text(staging / name, text)


FOREIGN = {"notes.txt": b"mine", "sub/thesis.tex": b"\\documentclass", ".git/HEAD": b"ref: x", ".env": b"A=1"}


def fill(folder, files=FOREIGN):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("files", [FOREIGN, {"a/b/c/only": b""}, {"run.json": b"{}"}])
def test_a_folder_of_foreign_files_is_refused_and_left_as_it_is(tmp_path, files):
    fill(tmp_path / "out", files)
    before = files_of(tmp_path)
    for call in (lambda: require_replaceable(tmp_path / "out", KIND), lambda: made(tmp_path / "out", KIND)):
        with pytest.raises(UsageError) as caught:
            call()
        assert sorted(files)[0].split("/")[-1] in caught.value.cause
        assert "--folder" in caught.value.remedy
    assert files_of(tmp_path) == before


def test_a_folder_of_foreign_files_that_nobody_asked_about_is_kept_under_a_new_name_that_is_said(tmp_path, capsys):
    fill(tmp_path / "out")
    made(tmp_path / "out")
    assert files_of(tmp_path / "kept-out") == FOREIGN
    assert files_of(tmp_path / "out") == {"log": b"new"}
    assert f"is now in {tmp_path / 'kept-out'}" in capsys.readouterr().out


def test_notes_in_an_earlier_result_and_changed_files_of_it_are_kept_under_a_new_name_that_is_said(tmp_path, capsys):
    made(tmp_path / "out", log="first", table="1", page="x")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "table").write_text("2")
    (tmp_path / "out" / "mine").mkdir()
    require_replaceable(tmp_path / "out", KIND)
    made(tmp_path / "out", KIND, log="second")
    assert files_of(tmp_path / "kept-out") == {"notes.txt": b"mine", "table": b"2"}
    assert (tmp_path / "kept-out" / "mine").is_dir()
    assert files_of(tmp_path / "out") == {"log": b"second"}
    said = capsys.readouterr().out
    assert "notes.txt" in said and "kept-out" in said
    (tmp_path / "out" / "more.txt").write_text("mine, too")
    made(tmp_path / "out", KIND, log="third")
    assert files_of(tmp_path / "kept1-out") == {"more.txt": b"mine, too"}
    assert "notes.txt" in files_of(tmp_path / "kept-out")


def test_a_result_of_an_earlier_version_is_known_by_its_record_and_kept_as_a_whole(tmp_path):
    fill(tmp_path / "out", {"record.json": b"{}", "log": b"old", "notes.txt": b"mine"})
    made(tmp_path / "out", KIND)
    assert files_of(tmp_path / "kept-out") == {"record.json": b"{}", "log": b"old", "notes.txt": b"mine"}
    assert files_of(tmp_path / "out") == {"log": b"new"}


def test_files_that_were_added_by_us_are_replaced_with_the_result(tmp_path):
    made(tmp_path / "out", log="first")
    write_text(tmp_path / "out" / "score.json", "1")
    note_files(tmp_path / "out", ["score.json"])
    made(tmp_path / "out", log="second")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.cm4vllm.json", "out"]


@pytest.mark.parametrize(
    ("place", "why"), [("/", "in it"), ("~", "a home folder"), ("..", "in it"), ("/proc", "mounted there")]
)
def test_roots_homes_mount_points_and_parents_are_never_replaced(tmp_path, monkeypatch, place, why):
    for folder in ("home", "work/here"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work" / "here")
    with pytest.raises(UsageError, match="is not replaced") as caught:
        require_replaceable(Path(place).expanduser().absolute(), KIND)
    assert why in caught.value.cause


def test_the_working_folder_is_written_into_and_nothing_of_it_is_removed(tmp_path, monkeypatch, capsys):
    fill(tmp_path, {**FOREIGN, "table": b"mine"})
    (tmp_path / "link").symlink_to("notes.txt")
    before = files_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    into = Kind("a test", "--folder", into_working_folder=True)
    with pytest.raises(UsageError) as caught:
        require_replaceable(Path().absolute(), KIND)
    assert "working folder" in caught.value.cause
    made(Path().absolute(), into, log="first", table="1")
    kept = before.pop("table")
    assert files_of(tmp_path) == {**before, "log": b"first", "table": b"1", "kept-table": kept}
    assert "kept-table" in capsys.readouterr().out
    made(Path().absolute(), into, log="second")
    assert files_of(tmp_path) == {**before, "log": b"second", "kept-table": kept}
    assert not [path for path in tmp_path.parent.iterdir() if path.name.startswith(tmp_path.name + ".")]


def test_a_failed_block_for_the_working_folder_leaves_its_folder_in_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError), staged_folder(Path().absolute()) as staging:
        write_text(staging / "log", "half")
        raise ValueError
    assert files_of(tmp_path) == {f"{tmp_path.name}.failed/log": b"half"}


def test_a_link_to_a_folder_stays_and_its_folder_is_the_target(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "out").symlink_to("far")
    for text in ("one", "two"):
        made(tmp_path / "out", KIND, log=text)
    assert (tmp_path / "out").is_symlink()
    assert files_of(tmp_path / "far") == {"log": b"two"}
    fill(tmp_path / "other")
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(UsageError):
        made(tmp_path / "link", KIND)
    assert files_of(tmp_path / "other") == FOREIGN


@pytest.mark.parametrize("obstacle", ["file", "link to nothing"])
def test_a_file_and_a_link_to_nothing_are_refused_as_targets(tmp_path, obstacle):
    OBSTACLES[obstacle](tmp_path / "out")
    with pytest.raises(UsageError) as caught:
        require_replaceable(tmp_path / "out", KIND)
    assert obstacle.split()[0] in caught.value.cause


def test_a_link_in_a_result_is_removed_and_not_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "kept").touch()
    with staged_folder(tmp_path / "out") as staging:
        (staging / "link").symlink_to(tmp_path / "far")
    made(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.cm4vllm.json", "far", "out"]
    assert (tmp_path / "far" / "kept").exists()


@pytest.mark.parametrize("brother", ["out.partial", "out.failed", "kept-out", "out.partial1"])
@pytest.mark.parametrize("there", [True, False])
def test_the_folders_beside_a_target_that_are_the_users_own_stay(tmp_path, brother, there):
    fill(tmp_path / brother)
    if there:
        made(tmp_path / "out", log="old")
    for text in ("one", "two"):
        made(tmp_path / "out", KIND, log=text)
        with pytest.raises(ValueError), staged_folder(tmp_path / "out") as staging:
            write_text(staging / "log", "half")
            raise ValueError
        assert files_of(tmp_path / "out") == {"log": text.encode()}
    assert files_of(tmp_path / brother) == FOREIGN


def test_notes_in_what_a_failed_command_left_are_kept(tmp_path):
    with pytest.raises(ValueError), staged_folder(tmp_path / "out") as staging:
        write_text(staging / "log", "half")
        raise ValueError
    (tmp_path / "out.failed" / "why.txt").write_text("mine")
    made(tmp_path / "out")
    assert files_of(tmp_path / "kept-out.failed") == {"why.txt": b"mine"}
    assert not (tmp_path / "out.failed").exists()


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


def test_a_file_that_is_added_to_a_result_replaces_ours_and_keeps_the_users(tmp_path, capsys):
    made(tmp_path / "out", log="1")
    write_result_file(tmp_path / "out", "score.txt", "one")
    write_result_file(tmp_path / "out", "score.txt", "two")
    assert files_of(tmp_path / "out") == {"log": b"1", "score.txt": b"two"}
    (tmp_path / "out" / "score.txt").write_text("mine")
    (tmp_path / "out" / "page.txt").write_text("my page")
    for name in ("score.txt", "page.txt"):
        write_result_file(tmp_path / "out", name, "three")
        assert f"kept-{name}" in capsys.readouterr().out
    kept = {"kept-score.txt": b"mine", "kept-page.txt": b"my page"}
    assert files_of(tmp_path / "out") == {"log": b"1", "score.txt": b"three", "page.txt": b"three", **kept}
    made(tmp_path / "out", log="2")
    assert files_of(tmp_path) == {"out/log": b"2", **{f"kept-out/{name}": text for name, text in kept.items()}}


def test_a_result_with_folders_is_made_again_in_the_working_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for text in ("one", "two", "three"):
        with staged_folder(Path().absolute()) as staging:
            write_text(staging / "sub" / "deep" / "log", text)
            (staging / "empty").mkdir()
    assert files_of(tmp_path) == {"sub/deep/log": b"three"}
    assert not list(tmp_path.glob("kept*")) and capsys.readouterr().out == ""
    (tmp_path / "sub" / "notes.txt").write_text("mine")
    with staged_folder(Path().absolute()) as staging:
        write_text(staging / "sub" / "deep" / "log", "four")
    assert files_of(tmp_path) == {"sub/deep/log": b"four", "kept-sub/notes.txt": b"mine"}


def test_a_folder_that_another_command_is_making_is_not_touched(tmp_path):
    with staged_folder(tmp_path / "out") as staging:
        write_text(staging / "log", "first")
        with pytest.raises(NotWritable) as caught:
            made(tmp_path / "out")
        assert "another command" in caught.value.cause
    assert files_of(tmp_path / "out") == {"log": b"first"}


def test_a_mark_is_of_one_folder_and_not_of_its_copies(tmp_path):
    fill(tmp_path / "a")
    mark(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "away")
    (tmp_path / "b").rename(tmp_path / "a")
    assert not remove_marked(tmp_path / "a")
    assert files_of(tmp_path / "a") == FOREIGN


def test_a_result_gets_another_name_in_place_of_the_earlier_one(tmp_path):
    made(tmp_path / "out", log="old")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    made(tmp_path / "aside", log="new")
    move_result(tmp_path / "aside", tmp_path / "out")
    assert files_of(tmp_path) == {"out/log": b"new", "kept-out/notes.txt": b"mine"}
    discard(tmp_path / "out")
    assert files_of(tmp_path) == {"kept-out/notes.txt": b"mine"}


def test_files_of_others_are_carried_over_and_stay_theirs(tmp_path):
    made(tmp_path / "out", log="old")
    fill(tmp_path / "out" / "theirs")
    with staged_folder(tmp_path / "out", carried=foreign(tmp_path / "out")) as staging:
        shutil.copytree(tmp_path / "out", staging, dirs_exist_ok=True)
    assert not (tmp_path / "kept-out").exists()
    made(tmp_path / "out", log="new")
    assert files_of(tmp_path / "kept-out" / "theirs") == FOREIGN


@pytest.mark.parametrize("mine", [b"mine", b"", b'{"files": {}}'])
def test_a_file_that_the_user_wrote_is_kept_under_a_new_name(tmp_path, mine, capsys):
    path = tmp_path / "page.html"
    path.write_bytes(mine)
    write_noted(path, "one")
    write_noted(path, "two")
    assert path.read_text() == "two"
    assert (tmp_path / "kept-page.html").read_bytes() == mine
    assert "kept-page.html" in capsys.readouterr().out
    path.write_text("mine again")
    write_noted(path, "three")
    assert (tmp_path / "kept1-page.html").read_text() == "mine again"


def test_a_note_of_another_user_is_none(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    made(tmp_path / "out", log="old")
    os.chown(tmp_path / ".out.cm4vllm.json", 65534, 65534)
    made(tmp_path / "out", log="new")
    assert files_of(tmp_path / "kept-out") == {"log": b"old"}


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


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("the cause")])
def test_a_staging_folder_that_vanished_masks_no_error(tmp_path, failure):
    with pytest.raises(type(failure)) as caught, staged_folder(tmp_path / "a") as staging:
        staging.rmdir()
        raise failure
    assert caught.value is failure


def gone(staging):
    staging.rmdir()


def gone_while_read(staging):
    staging.rmdir()
    (staging / "settings.json").read_text()


def made_again(staging):
    (staging / "settings.json").touch()
    staging.rename(staging.with_name("elsewhere"))
    write_text(staging / "metrics", "the last words")
    (staging / "settings.json").unlink()


@pytest.mark.parametrize("vanish", [gone, gone_while_read, made_again])
def test_a_staging_folder_that_vanished_is_an_error_with_a_cause_and_its_target_stays(tmp_path, vanish):
    made(tmp_path / "a", log="old")
    with pytest.raises(NotWritable) as caught, staged_folder(tmp_path / "a") as staging:
        vanish(staging)
    assert "a.partial was removed" in caught.value.cause
    assert files_of(tmp_path / "a") == {"log": b"old"}


def test_what_cannot_be_written_into_a_staging_folder_is_named(tmp_path):
    with pytest.raises(DiskFull, match="no space left"), staged_folder(tmp_path / "a") as staging:
        raise OSError(errno.ENOSPC, "No space left on device", str(staging / "log"))
    with pytest.raises(FileNotFoundError), staged_folder(tmp_path / "a") as staging:
        (staging / "missing").read_text()


@pytest.mark.parametrize("place", ["run", "run.partial", "run.old", "run.failed"])
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_whatever_lies_there_a_staged_folder_takes_its_place_and_removes_nothing_of_it(tmp_path, place, obstacle):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "kept").touch()
    target = tmp_path / "run"
    OBSTACLES[obstacle](tmp_path / place)
    kind = stat.S_IFMT((tmp_path / place).lstat().st_mode)
    for content in ("one", "two"):
        with staged_folder(target) as folder:
            write_text(folder / "log", content)
    assert (target / "log").read_text() == "two"
    if place == "run" and obstacle == "link to a folder":
        assert (tmp_path / "far" / "log").exists() and target.is_symlink()
    else:
        left = tmp_path / ("kept-run" if place == "run" else place)
        assert stat.S_IFMT(left.lstat().st_mode) == kind
    assert (tmp_path / "far" / "kept").exists() or (tmp_path / "kept-far" / "kept").exists()


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

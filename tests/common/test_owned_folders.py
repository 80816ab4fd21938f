"""Commands replace and remove their own results, and nothing that belongs to the user."""

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
from tests.common.conftest import FOREIGN, KIND, failed, files_of, fill, made

from cm4vllm.common.errors import DiskFull, NotWritable, UsageError
from cm4vllm.common.files import write_text
from cm4vllm.common.folders.owned_folders import discard, move_result, staged_folder, write_noted, write_result_file
from cm4vllm.common.folders.ownership_notes import Kind, foreign, mark, note_files, remove_marked, require_replaceable

OBSTACLES = {
    "file": lambda path: path.write_text("x"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link in a circle": lambda path: path.symlink_to(path.name),
    "link to a folder": lambda path: path.symlink_to("far"),
    "full folder": lambda path: (path / "a" / "b").mkdir(parents=True),
    "pipe": os.mkfifo,
}


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
    failed(Path().absolute())
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
        failed(tmp_path / "out")
        assert files_of(tmp_path / "out") == {"log": text.encode()}
    assert files_of(tmp_path / brother) == FOREIGN


def test_notes_in_what_a_failed_command_left_are_kept(tmp_path):
    made(tmp_path / "out", log="good")
    failed(tmp_path / "out", KeyboardInterrupt)
    assert files_of(tmp_path) == {"out/log": b"good", "out.failed/log": b"half"}
    (tmp_path / "out.failed" / "why.txt").write_text("mine")
    made(tmp_path / "out")
    assert files_of(tmp_path / "kept-out.failed") == {"why.txt": b"mine"}
    assert not (tmp_path / "out.failed").exists()


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


@pytest.mark.parametrize("mine", [b"mine", b'{"files": {}}'])
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


@pytest.mark.parametrize("place", ["run", "run.partial", "run.failed"])
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

"""Links, pipes and devices in the place of a plain file: refused by name, never followed, never waited for."""

import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.common.folders.plain_files import opened_in_place, require_plain_files

WRITE = os.O_WRONLY | os.O_APPEND | os.O_CREAT


@pytest.fixture(autouse=True)
def _no_hang():
    signal.alarm(20)
    yield
    signal.alarm(0)


def socket_at(path):
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket has 107 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as endpoint:
            endpoint.bind(path.name)
    finally:
        os.chdir(here)


KINDS = {
    "a link": lambda path: path.symlink_to("private"),
    "a link to a missing file": lambda path: path.symlink_to("nowhere"),
    "a link to a folder": lambda path: path.symlink_to("."),
    "a pipe": os.mkfifo,
    "a socket": socket_at,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_is_refused_by_name_and_never_written(tmp_path, kind):
    (tmp_path / "private").write_text("secret")
    made = tmp_path / "ledger.jsonl"
    KINDS[kind](made)
    for flags in (WRITE, os.O_RDWR | os.O_CREAT, os.O_WRONLY):
        with pytest.raises(UsageError) as caught:
            opened_in_place(made, flags)
        assert str(made) in caught.value.what and kind.partition(" to ")[0] in caught.value.what
    with pytest.raises(UsageError, match=r"ledger\.jsonl"):
        require_plain_files(tmp_path)
    assert (tmp_path / "private").read_text() == "secret" and not (tmp_path / "nowhere").exists()


def test_a_file_with_a_second_name_is_not_written_in_place(tmp_path):
    (tmp_path / "private").write_text("secret")
    os.link(tmp_path / "private", tmp_path / "ledger.jsonl")
    with pytest.raises(UsageError, match=r"ledger\.jsonl is a file with 2 names"):
        opened_in_place(tmp_path / "ledger.jsonl", WRITE)


def test_plain_files_and_folders_are_taken_wherever_the_folder_is_reached_through(tmp_path):
    (tmp_path / "real" / "out" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    out = tmp_path / "link" / "out"
    handle = opened_in_place(out / "deep" / "new", WRITE)
    os.write(handle, b"x")
    assert stat.S_ISREG(os.fstat(handle).st_mode)
    os.close(handle)
    require_plain_files(out)
    require_plain_files(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="link is a link"):
        require_plain_files(tmp_path / "link")

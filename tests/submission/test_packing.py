"""A submission as one file: the same bytes for the same tree, on any machine."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tarfile
import time

import pytest

from cm4vllm.common.errors import DiskFull, NotFoundError, NotWritable, SubmissionError, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.submission.changes import digests
from cm4vllm.submission.packing import pack, private_ids


@pytest.fixture
def tree(tmp_path):
    """A small tree: packing reads files, whatever is in them."""
    folder = tmp_path / "submission"
    texts = {
        "open/Nobody/README.md": "# Nobody\n",
        "open/Nobody/results/sys/m/Offline/accuracy/accuracy.txt": "1",
        "open/Nobody/systems/sys.json": "{}",
        "open/Nobody/src/run.sh": "true\n",
        "checker.json": "{}",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "open/Nobody/src/run.sh").chmod(0o755)
    return folder


def test_the_same_tree_gives_the_same_bytes(tree, tmp_path):
    first = pack(tree, tmp_path / "a" / "one.tar.gz")
    other = tmp_path / "elsewhere"
    for name in sorted(digests(tree), reverse=True):  # another order, other times, other modes
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / name, other / name)
        (other / name).chmod(0o700 if name.endswith(".sh") else 0o600)
        os.utime(other / name, (time.time() - 9000, 5))
    second = pack(other, tmp_path / "b" / "two.tar.gz")
    assert first.archive.read_bytes() == second.archive.read_bytes()
    assert first.archive.read_bytes()[3:8] == bytes(5)  # no name and no time in the header of gzip (RFC 1952)
    assert first.sha256 == second.sha256 == sha256_of(first.archive)
    assert (tmp_path / "a" / "one.tar.gz.sha256").read_text() == f"{first.sha256}  one.tar.gz\n"
    (other / "open/Nobody/README.md").write_text("# Somebody\n")
    assert pack(other, tmp_path / "three.tar.gz").sha256 != first.sha256


def test_it_holds_the_divisions_and_nothing_of_the_machine(tree, tmp_path):
    packed = pack(tree, tmp_path / "one.tar.gz")
    with tarfile.open(packed.archive) as tar:
        entries = tar.getmembers()
        tar.extractall(tmp_path / "out", filter="data")
    assert [entry.name for entry in entries] == sorted(name for name in digests(tree) if name != "checker.json")
    assert {(entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime) for entry in entries} == {(0, 0, "", "", 0)}
    assert {entry.mode for entry in entries} == {0o644, 0o755}
    assert digests(tmp_path / "out") == {name: one for name, one in digests(tree).items() if name != "checker.json"}


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_cannot_be_packed_is_refused(tree, tmp_path, monkeypatch):
    with pytest.raises(SubmissionError, match="no submission in"):
        pack(tmp_path / "none", tmp_path / "one.tar.gz")
    with pytest.raises(UsageError, match="--encrypt=gpg is given without --recipient"):
        pack(tree, tmp_path / "one.tar.gz", program="gpg")
    with pytest.raises(UsageError, match="--encrypt=zip is not supported") as refused:
        pack(tree, tmp_path / "one.tar.gz", program="zip", recipients=("x",))
    assert refused.value.remedy == "known: age, gpg"
    with pytest.raises(UsageError, match="--recipient=age1x is given without --encrypt"):
        pack(tree, tmp_path / "one.tar.gz", recipients=("age1x",))
    with monkeypatch.context() as without, pytest.raises(NotFoundError, match="age not found"):
        without.setenv("PATH", "")
        pack(tree, tmp_path / "one.tar.gz", program="age", recipients=("age1x",))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="cannot write"):
        pack(tree, tmp_path / "file/one.tar.gz")
    monkeypatch.setattr("cm4vllm.submission.packing._write", full_disk)
    with pytest.raises(DiskFull, match="one.tar.gz"):
        pack(tree, tmp_path / "one.tar.gz")
    assert not list(tmp_path.glob("*.partial"))
    monkeypatch.setenv("USER", "jdoe" + "4711x")
    (tree / "open/Nobody/README.md").write_text("by jdoe" + "4711x")
    with pytest.raises(SubmissionError, match="names this machine's user"):
        pack(tree, tmp_path / "one.tar.gz")
    assert not (tmp_path / "one.tar.gz").exists()


def test_gpg_encrypts_for_a_key_and_nobody_else_reads_it(tree, tmp_path, monkeypatch):
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not on this machine")
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    subprocess.run(
        [
            "gpg",
            "--batch",
            "--quiet",
            "--passphrase",
            "",
            "--quick-gen-key",
            "results@example.org",
            "future-default",
            "default",
            "1d",
        ],
        check=True,
        capture_output=True,
    )
    packed = pack(tree, tmp_path / "one.tar.gz", program="gpg", recipients=("results@example.org",))
    assert packed.encrypted is not None and packed.encrypted_sha256 == sha256_of(packed.encrypted)
    plain = subprocess.run(
        ["gpg", "--batch", "--quiet", "--decrypt", packed.encrypted], check=True, capture_output=True
    ).stdout
    assert plain == packed.archive.read_bytes() != packed.encrypted.read_bytes()
    with pytest.raises(SubmissionError, match="could not encrypt") as refused:
        pack(tree, tmp_path / "two.tar.gz", program="gpg", recipients=("nobody@example.org",))
    assert "nobody@example.org" in refused.value.cause
    assert not (tmp_path / "two.tar.gz.gpg").exists()
    subprocess.run(["gpgconf", "--kill", "all"], check=False, capture_output=True)


def test_age_encrypts_for_a_key(tree, tmp_path):
    if shutil.which("age") is None or shutil.which("age-keygen") is None:
        pytest.skip("age is not on this machine")
    key = tmp_path / "key"
    subprocess.run(["age-keygen", "-o", key], check=True, capture_output=True)
    public = subprocess.run(["age-keygen", "-y", key], check=True, capture_output=True, text=True).stdout.strip()
    packed = pack(tree, tmp_path / "one.tar.gz", program="age", recipients=(public,))
    plain = subprocess.run(["age", "--decrypt", "-i", key, packed.encrypted], check=True, capture_output=True).stdout
    assert plain == packed.archive.read_bytes()


def test_private_ids_are_those_of_the_official_checker_and_lie_in_the_archive_alone(tree, tmp_path, inference):
    before = digests(tree)
    ids = private_ids(tree, inference)
    assert ids == private_ids(tree, inference) and set(ids) == {"sys"}
    assert len(ids["sys"].split("-")) == 3
    packed = pack(tree, tmp_path / "one.tar.gz", ids=ids)
    with tarfile.open(packed.archive) as tar:
        stated = tar.extractfile("open/Nobody/results/sys/privateid.json").read()
    assert stated == f'{{\n    "sys": "{ids["sys"]}"\n}}'.encode()
    assert digests(tree) == before

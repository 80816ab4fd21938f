"""A submission as one file: the same bytes for the same tree, on any machine."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time

import pytest

from cm4vllm.common.errors import DiskFull, NotFoundError, NotWritable, SubmissionError, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.submission.archive import pack, private_ids
from cm4vllm.submission.checker.source import extract_checker
from cm4vllm.submission.log_truncation import truncate_log, truncate_tree
from cm4vllm.submission.tree_writer import digests
from commands import need

pytestmark = pytest.mark.xdist_group("runs-submission")  # one process makes the runs of these files


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
    (tmp_path / "link").symlink_to(tree)
    assert pack(tmp_path / "link", tmp_path / "four.tar.gz").sha256 == first.sha256
    (other / "open/Nobody/README.md").write_text("# Somebody\n")
    assert pack(other, tmp_path / "three.tar.gz").sha256 != first.sha256


def test_it_holds_the_divisions_and_nothing_of_the_machine(tree, tmp_path):
    packed = pack(tree, tmp_path / "one.tar.gz")
    with tarfile.open(packed.archive) as tar:
        entries = tar.getmembers()
        contents = {entry.name: hashlib.sha256(tar.extractfile(entry).read()).hexdigest() for entry in entries}
    assert [entry.name for entry in entries] == sorted(name for name in digests(tree) if name != "checker.json")
    assert {(entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime) for entry in entries} == {(0, 0, "", "", 0)}
    assert {entry.mode for entry in entries} == {0o644, 0o755}
    assert contents == {name: digest for name, digest in digests(tree).items() if name != "checker.json"}


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
    monkeypatch.setattr("cm4vllm.submission.archive._write", full_disk)
    with pytest.raises(DiskFull, match="one.tar.gz"):
        pack(tree, tmp_path / "one.tar.gz")
    assert not list(tmp_path.glob("*.partial"))
    monkeypatch.setenv("USER", "jdoe" + "4711x")
    (tree / "open/Nobody/README.md").write_text("by jdoe" + "4711x")
    with pytest.raises(SubmissionError, match="names this machine's user"):
        pack(tree, tmp_path / "one.tar.gz")
    assert not (tmp_path / "one.tar.gz").exists()


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("open/Nobody/src/notes.md", "/etc/hostname"),
        ("open/Nobody/results/other", "../../../../elsewhere"),
        ("open/Nobody/src/notes.md", "run.sh"),
        ("open/Nobody/src/loop", "loop"),
        ("open/Nobody/src/self", "."),
        ("open/Nobody/src/notes.md", "absent"),
        ("closed", "../elsewhere"),
    ],
)
def test_a_link_in_a_tree_is_refused_by_name(place, target, tree, tmp_path):
    result = tmp_path / "elsewhere/results/sys/m/Offline/accuracy.txt"
    result.parent.mkdir(parents=True)
    result.write_text("1")
    (tree / place).symlink_to(target)
    with pytest.raises(SubmissionError, match="what is no file of its own") as refused:
        pack(tree, tmp_path / "one.tar.gz")
    assert f"{place} is a link to {target}" in refused.value.cause and refused.value.remedy
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "submission"]
    (tree / place).unlink()
    os.mkfifo(tree / place)
    with pytest.raises(SubmissionError) as refused:
        pack(tree, tmp_path / "one.tar.gz")
    assert f"{place} is a pipe, a socket or a device" in refused.value.cause


@pytest.mark.parametrize(
    "record",
    ["[", "{}", '{"settings": {"server": {"endpoint": "http://[x", "replicas": 1}}}', "[" * 10**5, None],
    ids=["torn", "empty", "kinds", "deep", "pipe"],
)
def test_a_run_whose_servers_are_not_known_is_refused_by_name(tree, tmp_path, record):
    path = tmp_path / "runs/sut/m/Offline/accuracy/run.json"
    path.parent.mkdir(parents=True)
    if record is None:
        os.mkfifo(path)
    else:
        path.write_text(record)
    with pytest.raises(SubmissionError, match="does not say which servers its run asked") as refused:
        pack(tree, tmp_path / "one.tar.gz")
    assert str(path) in refused.value.what and not (tmp_path / "one.tar.gz").exists()


def gpg_key(home):
    home.mkdir(mode=0o700)
    # gpg itself waits five seconds for the agent that it starts.
    subprocess.run(["gpg-agent", "--daemon"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    made = ["--passphrase", "", "--quick-gen-key", "results@example.org", "future-default", "default", "1d"]
    subprocess.run(["gpg", "--batch", "--quiet", *made], check=True, capture_output=True)


@pytest.fixture(params=["age", "gpg"])
def key(request, tmp_path, monkeypatch):
    """A program that encrypts, a recipient, one that it does not know, and the words that decrypt."""
    program = request.param
    need(program)
    if program == "gpg":
        monkeypatch.setenv("GNUPGHOME", str(tmp_path / "gnupg"))
        gpg_key(tmp_path / "gnupg")
        yield program, "results@example.org", "another@example.org", ["gpg", "--batch", "--quiet", "--decrypt"]
        subprocess.run(["gpgconf", "--kill", "all"], check=False, capture_output=True)
        return
    need("age-keygen")
    secret = tmp_path / "gnupg" / "key"
    secret.parent.mkdir()
    subprocess.run(["age-keygen", "-o", secret], check=True, capture_output=True)
    public = subprocess.run(["age-keygen", "-y", secret], check=True, capture_output=True, text=True).stdout.strip()
    yield program, public, "age1nobody", ["age", "--decrypt", "-i", secret]


def lying(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".cm4vllm.json"))


def test_the_encrypted_archive_is_the_only_one_that_stays(tree, tmp_path, key, capsys):
    program, recipient, _, decrypt = key
    plain = pack(tree, tmp_path / "plain" / "one.tar.gz")
    out = tmp_path / "out"
    packed = pack(tree, out / "one.tar.gz", program=program, recipients=(recipient,))
    assert packed.archive is None and packed.sha256 == plain.sha256
    assert lying(out) == [f"one.tar.gz.{program}", f"one.tar.gz.{program}.sha256"]
    assert packed.encrypted_sha256 == sha256_of(packed.encrypted)
    opened = subprocess.run([*decrypt, packed.encrypted], check=True, capture_output=True).stdout
    assert opened == plain.archive.read_bytes() != packed.encrypted.read_bytes()
    kept = pack(tree, out / "one.tar.gz", program=program, recipients=(recipient,), keep_plain=True)
    assert kept.archive.read_bytes() == opened
    assert lying(out) == sorted(f"one.tar.gz{end}{sha}" for end in ("", f".{program}") for sha in ("", ".sha256"))
    opened = subprocess.run([*decrypt, kept.encrypted], check=True, capture_output=True).stdout
    assert opened == kept.archive.read_bytes()
    pack(tree, out / "one.tar.gz", program=program, recipients=(recipient,))
    assert "one.tar.gz of an earlier command is not encrypted, and stays" in capsys.readouterr().out


def test_nothing_stays_of_an_encryption_that_fails(tree, tmp_path, key, monkeypatch):
    program, recipient, unknown, _ = key
    out = tmp_path / "out"
    (tree / "open/Nobody/src/data.txt").write_text("".join(f"{number:x}\n" for number in range(200_000)))
    for keep in (False, True):
        with pytest.raises(SubmissionError, match=f"{program} could not encrypt one.tar.gz.{program}") as refused:
            pack(tree, out / "one.tar.gz", program=program, recipients=(unknown,), keep_plain=keep)
        assert unknown in refused.value.cause
        assert lying(out) == []
    monkeypatch.setattr("cm4vllm.submission.archive._write", full_disk)
    with pytest.raises(DiskFull):
        pack(tree, out / "one.tar.gz", program=program, recipients=(recipient,))
    assert lying(out) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from cm4vllm.submission import archive
def stop(out, tree, files, added):
    out.write(b"begin")
    out.flush()
    os.kill(os.getpid(), getattr(signal, sys.argv[4]))
archive._write = stop
archive.pack(Path(sys.argv[1]), Path(sys.argv[2]), program=sys.argv[3], recipients=(sys.argv[5],))
"""


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_plain_stays_of_an_encryption_that_is_killed(tree, tmp_path, key, signal):
    program, recipient, _, _ = key
    out = tmp_path / "out"
    words = [sys.executable, "-c", KILLED, tree, out / "one.tar.gz", program, signal, recipient]
    assert subprocess.run(words, check=False, capture_output=True).returncode
    left = [name for name in lying(out) if name != f"one.tar.gz.{program}.partial"]
    assert left == []
    packed = pack(tree, out / "one.tar.gz", program=program, recipients=(recipient,))
    assert lying(out) == sorted([packed.encrypted.name, f"{packed.encrypted.name}.sha256"])


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


@pytest.mark.parametrize(
    ("sizes", "cause"),
    [((5 * 2**30,), "large0.txt has 5.0 GiB"), ((2**40,), "1024.0 GiB"), ((2**30,) * 5, "have 5.0 GiB altogether")],
)
def test_a_tree_that_takes_hours_to_read_is_refused_at_once(tree, tmp_path, sizes, cause):
    for number, size in enumerate(sizes):
        with (tree / f"open/Nobody/large{number}.txt").open("wb") as file:
            file.truncate(size)
    began = time.process_time()
    with pytest.raises(SubmissionError, match="too large for an archive") as refused:
        pack(tree, tmp_path / "submission.tar.gz")
    assert cause in refused.value.cause
    assert time.process_time() - began < 5
    assert not (tmp_path / "submission.tar.gz").exists()


# --- log_truncation


def logs(tree):
    return sorted(tree.glob("*/*/results/*/*/*/accuracy/mlperf_log_accuracy.json"))


def snapshot(tree):
    return {path.relative_to(tree): path.read_bytes() for log in logs(tree) for path in log.parent.iterdir()}


def test_a_long_log_is_cut_to_its_ends_and_its_digest_written(own_built):
    tree = own_built.out / "submission"
    log = logs(tree)[0]
    whole = log.read_bytes()
    digest = sha256_of(log)
    assert truncate_tree(tree, own_built.submitter) == logs(tree)
    assert log.read_bytes() == whole[:4096] + b"\n\n...\n\n" + whole[-4096:]
    assert log.with_name("accuracy.txt").read_text().endswith(f"\nhash={digest}\n")


def test_truncation_reads_the_whole_tree_once_more(own_built, monkeypatch):
    tree = own_built.out / "submission"
    monkeypatch.setenv("SOME_TOKEN", "s3cret-" + "of-" + "the-truncation")
    page = next(tree.glob("*/*/results/*/summary.html"))
    page.write_text("<p>s3cret-" + "of-" + "the-truncation</p>")
    with pytest.raises(SubmissionError, match=r"summary.html, line 1, contains a secret") as refused:
        truncate_tree(tree, own_built.submitter)
    assert "the value of SOME_TOKEN" in refused.value.cause
    page.write_text("<p></p>")
    truncate_tree(tree, own_built.submitter)


def test_the_whole_logs_stay_with_the_runs_and_a_second_truncation_changes_nothing(own_built):
    tree = own_built.out / "submission"
    truncate_tree(tree)
    for log in logs(tree):
        whole = next((own_built.out / "runs").glob(f"*/*/{log.parents[1].name}/accuracy/mlperf_log_accuracy.json"))
        assert f"hash={sha256_of(whole)}" in log.with_name("accuracy.txt").read_text()
        assert whole.stat().st_size > 8200
    once = snapshot(tree)
    assert truncate_tree(tree) == []
    assert snapshot(tree) == once


def test_a_log_is_cut_with_its_own_digest_alone_also_by_one_that_was_killed_before(own_built):
    log = logs(own_built.out / "submission")[0]
    scores = log.with_name("accuracy.txt")
    whole = scores.read_text()
    scores.write_text(f"{whole}\nhash=abc\n")
    with pytest.raises(SubmissionError, match="digest of another log"):
        truncate_log(log)
    scores.write_text(f"{whole}\nhash={sha256_of(log)}\n")  # killed between digest and cut
    assert truncate_log(log)
    assert scores.read_text().count("hash=") == 1
    assert log.stat().st_size < 10240
    scores.write_text(whole)
    with pytest.raises(SubmissionError, match="digest of the whole log is not"):
        truncate_log(log)


def test_a_short_log_is_left_whole_and_a_tree_without_logs_refused(tmp_path):
    with pytest.raises(SubmissionError, match="no accuracy log"):
        truncate_tree(tmp_path)
    log = tmp_path / "mlperf_log_accuracy.json"
    log.write_text("[\n]\n")
    (tmp_path / "accuracy.txt").write_text("{}\n")
    assert truncate_log(log)
    assert log.read_text() == "[\n]\n"
    assert not truncate_log(log)


def test_it_is_byte_for_byte_what_the_official_tool_writes(own_built, inference, tmp_path):
    tree = own_built.out / "submission"
    tools, _ = extract_checker(inference, tmp_path / "tools")
    official = tmp_path / "official"
    words = [tools / "truncate_accuracy_log.py", "--input", tree, "--submitter", "Nobody", "--output", official]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    truncate_tree(tree)
    assert snapshot(tree) == snapshot(official)

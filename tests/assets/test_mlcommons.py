"""Downloads from MLCommons' storage, spoken by a server on the loopback interface."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loopback import Storage, mounted, serving

from cm4vllm.assets.downloads import mlcommons, resumed_download
from cm4vllm.assets.downloads.mlcommons import download, read_manifest
from cm4vllm.assets.models import MODEL_FILE, ModelSettings, provide
from cm4vllm.common.errors import DiskFull, DownloadError, UsageError
from cm4vllm.common.files import digest_of

SIZE = 2**23


@pytest.fixture
def storage(tmp_path, monkeypatch):
    folder = tmp_path / "published"
    (folder / "acc").mkdir(parents=True)
    (folder / "big.pkl").write_bytes(os.urandom(SIZE))
    (folder / "acc" / "small file.json").write_text("[]")
    monkeypatch.setattr(resumed_download, "PAUSE_S", 0.01)
    for key in ("CF_ACCESS_TOKEN", "CF_ACCESS_CLIENT_ID", "CF_ACCESS_CLIENT_SECRET"):
        monkeypatch.delenv(key, raising=False)
    with serving(Storage, folder) as handler:
        yield handler


@pytest.fixture
def target(tmp_path):
    return tmp_path / "had"


def manifest(storage, name="some"):
    return read_manifest(f"{storage.address}/metadata/{name}.uri")


def everything(listed):
    return dict.fromkeys(listed.digests, "")


def test_the_files_of_a_manifest_are_downloaded_and_proved(storage, target):
    listed = manifest(storage)
    assert (listed.name, listed.base) == ("some", f"{storage.address}/files")
    paths = download(listed, target, everything(listed))
    assert {path.relative_to(target).as_posix() for path in paths} == {"big.pkl", "acc/small file.json"}
    assert (target / "big.pkl").read_bytes() == (storage.folder / "big.pkl").read_bytes()
    before = len(storage.seen)
    download(listed, target, everything(listed))  # all is there: nothing is asked for again
    assert len(storage.seen) == before


def test_a_connection_that_breaks_is_taken_up_where_it_broke(storage, target):
    storage.break_after["big.pkl"] = 3 * 2**20
    listed = manifest(storage)
    download(listed, target, {"big.pkl": ""})
    asked = [headers.get("Range") for method, path, headers in storage.seen if method == "GET" and "big" in path]
    assert asked == [None, f"bytes={3 * 2**20}-"]
    assert (target / "big.pkl").read_bytes() == (storage.folder / "big.pkl").read_bytes()


DOWNLOAD = """
import sys
from pathlib import Path
from cm4vllm.assets.downloads.mlcommons import download, read_manifest
download(read_manifest(sys.argv[1]), Path(sys.argv[2]), {"big.pkl": ""})
"""


def test_a_download_that_was_killed_goes_on_where_it_stopped(storage, target):
    storage.goes_on.clear()
    words = [sys.executable, "-c", DOWNLOAD, f"{storage.address}/metadata/some.uri", target]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    part, deadline = target / "big.pkl.part", time.monotonic() + 60
    while not part.exists() or part.stat().st_size < SIZE // 4:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (target / "big.pkl").exists()
    here = part.stat().st_size
    storage.goes_on.set()
    download(manifest(storage), target, {"big.pkl": ""})
    assert storage.seen[-1][2]["Range"] == f"bytes={here}-"
    assert (target / "big.pkl").read_bytes() == (storage.folder / "big.pkl").read_bytes()
    assert not part.exists()


def test_a_wrong_digest_is_refused_and_removed(storage, target):
    listed = manifest(storage)
    storage.altered.add("big.pkl")
    with pytest.raises(DownloadError, match="wrong digest") as caught:
        download(listed, target, {"big.pkl": ""})
    assert listed.digests["big.pkl"] in caught.value.cause
    assert not list(target.rglob("big*"))


def test_files_that_are_there_are_proved_once_and_again_when_they_or_their_digests_change(storage, target, monkeypatch):
    listed = manifest(storage)
    target.mkdir()
    (target / "big.pkl").write_bytes((storage.folder / "big.pkl").read_bytes())  # put there by hand
    (target / "acc").mkdir()
    (target / "acc" / "small file.json").write_text("[ ]")  # another file of that name
    read = []
    monkeypatch.setattr(mlcommons, "digest_of", lambda path, kind: read.append(path.name) or digest_of(path, kind))
    download(listed, target, everything(listed))
    assert sorted(read) == ["big.pkl", "small file.json"]
    assert (target / "acc" / "small file.json").read_text() == "[]"

    read.clear()
    download(listed, target, everything(listed))
    assert read == []
    download(listed, target, everything(listed), again=True)
    assert sorted(read) == ["big.pkl", "small file.json"]

    read.clear()
    status = (target / "big.pkl").stat()
    altered = bytearray((target / "big.pkl").read_bytes())
    altered[7] ^= 1
    (target / "new").write_bytes(altered)
    os.utime(target / "new", ns=(status.st_atime_ns, status.st_mtime_ns))  # same size and time, another inode
    (target / "new").replace(target / "big.pkl")
    download(listed, target, everything(listed))
    assert read == ["big.pkl"]
    assert (target / "big.pkl").read_bytes() == (storage.folder / "big.pkl").read_bytes()

    (storage.folder / "acc" / "small file.json").write_text('["published anew"]')
    anew = manifest(storage)
    assert anew.digests != listed.digests
    download(anew, target, everything(anew))
    assert (target / "acc" / "small file.json").read_text() == '["published anew"]'
    assert sorted(path.name for path in target.iterdir()) == [".lock", "acc", "big.pkl", "kept-big.pkl"]


def test_a_manifest_that_is_missing_or_names_another_digest_than_the_catalogue_is_refused(storage, target):
    with pytest.raises(DownloadError, match="cannot be downloaded") as caught:
        manifest(storage, "none")
    assert "404" in caught.value.cause
    with pytest.raises(DownloadError, match="not the published file"):
        download(manifest(storage), target, {"big.pkl": "md5:" + "0" * 32})
    assert not (target / "big.pkl").exists()


def test_what_only_members_have_is_told_with_a_remedy_and_had_with_their_token(storage, target, monkeypatch):
    with pytest.raises(DownloadError, match="members") as caught:
        manifest(storage, "members")
    assert "CF_ACCESS_TOKEN" in caught.value.remedy
    monkeypatch.setenv("CF_ACCESS_TOKEN", "right")
    listed = manifest(storage, "members")
    download(listed, target, {"big.pkl": ""})
    written = [path for path in target.rglob("*") if path.is_file() and b"right" in path.read_bytes()[:100]]
    assert not written


def test_a_disk_that_is_too_small_is_told_and_one_that_fills_up_keeps_whole_files(storage, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    if not mounted(disk, "4M"):
        pytest.skip("a small file system cannot be mounted here")
    try:
        with pytest.raises(DiskFull, match="not enough disk space"):
            download(manifest(storage), disk, {"big.pkl": ""})
        assert not list(disk.rglob("big*"))
        monkeypatch.setattr(mlcommons, "require_space", lambda *_: None)  # as if others filled the disk meanwhile
        listed = manifest(storage)
        with pytest.raises(DiskFull) as caught:
            download(listed, disk, {"acc/small file.json": "", "big.pkl": ""})
        assert mlcommons.FOLDER_KEY in caught.value.remedy
        assert (disk / "acc" / "small file.json").exists()
        assert not list(disk.rglob("big*"))
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("ftp://host/x.uri", UsageError),
        ("http://127.0.0.1:9/metadata/some.txt", UsageError),
        ("http://127.0.0.1:9/metadata/some.uri", DownloadError),
    ],
)
def test_what_is_no_manifest_is_told(url, error):
    with pytest.raises(error):
        read_manifest(url)


@pytest.mark.parametrize("line", ["0" * 32 + "  ../../etc/passwd", "0" * 32 + "  /etc/passwd", "<html>"])
def test_a_list_of_files_that_leaves_its_folder_is_refused(tmp_path, line):
    class Bad(Storage):
        def answer(self, path):
            self.send(200, f"http://{self.headers['Host']}/files".encode() if path.endswith(".uri") else line.encode())

    with serving(Bad, tmp_path) as handler, pytest.raises(DownloadError, match="not usable"):
        manifest(handler)


def test_a_model_of_mlcommons_storage_is_described(model, tmp_path, monkeypatch):
    (model / "pytorch_model.bin").write_bytes(b"x" * 100)
    monkeypatch.setenv(mlcommons.FOLDER_KEY, str(tmp_path / "downloads"))
    entry = tmp_path / "entry"
    entry.mkdir()
    with serving(Storage, model) as handler:
        record = provide(ModelSettings(source="mlcommons", location=f"{handler.address}/metadata/some.uri"), entry)
        assert (record.name, record.parameters, record.source) == ("some", 42, f"MLCommons, {handler.address}/files")
        assert not list((tmp_path / "downloads").rglob("*.bin"))
    assert (entry / MODEL_FILE).exists()


def test_a_byte_that_changed_while_size_and_time_stayed_is_found(tmp_path):
    path = tmp_path / "model" / "weights"
    path.parent.mkdir()
    path.write_bytes(b"first")
    digest = digest_of(path, "sha256")
    assert mlcommons.VerifiedDigests(path.parent).prove("weights", digest) == digest
    assert mlcommons.VerifiedDigests(path.parent).knows("weights", digest)
    status = path.stat()
    time.sleep(0.02)  # a tick of the file system's clock
    path.write_bytes(b"fIrst")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not mlcommons.VerifiedDigests(path.parent).knows("weights", digest)


def test_files_that_were_downloaded_are_found_without_the_storage(storage, tmp_path, monkeypatch):
    monkeypatch.setenv("CM4VLLM_DOWNLOADS", str(tmp_path / "downloads"))
    listed = manifest(storage)
    before = download(listed, mlcommons.downloads_folder("some"), everything(listed))
    monkeypatch.setattr(mlcommons, "answer_of", unreachable)
    again = manifest(storage)
    assert again == listed
    assert download(again, mlcommons.downloads_folder("some"), everything(again)) == before
    before[0].unlink()
    with pytest.raises(DownloadError, match="cannot be read"):
        download(again, mlcommons.downloads_folder("some"), everything(again))
    with pytest.raises(DownloadError, match="cannot be read"):  # another address of that name
        mlcommons.read_manifest("http://127.0.0.1:9/metadata/some.uri")


def unreachable(*_, **__):
    raise ConnectionRefusedError(111, "Connection refused")

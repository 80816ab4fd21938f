"""Models of the hub: a download proved by its digests, an interrupted one that goes on, and all that goes wrong."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loopback import COMMIT, Hub, mounted, serving

from cm4vllm.assets.downloads import hub as hub_module
from cm4vllm.assets.models import MODEL_FILE, ModelSettings, provide
from cm4vllm.common.errors import DiskFull, DownloadError
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.host_addresses import PROXY_VARIABLES
from cm4vllm.records.assets import ModelRecord
from conftest import safetensors


@pytest.fixture
def entry(tmp_path):
    folder = tmp_path / "entry"
    folder.mkdir()
    return folder


@pytest.fixture
def hub(model, monkeypatch, tmp_path):
    """A hub on the loopback interface that has `model` under every name, and an empty cache of the hub's client."""
    from huggingface_hub import constants

    with serving(Hub, model) as handler:
        monkeypatch.setattr(constants, "ENDPOINT", handler.address)
        # The training script, imported by other tests, puts the hub's client into offline mode.
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        template = handler.address + template[template.index("/{") :]
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield handler


def from_hub(entry, name="owner/some-model", revision="") -> ModelRecord:
    return provide(ModelSettings(source="hf", location=name, revision=revision), entry)


def tokens(hub):
    return {headers.get("Authorization") for _, _, headers in hub.seen}


def test_a_model_of_the_hub_is_downloaded_and_described(hub, entry, model):
    record = from_hub(entry)
    assert record.name == "some-model"
    assert record.source == f"Hugging Face hub, owner/some-model at {COMMIT}"
    assert record.recipe["revision"] == COMMIT
    assert record.sha256 == sha256_of_tree(model)
    assert tokens(hub) == {None}


def test_a_gated_model_needs_the_environments_token_which_is_written_nowhere(hub, entry, monkeypatch, tmp_path, capfd):
    with pytest.raises(DownloadError, match="gated") as caught:
        from_hub(entry, "owner/gated")
    assert "HF_TOKEN" in caught.value.remedy
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert from_hub(entry, "owner/gated").parameters == 42
    written = [path for path in tmp_path.rglob("*") if path.is_file() and b"hf_right" in path.read_bytes()]
    assert not written
    assert "hf_right" not in "".join(capfd.readouterr())


def test_names_and_revisions_that_the_hub_lacks_are_told(hub, entry):
    with pytest.raises(DownloadError, match="no model owner/none"):
        from_hub(entry, "owner/none")
    with pytest.raises(DownloadError, match="no revision 'no-such-branch'"):
        from_hub(entry, revision="no-such-branch")


def test_a_disk_that_is_too_small_is_told_before_the_download(hub, entry, monkeypatch):
    monkeypatch.setattr(hub_module, "SPARE_BYTES", 2**60)
    with pytest.raises(DiskFull):
        from_hub(entry)
    assert not [path for _, path, _ in hub.seen if "/resolve/" in path]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_with_a_wrong_digest_is_refused_and_removed(hub, entry, name):
    from huggingface_hub import constants

    hub.altered.add(name)
    with pytest.raises(DownloadError, match="wrong digest") as caught:
        from_hub(entry)
    assert caught.value.remedy
    cache = Path(constants.HF_HUB_CACHE)
    assert not [path for path in cache.rglob("*") if path.is_file() and path.read_bytes()[:1] == b"\0"]
    assert not (entry / MODEL_FILE).exists()
    hub.altered.clear()
    path = Path(from_hub(entry).path) / name
    content = path.read_bytes()
    path.resolve().write_bytes(content[:-1] + b"!")  # others write to the cache, too
    with pytest.raises(DownloadError, match="wrong digest"):
        from_hub(entry)
    assert (Path(from_hub(entry).path) / name).read_bytes() == content


def test_a_disk_that_fills_up_leaves_nothing_half_done(hub, entry, model, monkeypatch, tmp_path):
    from huggingface_hub import constants

    safetensors(model / "model.safetensors", {"a": ("BF16", [2**21], 2**22)})
    disk = tmp_path / "disk"
    if not mounted(disk, "2M"):
        pytest.skip("a small file system cannot be mounted here")
    try:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(disk / "hub"))
        monkeypatch.setattr(hub_module, "require_space", lambda *_: None)  # as if others filled the disk meanwhile
        with pytest.raises(DiskFull) as caught:
            from_hub(entry)
        assert "HF_HOME" in caught.value.remedy
        assert not [*disk.rglob("*.incomplete"), *disk.rglob("*.part")]
        assert not list(disk.rglob("model.safetensors"))
        assert not (entry / MODEL_FILE).exists()
    finally:
        subprocess.run(["umount", disk], check=True)


DOWNLOAD = """
import sys
from pathlib import Path
from cm4vllm.assets.models import ModelSettings, provide
print(provide(ModelSettings(source="hf", location="owner/some-model"), Path(sys.argv[1])).sha256)
"""


def test_a_download_that_was_killed_goes_on_where_it_stopped(hub, entry, model, tmp_path):
    safetensors(model / "model.safetensors", {"a": ("BF16", [2**22], 2**23)})
    size = (model / "model.safetensors").stat().st_size
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    env = {**os.environ, **home, "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0"}
    hub.goes_on.clear()
    process = subprocess.Popen([sys.executable, "-c", DOWNLOAD, entry], env=env, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not [part for part in tmp_path.rglob("*.part") if part.stat().st_size > size // 4]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (entry / MODEL_FILE).exists()
    hub.goes_on.set()
    seen = len(hub.seen)
    done = subprocess.run([sys.executable, "-c", DOWNLOAD, entry], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == sha256_of_tree(model)
    asked = [
        headers.get("Range") or ""
        for method, path, headers in hub.seen[seen:]
        if method == "GET" and path.endswith("model.safetensors")
    ]
    assert [header for header in asked if header.startswith("bytes=") and not header.startswith("bytes=0-")], asked
    seen = len(hub.seen)  # offline, another process finds the model in that home
    env["HF_HUB_OFFLINE"] = "1"
    again = subprocess.check_output([sys.executable, "-c", DOWNLOAD, entry], env=env, text=True)
    assert again.splitlines()[-1] == sha256_of_tree(model) and len(hub.seen) == seen


def test_a_hub_that_cannot_be_reached_is_told_with_another_way(hub, entry, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(DownloadError, match="owner/some-model cannot be downloaded") as caught:
        from_hub(entry)
    assert "refused" in caught.value.cause
    assert "_path." in caught.value.remedy


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_that_refuses_the_hub_is_named_without_its_password(hub, entry, monkeypatch, name):
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    for other in PROXY_VARIABLES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    close_session()
    with refusing_proxy() as address:
        monkeypatch.setenv(name, f"http://user:s3cret-word@{address}")
        with pytest.raises(DownloadError, match="cannot be downloaded") as caught:
            from_hub(entry)
    close_session()
    assert "403" in caught.value.cause
    assert f"through the proxy http://{address} (HTTPS_PROXY)" in caught.value.cause
    assert "s3cret-word" not in str(caught.value)


@contextlib.contextmanager
def refusing_proxy():
    """Yield the address of a proxy that answers 403 to every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self):
            self.send_error(403)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("revision", ["", "main", "v1.0", COMMIT])
@pytest.mark.parametrize("offline", [False, True])
def test_without_the_hub_a_model_of_its_cache_is_used(hub, entry, monkeypatch, tmp_path, revision, offline):
    from huggingface_hub import constants

    before = from_hub(entry, revision=revision)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    other_home = tmp_path / "entry of another CM home"
    other_home.mkdir()
    assert from_hub(other_home, revision=revision) == before
    with pytest.raises(DownloadError):
        from_hub(entry, revision="never-downloaded")


def test_a_model_whose_branch_is_not_noted_is_found_if_it_is_the_only_one_and_whole(hub, entry, model, monkeypatch):
    from huggingface_hub import constants

    for name in ("pytorch_model.bin", "q4.gguf"):  # never downloaded, and not missing
        (model / name).write_bytes(b"other weights")
    cache = Path(constants.HF_HUB_CACHE) / "models--owner--some-model"
    before = from_hub(entry)
    (cache / "refs" / "main").write_text(f"{COMMIT}\n")  # noted by hand, with a line end
    with monkeypatch.context() as unreachable:
        unreachable.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        assert from_hub(entry) == before
    (cache / "refs" / "main").unlink()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert from_hub(entry) == before
    (cache / "blobs" / "x.incomplete").touch()
    with pytest.raises(DownloadError):
        from_hub(entry)


@pytest.mark.parametrize("names", [["q4.gguf", "q8.gguf"], ["pytorch_model.bin"], []])
def test_a_model_without_safetensors_is_refused_before_its_download(hub, entry, model, names):
    (model / "model.safetensors").unlink()
    for name in names:
        (model / name).write_bytes(b"GGUF")
    with pytest.raises(DownloadError, match="no weights in safetensors") as caught:
        from_hub(entry)
    assert all(name in caught.value.cause for name in names)
    assert not [path for _, path, _ in hub.seen if "/resolve/" in path]

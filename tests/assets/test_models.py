"""Models of each source, and what is said when one cannot be had."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cm4vllm.assets.models import (
    MODEL_FILE,
    TINY_NAME,
    ModelSettings,
    check_unchanged,
    provide,
    tokenizer_sha256,
)
from cm4vllm.assets.records import ModelRecord
from cm4vllm.common.errors import DiskFull, InstallError, ModelError, UsageError
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.records import read_record


@pytest.fixture
def entry(tmp_path):
    folder = tmp_path / "entry"
    folder.mkdir()
    return folder


def local(model, entry) -> ModelRecord:
    return provide(ModelSettings(source="path", location=str(model)), entry)


def test_a_local_folder_is_described_and_recorded(model, entry):
    record = local(model, entry)
    assert read_record(entry / MODEL_FILE, ModelRecord) == record
    assert record.name == "My-Model"
    assert record.path == str(model)
    assert record.sha256 == sha256_of_tree(model)
    assert (record.parameters, record.weight_data_types, record.min_tokens) == (42, "bf16", 1)
    assert tokenizer_sha256(record) == hashlib.sha256((model / "tokenizer.json").read_bytes()).hexdigest()


def test_a_snapshot_of_the_hubs_cache_has_the_models_name(model, entry):
    folder = model.parent / "models--owner--Some-Model" / "snapshots" / "0123abcd"
    folder.parent.mkdir(parents=True)
    model.rename(folder)
    assert local(folder, entry).name == "Some-Model"


def test_a_folder_called_as_a_benchmark_does_not_become_its_model(model, entry):
    folder = model.rename(model.with_name("llama3_1-8b"))
    assert local(folder, entry).name == "local-llama3_1-8b"


def test_files_that_changed_since_are_noticed(model, entry):
    record = local(model, entry)
    check_unchanged(record)
    (model / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="have changed") as caught:
        check_unchanged(record)
    assert "--renew" in caught.value.remedy


def test_a_folder_without_a_model_leaves_no_record(tmp_path, entry):
    with pytest.raises(ModelError):
        local(tmp_path / "none", entry)
    assert not (entry / MODEL_FILE).exists()


def test_without_vllm_the_tiny_model_says_how_it_is_trained_once(entry):
    with pytest.raises(ModelError) as caught:
        provide(ModelSettings(source="tiny"), entry)
    assert "cm run script --tags=get,ml-model,_tiny" in caught.value.remedy


def test_a_python_without_torch_is_told(entry, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\"\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(InstallError) as caught:
        provide(ModelSettings(source="tiny", python=str(python)), entry)
    assert "No module named 'torch'" in caught.value.cause
    assert not (entry / TINY_NAME).exists()


def test_a_training_that_is_killed_leaves_no_model(entry, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'step 100/1050 loss 2.0 3 s'\nkill -9 $$\n")
    python.chmod(0o755)
    with pytest.raises(ModelError, match="training") as caught:
        provide(ModelSettings(source="tiny", python=str(python)), entry)
    assert "killed by SIGKILL" in caught.value.cause
    assert "step 100/1050" in caught.value.cause
    assert not (entry / TINY_NAME).exists()


def test_an_unknown_source_and_an_impossible_name_are_refused(entry):
    with pytest.raises(UsageError):
        provide(ModelSettings(source="cloud"), entry)
    with pytest.raises(UsageError, match="not the name"):
        provide(ModelSettings(source="hf", location="https://hub/owner/name"), entry)



COMMIT = "0123456789012345678901234567890123456789"


class Hub(BaseHTTPRequestHandler):
    """The part of a model hub that a download uses; `owner/gated` asks for a token."""

    protocol_version = "HTTP/1.1"
    folder = Path()
    tokens: list[str | None] = []

    def log_message(self, *_):
        pass

    def send(self, status, data=b"", **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.tokens.append(self.headers.get("Authorization"))
        name = re.search(r"owner/[\w-]+", path)[0]
        if name == "owner/none":
            self.send(404, X_Error_Code="RepoNotFound")
        elif name == "owner/gated" and self.headers.get("Authorization") != "Bearer hf_right":
            self.send(403, X_Error_Code="GatedRepo")
        elif "no-such-branch" in path:
            self.send(404, X_Error_Code="RevisionNotFound")
        elif "/resolve/" in path:
            data = (self.folder / path.rpartition("/")[2]).read_bytes()
            self.send(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=COMMIT)
        else:
            files = [{"rfilename": file.name, "path": file.name, "size": file.stat().st_size, "type": "file",
                      "oid": "0"} for file in self.folder.iterdir()]
            listed = files if "/tree/" in path else {"id": name, "modelId": name, "sha": COMMIT, "siblings": files}
            self.send(200, json.dumps(listed).encode(), Content_Type="application/json")

    do_HEAD = do_GET


@pytest.fixture
def hub(model, monkeypatch, tmp_path):
    """A hub on the loopback interface that has `model` under every name, and an empty cache of the hub's client."""
    from huggingface_hub import constants

    handler = type("OneHub", (Hub,), {"folder": model, "tokens": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        # The training script, imported by other tests, puts the hub's client into offline mode.
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + template[template.index("/{") :])
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield handler
        server.shutdown()
        thread.join()


def from_hub(entry, name="owner/some-model", revision="") -> ModelRecord:
    return provide(ModelSettings(source="hf", location=name, revision=revision), entry)


def test_a_model_of_the_hub_is_downloaded_and_described(hub, entry, model):
    record = from_hub(entry)
    assert record.name == "some-model"
    assert record.source == f"Hugging Face hub, owner/some-model at {COMMIT}"
    assert record.recipe["revision"] == COMMIT
    assert record.sha256 == sha256_of_tree(model)
    assert set(hub.tokens) == {None}


def test_a_gated_model_needs_the_environments_token_which_is_written_nowhere(hub, entry, monkeypatch):
    with pytest.raises(ModelError, match="gated") as caught:
        from_hub(entry, "owner/gated")
    assert "HF_TOKEN" in caught.value.remedy
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert from_hub(entry, "owner/gated").parameters == 42
    assert "hf_right" not in (entry / MODEL_FILE).read_text()


def test_names_and_revisions_that_the_hub_lacks_are_told(hub, entry):
    with pytest.raises(ModelError, match="no model owner/none"):
        from_hub(entry, "owner/none")
    with pytest.raises(ModelError, match="no revision 'no-such-branch'"):
        from_hub(entry, revision="no-such-branch")


def test_a_full_disk_is_told_before_the_download(hub, entry, monkeypatch):
    from cm4vllm.assets import models

    monkeypatch.setattr(models, "_SPARE_BYTES", 2**60)
    with pytest.raises(DiskFull):
        from_hub(entry)


def test_a_hub_that_cannot_be_reached_is_told_with_another_way(hub, entry, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(ModelError, match="owner/some-model cannot be downloaded") as caught:
        from_hub(entry)
    assert "refused" in caught.value.cause
    assert "_path." in caught.value.remedy


def test_without_the_hub_a_model_of_its_cache_is_used(hub, entry, monkeypatch):
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE) / "models--owner--some-model"
    before = from_hub(entry)
    (cache / "refs").mkdir(exist_ok=True)
    (cache / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert from_hub(entry) == before

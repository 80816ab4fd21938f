"""The summaries of scripts: kept between starts, and read again after a meta changed."""

import json
import os
import time

from cm4vllm.engine.format import meta_store as module
from cm4vllm.engine.format.meta_store import summaries


def meta(folder, tags, *, name="_cm.yaml"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"alias": folder.name, "uid": "1" * 16, "tags": tags.split(",")}))


def tags_of(folder, store):
    return [",".join(summary.tags) for summary in summaries([(str(folder), "repo")], store)]


def test_a_meta_is_read_once(tmp_path, monkeypatch):
    meta(tmp_path / "a", "one,two")
    monkeypatch.setattr(module, "SETTLED_S", -1)  # as if it had been written long ago
    assert tags_of(tmp_path / "a", tmp_path / "store") == ["one,two"]
    monkeypatch.setattr(module, "read_meta", lambda folder: 1 / 0)
    assert tags_of(tmp_path / "a", tmp_path / "store") == ["one,two"]


def test_a_meta_that_changed_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SETTLED_S", -1)
    meta(tmp_path / "a", "one,two")
    path = tmp_path / "a" / "_cm.yaml"
    before = path.stat()
    tags_of(tmp_path / "a", tmp_path / "store")
    time.sleep(0.02)  # a tick of the file system's clock
    meta(tmp_path / "a", "one,six")  # as long as before
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert tags_of(tmp_path / "a", tmp_path / "store") == ["one,six"]
    meta(tmp_path / "a", "seven", name="_cm.json")
    assert tags_of(tmp_path / "a", tmp_path / "store") == ["seven"]


def test_a_meta_that_was_written_just_now_is_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SETTLED_S", 30 * module.SETTLED_S)  # this test may stand still for seconds
    meta(tmp_path / "a", "one,two")
    tags_of(tmp_path / "a", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_half_a_store_and_a_broken_meta_hide_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SETTLED_S", -1)
    meta(tmp_path / "a", "one")
    meta(tmp_path / "b", "two")
    (tmp_path / "b" / "_cm.yaml").write_text("{")
    (tmp_path / "store").write_text('{"half":')
    read = summaries([(str(tmp_path / name), "repo") for name in ("a", "b", "missing")], tmp_path / "store")
    assert [summary.alias for summary in read] == ["a"]
    (tmp_path / "b" / "_cm.yaml").write_text("tags: [two]")
    assert tags_of(tmp_path / "b", tmp_path / "store") == ["two"]

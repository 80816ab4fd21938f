"""Metas are kept as they were read, and never used after they changed."""

import datetime
import json
import os
import time

import pytest
import yaml

from cm4vllm.common.errors import RecipeError
from cm4vllm.engine.format import script_catalogue as module
from cm4vllm.engine.format.script_catalogue import KeptMetas, summaries
from cm4vllm.engine.format.versions import version_key

META = {"alias": "a", "versions": {3.8: {"env": {"CM_A": True}}, 9: None}, "tags": ["größe", "x"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SETTLED_S", -1)  # as if all had been written long ago
    place = tmp_path / "script"
    place.mkdir()
    write(place, META)
    return place


def write(folder, meta):
    (folder / "_cm.yaml").write_text(yaml.safe_dump(meta, sort_keys=False))


def read(folder):
    metas = KeptMetas(str(folder.parent / "store"))
    meta = metas.read(str(folder))
    metas.keep()
    return meta


def test_a_meta_is_parsed_once_and_comes_back_as_it_was(folder, monkeypatch):
    assert read(folder) == META
    monkeypatch.setattr(module, "read_meta", lambda folder: 1 / 0)
    assert read(folder) == META
    assert list(read(folder)["versions"]) == [3.8, 9]


def test_a_meta_that_changed_is_read_again(folder):
    read(folder)
    path = folder / "_cm.yaml"
    before = path.stat()
    time.sleep(0.02)  # a tick of the file system's clock
    write(folder, {**META, "alias": "b"})  # as long as before
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read(folder)["alias"] == "b"
    (folder / "_cm.json").write_text('{"alias": "c"}')
    assert read(folder)["alias"] == "c"
    path.unlink()
    (folder / "_cm.json").unlink()
    with pytest.raises(RecipeError):
        read(folder)


def test_a_meta_that_was_written_just_now_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(module, "SETTLED_S", 60)
    read(folder)
    assert not (folder.parent / "store").exists()


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-3], lambda data: b"\0" * len(data), lambda data: b"(" + data]
)
def test_what_is_damaged_counts_as_absent(folder, damage):
    read(folder)
    (store,) = (folder.parent / "store").iterdir()
    store.write_bytes(damage(store.read_bytes()))
    assert read(folder) == META


def test_what_cannot_be_kept_is_read_each_time(folder):
    write(folder, {"alias": datetime.date(2026, 1, 2)})
    assert read(folder) == read(folder) == {"alias": datetime.date(2026, 1, 2)}
    assert not (folder.parent / "store").exists()


def test_a_home_that_cannot_be_written_does_no_harm(folder):
    (folder.parent / "store").write_text("a file")
    assert read(folder) == read(folder) == META


# --- the summaries of scripts: kept between starts, and read again after a meta changed


def meta(folder, tags, *, name="_cm.yaml"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"alias": folder.name, "uid": "1" * 16, "tags": tags.split(",")}))


def tags_of(folder, store):
    return [",".join(summary.tags) for summary in summaries([(str(folder), "repo")], store)]


def test_a_meta_that_changed_is_read_again_summaries(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SETTLED_S", -1)
    meta(tmp_path / "a", "one,two")
    path = tmp_path / "a" / "_cm.yaml"
    before = path.stat()
    assert tags_of(tmp_path / "a", tmp_path / "store") == ["one,two"]
    with monkeypatch.context() as patched:
        patched.setattr(module, "read_meta", lambda folder: 1 / 0)
        assert tags_of(tmp_path / "a", tmp_path / "store") == ["one,two"]
    time.sleep(0.02)  # a tick of the file system's clock
    meta(tmp_path / "a", "one,six")  # as long as before
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert tags_of(tmp_path / "a", tmp_path / "store") == ["one,six"]
    meta(tmp_path / "a", "seven", name="_cm.json")
    assert tags_of(tmp_path / "a", tmp_path / "store") == ["seven"]


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


# --- versions


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.9", "1.10"),
        ("1.0rc1", "1.0"),
        ("2.13.0", "10"),
        ("1.0", "1.0.post1"),
        ("1.0.post1", "1.0.1"),
        ("9" * 5000, "1" + "0" * 5000),
    ],
)
def test_order(older, newer):
    assert version_key(older) < version_key(newer)


@pytest.mark.parametrize(
    ("version", "same"), [("1.0", "1.0.0"), ("1." + "0" * 5000, "1"), ("2.13.0", "2.13.0+cpu"), ("v6.1", "v6.1")]
)
def test_equal(version, same):
    assert version_key(version) == version_key(same)

"""Metas are kept as they were read, and never used after they changed."""

import datetime
import os
import time

import pytest
import yaml

from cm4vllm.common.errors import RecipeError
from cm4vllm.engine.format import meta_store as module
from cm4vllm.engine.format.meta_store import KeptMetas

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

"""The cache: what a script made, kept in a folder of the local repository as a CM artifact of automation `cache`.

A folder is an entry from the moment its `_cm.json` is there: that file is written last, and whole. The folder has its
final name from the beginning, because what is made in it (a Python environment, a build) holds absolute paths. A run
that is killed leaves a folder without `_cm.json`, which no search finds and which the next run of its key empties.

An entry is found by the recipe itself, what was asked for, all variations that were on, defaults included, and all
declared inputs; then by its version. A lock of that key makes a second run wait for the first and use its entry. An
entry whose files were deleted or altered since is not used again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cm4vllm.common.errors import RecipeError, translated_os_errors
from cm4vllm.common.files import write_json
from cm4vllm.engine import index
from cm4vllm.engine.fingerprint import changed, observed
from cm4vllm.engine.versions import Wanted

__all__ = ["CACHE_AUTOMATION", "Cache", "Damaged", "Entry", "Identity"]

CACHE_AUTOMATION = ("cache", "541d6f712a6b464e")
STATE_FILE = "cm-cached-state.json"
_META_FILE = "_cm.json"
_META_ASIDE = "_cm.json.aside"
_KEY = "cm4vllm_key"
# An entry's name is a UID of CM, 16 hexadecimal digits: the beginning of its key, and a number.
_UID, _STEM = 16, 12


class Identity(NamedTuple):
    """What makes two runs of a script the same, versions aside. `recipe` is the digest of what the script does."""

    script: str
    recipe: str
    variations: tuple[str, ...]
    inputs: Mapping[str, Any]
    tags: tuple[str, ...]

    def key(self) -> str:
        """Return the digest of all of it."""
        parts = [self.script, self.recipe, sorted(self.variations), dict(self.inputs), sorted(self.tags)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Entry(NamedTuple):
    """One entry. `asked` are the versions that were asked for when it was made, as in `==1.2`; `version` is its own."""

    folder: Path
    key: str
    version: str
    asked: str
    made_at: float
    tags: tuple[str, ...] = ()

    def satisfies(self, wanted: Wanted) -> bool:
        """Tell whether the entry's version fits what is wanted."""
        if not wanted or self.asked == wanted.pip_text():
            return True
        return bool(self.version) and wanted.accepts(self.version)

    def result(self) -> dict[str, Any]:
        """Return what the run gave: new_env, new_state, deps and version. Raises Damaged when parts vanished."""
        try:
            saved = json.loads((self.folder / STATE_FILE).read_bytes())
        except (OSError, ValueError):
            raise Damaged(str(self.folder / STATE_FILE)) from None
        old = saved.get("folder", "")
        if old and old != str(self.folder):
            saved = _rebased(saved, old, str(self.folder))
        if path := changed(saved.get("files", {})):
            raise Damaged(path)
        return dict(saved)


class Damaged(Exception):
    """A file of an entry is gone or altered; its text is the path."""


def _rebased(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return new + value[len(old):] if value == old or value.startswith(old + os.sep) else value
    if isinstance(value, list):
        return [_rebased(item, old, new) for item in value]
    if isinstance(value, Mapping):
        return {_rebased(key, old, new): _rebased(item, old, new) for key, item in value.items()}
    return value


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _restore(folder: Path) -> None:
    """Bring back what a renewal had set aside if no finished entry took its place; remove it otherwise."""
    old = _aside(folder)
    if (folder / _META_FILE).exists():
        _remove(old)
        return
    if old.exists():
        _remove(folder)
        old.rename(folder)
    if (folder / _META_ASIDE).exists():
        (folder / _META_ASIDE).rename(folder / _META_FILE)


class Cache:
    """The entries under `<CM home>/repos/local/cache`."""

    def __init__(self, cmind: Any) -> None:
        self._cmind = cmind
        self.root = Path(cmind.repos_path) / "repos" / "local" / "cache"
        self._held: set[str] = set()

    def find(self, identity: Identity, wanted: Wanted) -> Entry | None:
        """Return the entry to use: of several, one that was made without asking for a version, then the newest."""
        key = identity.key()
        fitting = [entry for entry in self._entries(key) if entry.satisfies(wanted)]
        return max(fitting, key=lambda entry: (not entry.asked, entry.made_at), default=None)

    def _entries(self, key: str) -> Iterator[Entry]:
        for folder in sorted(self.root.glob(f"{key[:_STEM]}*")):
            try:
                meta = json.loads((folder / _META_FILE).read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(meta, dict) and meta.get(_KEY) == key:
                yield Entry(folder, key, str(meta.get("version", "")), str(meta.get("asked_version", "")),
                            float(meta.get("made_at", 0)), tuple(meta.get("tags", ())))

    @contextmanager
    def lock(self, identity: Identity, waiting: Any) -> Iterator[None]:
        """Hold the key of `identity` alone; `waiting` is called with a sentence when another run holds it.

        Raises RecipeError when this very run holds it already: then the script depends on itself.
        """
        key = identity.key()
        if key in self._held:
            raise RecipeError("a cached script depends on itself", remedy="remove it from its own dependencies")
        locks = self.root / ".locks"
        with translated_os_errors("lock the cache in", locks):
            locks.mkdir(parents=True, exist_ok=True)
            handle = os.open(locks / key[:16], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
                waiting(f"another run (process {holder or 'unknown'}) is making the same; waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            self._held.add(key)
            yield
        finally:
            self._held.discard(key)
            os.close(handle)

    @contextmanager
    def new_folder(self, identity: Identity) -> Iterator[Path]:
        """Give the empty folder of a further entry. To be called with the lock held."""
        number = 0
        while (folder := self._folder(identity, number)).joinpath(_META_FILE).exists():
            number += 1
        with translated_os_errors("make a cache entry in", self.root):
            _remove(folder)
            folder.mkdir(parents=True)
        with self._removed_unless_finished(folder):
            yield folder

    @contextmanager
    def renewed_folder(self, entry: Entry) -> Iterator[Path]:
        """Give the folder of an entry, emptied; what was there comes back when the block fails. With the lock held."""
        folder, old = entry.folder, _aside(entry.folder)
        with translated_os_errors("renew a cache entry in", self.root):
            _remove(old)
            # Without its meta it is no artifact: nobody shall find it under the other name.
            (folder / _META_FILE).rename(folder / _META_ASIDE)
            folder.rename(old)
            folder.mkdir()
        try:
            with self._removed_unless_finished(folder):
                yield folder
        finally:
            _restore(folder)

    @contextmanager
    def _removed_unless_finished(self, folder: Path) -> Iterator[None]:
        try:
            yield
        finally:
            if not (folder / _META_FILE).exists():
                _remove(folder)

    def recover(self, identity: Identity) -> None:
        """Bring back an entry that a killed renewal had set aside. With the lock held."""
        number = 0
        while True:
            folder = self._folder(identity, number)
            _restore(folder)
            if not folder.exists():
                return
            number += 1

    def drop(self, entry: Entry) -> None:
        """Remove an entry whose parts vanished. With the lock held."""
        (entry.folder / _META_FILE).unlink(missing_ok=True)
        _remove(entry.folder)

    def finish(
        self, folder: Path, identity: Identity, *, tags: Sequence[str], script: tuple[str, str], asked: str,
        result: Mapping[str, Any], depends_on: str = "",
    ) -> None:
        """Write what the run gave, then the meta that makes the folder an entry, and tell cmind's index of it.

        `result` and `tags` must be free of secrets. `depends_on` is a path outside that the entry is of no use without.
        Raises RecipeError when the state cannot be written as JSON.
        """
        named = {value for value in (*result["new_env"].values(), depends_on)
                 if isinstance(value, str) and value.startswith("/")}
        files = observed(folder, named)
        with translated_os_errors("write a cache entry in", folder):
            _sync(folder)
        try:
            write_json(folder / STATE_FILE, {**result, "folder": str(folder), "files": files})
        except TypeError as error:
            raise RecipeError(f"{script[0]} hands back what a cache entry cannot keep", cause=str(error),
                              remedy="new_env and new_state may hold texts, numbers, lists and mappings") from error
        meta = {
            "alias": "", "uid": folder.name, "automation_alias": CACHE_AUTOMATION[0],
            "automation_uid": CACHE_AUTOMATION[1], "tags": list(dict.fromkeys(tags)),
            "associated_script_artifact": f"{script[0]},{script[1]}", "associated_script_artifact_uid": script[1],
            "version": result.get("version", ""), "asked_version": asked, "made_at": time.time(), _KEY: identity.key(),
        }
        write_json(folder / _META_FILE, meta)
        _sync_folder(folder)
        index.add(self._cmind, meta, folder)

    def _folder(self, identity: Identity, number: int) -> Path:
        return self.root / f"{identity.key()[:_STEM]}{number:0{_UID - _STEM}x}"


def _remove(folder: Path) -> None:
    import shutil  # a hit of the cache removes nothing, and need not pay for it

    shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Have the file system of `folder` on the disk: what an entry holds must not be younger than its meta."""
    import ctypes

    handle = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    except AttributeError:
        os.sync()  # no Linux
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

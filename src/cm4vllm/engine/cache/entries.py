"""The cache: what a script made, kept in a folder of the local repository as a CM artifact of automation `cache`.

A folder is an entry from the moment its `_cm.json` is there: that file is written last, and whole. The folder has its
final name from the beginning, because what is made in it (a Python environment, a build) holds absolute paths. A run
that is killed leaves a folder without `_cm.json`, which no search finds and which the next run of its key empties.

An entry is found by the recipe itself, what was asked for, all variations that were on, defaults included, and all
declared inputs; then by its version. A lock of that key makes a second run wait for the first and use its entry. An
entry whose files were deleted or altered since is not used again.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cm4vllm.common.digests import content_digest
from cm4vllm.common.errors import RecipeError, translated_os_errors
from cm4vllm.common.files import sync_folder, write_json
from cm4vllm.engine.format.meta_files import META_NAMES, json_mapping, with_texts
from cm4vllm.engine.format.script_catalogue import CACHE_AUTOMATION, add_to_index
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.versions import Wanted

STATE_FILE = "cm-cached-state.json"
_META_FILE = "_cm.json"
#: A folder that cmind does not take for an entry: locks, and entries that a renewal has set aside.
_LOCKS = ".locks"
#: Ends the name of an entry that is set aside there.
_OLD = ".old"
_KEY = "cm4vllm_key"
# An entry's name is a UID of CM, 16 hexadecimal digits: the beginning of its key, and a number.
_UID, _STEM = 16, 12


#: The least that the file of an entry's result holds.
_RESULT = {"new_env": dict, "new_state": dict, "files": dict, "folder": str}
#: An entry with more files than this is watched at its top only.
MOST_FILES = 2000

Record = list[Any]


class Entry(Value):
    """One entry, made by this engine or another, which knows neither `key` nor `asked`.

    `asked` are the versions that were asked for when it was made, as in `==1.2`; `version` is its own; `made_at` is in
    seconds since the epoch.
    """

    folder: str
    key: str
    tags: tuple[str, ...]
    script: str
    script_uid: str
    version: str
    asked: str
    made_at: float

    @classmethod
    def of(cls, folder: str, meta: Mapping[str, Any]) -> Entry:
        """Read the meta of an entry, which somebody may have altered."""
        alias, _, uid = str(meta.get("associated_script_artifact") or "").partition(",")
        try:
            made_at = float(meta.get("made_at") or os.stat(folder).st_mtime)
        except (OSError, TypeError, ValueError):  # removed or altered meanwhile
            made_at = time.time()
        tags = meta.get("tags")
        words = tuple(map(str, tags)) if isinstance(tags, list) else ()
        key, version, asked = (str(meta.get(name) or "") for name in (_KEY, "version", "asked_version"))
        return cls(folder, key, words, alias, uid, version, asked, made_at)

    def satisfies(self, wanted: Wanted) -> bool:
        """Return True if the entry's version fits what is wanted."""
        if not wanted or self.asked == wanted.pip_text():
            return True
        return bool(self.version) and wanted.accepts(self.version)

    def result(self) -> dict[str, Any]:
        """Return the result of the run: new_env, new_state, deps and version. Raises Damaged when parts vanished."""
        path = os.path.join(self.folder, STATE_FILE)
        saved = json_mapping(path)
        if saved is None or not all(isinstance(saved.get(key), kind) for key, kind in _RESULT.items()):
            raise Damaged(path)
        old = saved["folder"]
        if old and old != self.folder:
            saved = with_texts(saved, lambda text: _path_after_move(text, old, self.folder))
        if path := first_changed_file(saved["files"]):
            raise Damaged(path)
        return dict(saved)


class Damaged(Exception):
    """A file of an entry is gone or altered; its text is the path."""


def cache_root(home: str | os.PathLike[str]) -> str:
    """Return the folder of the cache in a CM home."""
    return os.path.join(home, "repos", "local", "cache")


def finished_entries(root: str, beginning: str = "") -> Iterator[Entry]:
    """Yield the finished entries in the cache's folder whose names have this beginning, in the order of their names."""
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        if name.startswith(beginning) and not name.startswith("."):
            folder = os.path.join(root, name)
            if (meta := json_mapping(os.path.join(folder, _META_FILE))) is not None:
                yield Entry.of(folder, meta)


def remove_entry(folder: str) -> None:
    """Remove an entry. Its meta is removed first: files that a kill leaves behind are then no entry."""
    import shutil

    with translated_os_errors("remove", folder):
        for path in (os.path.join(folder, name) for name in META_NAMES):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        with contextlib.suppress(FileNotFoundError):  # another process removes it too
            shutil.rmtree(folder)


def _path_after_move(path: str, old: str, new: str) -> str:
    """Return a path in `old` as it is in `new`, and any other text as it is."""
    return new + path[len(old) :] if path == old or path.startswith(old + os.sep) else path


def _is_finished(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, _META_FILE))


def _name_aside(folder: str) -> str:
    parent, name = os.path.split(folder)
    return os.path.join(parent, _LOCKS, name + _OLD)


def _restore(folder: str) -> None:
    """Bring back what a renewal had set aside if no finished entry took its place; remove it otherwise."""
    old = _name_aside(folder)
    if _is_finished(folder):
        _remove(old)
        return
    _remove(folder)
    if os.path.exists(old):
        os.rename(old, folder)


class Cache:
    """The entries under `<CM home>/repos/local/cache`."""

    def __init__(self, cmind: Any) -> None:
        self._cmind = cmind
        self.root = cache_root(cmind.repos_path)
        self._held: set[str] = set()

    def find(self, key: str, wanted: Wanted) -> Entry | None:
        """Return the entry to use: of several, one that was made without asking for a version, then the newest."""
        fitting = [
            entry for entry in finished_entries(self.root, key[:_STEM]) if entry.key == key and entry.satisfies(wanted)
        ]
        return max(fitting, key=lambda entry: (not entry.asked, entry.made_at), default=None)

    @contextmanager
    def lock(self, key: str, waiting: Any) -> Iterator[None]:
        """Hold a key alone; `waiting` is called with a sentence when another run holds it.

        Raises RecipeError when this very run holds it already: then the script depends on itself.
        """
        if key in self._held:
            raise RecipeError("a cached script depends on itself", remedy="remove it from its own dependencies")
        locks = os.path.join(self.root, _LOCKS)
        with translated_os_errors("lock the cache in", locks, "CM_REPOS"):
            os.makedirs(locks, exist_ok=True)
            handle = os.open(os.path.join(locks, key[:_UID]), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
                waiting(f"another run (process {holder or 'unknown'}) is making the same cache entry; waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):  # on a full disk the holder stays unnamed
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            self._held.add(key)
            yield
        finally:
            self._held.discard(key)
            os.close(handle)

    def free_folder(self, key: str) -> str:
        """Return the folder of a further entry. To be called with the lock held."""
        stem = os.path.join(self.root, key[:_STEM])
        folders = (f"{stem}{number:0{_UID - _STEM}x}" for number in itertools.count())
        return next(folder for folder in folders if not _is_finished(folder))

    @contextmanager
    def emptied_folder(self, folder: str) -> Iterator[str]:
        """Yield the emptied folder of an entry; what was there comes back when the block fails. With the lock held."""
        with translated_os_errors("make a cache entry in", self.root, "CM_REPOS"):
            if _is_finished(folder):
                os.rename(folder, _name_aside(folder))
            _remove(folder)
            os.makedirs(folder)
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):  # the next run restores it; whatever failed first is what is reported
                _restore(folder)

    def recover(self, key: str) -> None:
        """Bring back the entries that killed renewals had set aside. With the lock held."""
        for name in os.listdir(os.path.join(self.root, _LOCKS)):
            if name.startswith(key[:_STEM]) and name.endswith(_OLD):
                _restore(os.path.join(self.root, name.removesuffix(_OLD)))

    def finish(
        self,
        folder: str,
        key: str,
        *,
        tags: Sequence[str],
        script: tuple[str, str],
        asked: str,
        result: Mapping[str, Any],
        depends_on: str = "",
    ) -> None:
        """Write the result of the run, then the meta that makes the folder an entry, and enter it into cmind's index.

        `result` and `tags` must be free of secrets. `depends_on` is a path outside that the entry is of no use without,
        or that it was made from: a file, which then must stay as it is.
        Raises RecipeError when the state cannot be written as JSON.
        """
        from pathlib import Path

        named = {
            value
            for value in (*result["new_env"].values(), depends_on)
            if isinstance(value, str) and value.startswith("/")
        }
        files = file_records(folder, named, depends_on)
        with translated_os_errors("write a cache entry in", folder, "CM_REPOS"):
            _sync(folder)
        try:
            write_json(Path(folder, STATE_FILE), {**result, "folder": folder, "files": files})
        except TypeError as error:
            raise RecipeError(
                f"{script[0]} returns a value that a cache entry cannot store",
                cause=str(error),
                remedy="new_env and new_state may hold texts, numbers, lists and mappings",
            ) from error
        versions = {"version": result.get("version", ""), "asked_version": asked}
        meta = {
            "alias": "",
            "uid": os.path.basename(folder),
            "automation_alias": CACHE_AUTOMATION[0],
            "automation_uid": CACHE_AUTOMATION[1],
            "tags": list(dict.fromkeys(tags)),
            "associated_script_artifact": f"{script[0]},{script[1]}",
            "associated_script_artifact_uid": script[1],
            **versions,
            "made_at": time.time(),
            _KEY: key,
        }
        write_json(Path(folder, _META_FILE), meta)
        sync_folder(folder)
        add_to_index(self._cmind, meta, folder)


def _remove(folder: str) -> None:
    import shutil  # a hit of the cache removes nothing, and need not pay for it

    shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: str) -> None:
    """Write the file system of `folder` to its disk: what an entry holds must not be younger than its meta."""
    import ctypes

    handle = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    except AttributeError:
        os.sync()  # no Linux
    finally:
        os.close(handle)


# --- the files of an entry --------------------------------------------------------------------------------------------


def file_records(folder: str, exported: Iterable[str], made_from: str = "") -> dict[str, Record | None]:
    """Return the files that an entry needs: path -> [size, mtime in ns, digest], or None for one that must only exist.

    Those are the files at the top of the entry and the paths that it exports; exported folders inside the entry with
    all their files. Files of Python environments and git work trees must only exist, since using them changes them;
    so must files outside of the entry. The file `made_from` must not change, wherever it lies.
    """
    exported = set(exported)
    records: dict[str, Record | None] = {}
    for path in sorted({*exported, *(os.path.join(folder, name) for name in os.listdir(folder) if _stays(name))}):
        if os.path.isfile(path) and (path == made_from or path.startswith(f"{folder}{os.sep}")):
            records[path] = _record(path)
        elif os.path.exists(path):
            records[path] = None
    for path in sorted(exported):
        if os.path.isdir(path) and f"{path}{os.sep}".startswith(f"{folder}{os.sep}"):
            records.update(_tree(path))
    return records


def _stays(name: str) -> bool:
    return not name.startswith("tmp-") and not name.endswith((".log", ".lock", ".pyc"))


def _tree(folder: str) -> dict[str, Record | None]:
    """Return the record of each file below a folder that must not change, by its path."""
    records: dict[str, Record | None] = {}
    for root, folders, files in os.walk(folder):
        if not {".git", "pyvenv.cfg"}.isdisjoint((*folders, *files)):
            folders.clear()
            continue
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        for name in files:
            path = os.path.join(root, name)
            if _stays(name) and os.path.isfile(path):
                records[path] = _record(path)
        if len(records) > MOST_FILES:
            return {}
    return records


def first_changed_file(records: Mapping[str, Record | None]) -> str:
    """Return the first path that is gone or altered; empty when all is as it was observed."""
    for path, record in records.items():
        try:
            status = os.stat(path)
            if record is None or (status.st_size == record[0] and status.st_mtime_ns == record[1]):
                continue
            if status.st_size != record[0] or content_digest(path) != record[2]:
                return path
        except (OSError, LookupError, TypeError):  # gone, unreadable, or a record that is none
            return path
    return ""


def _record(path: str) -> Record:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, content_digest(path)]

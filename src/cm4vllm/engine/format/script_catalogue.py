"""All scripts of all registered repositories: found through cmind's index, or by reading the folders.

Parsed metas are kept in the CM home: parsing YAML takes as long as everything else about a script. Each meta is a file,
in the binary form in which Python keeps bytecode; the names of all scripts are in one more file, so that an unknown tag
does not cost reading every meta. Each holds as long as size and times of the meta's files are what they were: one that
changed moments ago is not kept, for it could change once more within the clock's tick and look the same. What cannot be
read, or does not fit, counts as absent: the meta itself is read.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import locked, write_bytes
from cm4vllm.common.kept_values import KeptValues
from cm4vllm.engine.format.dependency import split_tags
from cm4vllm.engine.format.meta import ScriptMeta, load_script
from cm4vllm.engine.format.meta_files import (
    SETTLED_S,
    data_changed_at,
    data_unchanged,
    has_meta,
    json_mapping,
    read_meta,
    signature_of,
)
from cm4vllm.engine.format.meta_shapes import require_shapes
from cm4vllm.engine.format.value import Value

_FORMAT = 4  # of marshal; every Python since 3.4 reads it


class KeptMetas:
    """The metas kept in the folder `store`."""

    def __init__(self, store: str) -> None:
        self._kept = KeptValues[dict[str, Any]](store, lambda value: marshal.dumps(value, _FORMAT), marshal.loads)  # noqa: S302
        self._new: list[tuple[str, list[int], dict[str, Any]]] = []
        self._read: dict[str, tuple[list[int], dict[str, Any]]] = {}

    def read(self, folder: str) -> dict[str, Any]:
        """Return the meta of the script in `folder`. Raises RecipeError when it, or a part of it, cannot be read."""
        signature, changed_at = signature_of(folder)
        before, meta = self._read.get(folder, ([], {}))  # many recipes refer to the inputs of a few
        if signature and before == signature:
            return meta
        if (known := self._kept.get(folder, signature)) is not None and data_unchanged(known):
            self._read[folder] = signature, known
            return known
        meta = read_meta(folder)
        require_shapes(folder, meta)
        if max(changed_at, data_changed_at(meta)) < time.time() - SETTLED_S:
            self._new.append((folder, signature, meta))
            self._read[folder] = signature, meta
        return meta

    def keep(self) -> None:
        """Store the metas that were read now. If that fails, the next run reads them again."""
        new, self._new = self._new, []
        for folder, signature, meta in new:
            self._kept.put(folder, signature, meta)


_MAY_NOT_BE_KEPT = CmError, OSError, RecursionError


class Summary(Value):
    """A folder with a meta, by whose repository, and what it is called."""

    path: str
    repo: str
    automation_uid: str
    alias: str
    uid: str
    tags: tuple[str, ...]
    tags_help: str


def summaries(folders: Iterable[tuple[str, str]], store: str) -> list[Summary]:
    """Return the summaries of the folders that hold a readable meta; `folders` are paths, each with its repository.

    `store` is the file that remembers them; where it cannot be written, the next run reads the metas again.
    """
    known = json_mapping(store) or {}
    read: list[Summary] = []
    kept: dict[str, Any] = {}
    settled = time.time() - SETTLED_S
    for path, repo in folders:
        signature, changed_at = signature_of(path)
        if not signature:
            continue
        words = known[path][1:] if path in known and known[path][0] == signature else _words(path)
        if words is None:
            continue
        automation_uid, alias, uid, tags, tags_help = words
        read.append(Summary(path, repo, automation_uid, alias, uid, tuple(tags), tags_help))
        if changed_at < settled:
            kept[path] = [signature, *words]
    if kept != known:
        with contextlib.suppress(*_MAY_NOT_BE_KEPT):
            from pathlib import Path

            write_bytes(Path(store), json.dumps(kept).encode())
    return read


def _words(folder: str) -> list[Any] | None:
    """Return automation UID, alias, UID, tags and tags_help of a meta; None when it cannot be read."""
    try:
        raw = read_meta(folder)
    except _MAY_NOT_BE_KEPT:
        return None  # one broken meta must not hide the others; choosing it reports what is wrong
    tags = raw.get("tags")
    return [
        *(str(raw.get(key) or "") for key in ("automation_uid", "alias", "uid")),
        list(split_tags(tags)) if isinstance(tags, (str, list)) else [],
        str(raw.get("tags_help") or ""),
    ]


SCRIPT_AUTOMATION = ("script", "5b4e0237da074764")
_SUMMARIES = "cm4vllm-scripts.json"
_METAS = "cm4vllm-metas"
#: To sort all scripts by their tags takes as long as so many passes over all of them.
_FEW_LOOKUPS = 8


class Catalogue:
    """Scripts, each read at most once. `cmind` is the running CM, whose repositories and index are used."""

    def __init__(self, cmind: Any) -> None:
        self._cmind = cmind
        self._read: dict[str, ScriptMeta] = {}
        self._lookups = 0
        self.metas = KeptMetas(os.path.join(cmind.repos_path, _METAS))

    def with_tags(self, tags: tuple[str, ...]) -> list[ScriptMeta]:
        """Return the scripts that have all these tags; the folders are read only when the index knows none."""
        wanted = set(tags)
        indexed = [self.script(path, repo) for path, repo in self.indexed_folders(wanted)]
        return [script for script in indexed if wanted <= set(script.tags)] or [
            self.script(summary.path, summary.repo) for summary in self.summaries if wanted <= set(summary.tags)
        ]

    def scripts_named(self, name: str, repo: str = "") -> list[ScriptMeta]:
        """Return the scripts with this alias or UID, only those of `repository` (alias or UID) if it is given."""
        return [
            self.script(summary.path, summary.repo)
            for summary in self.summaries
            if name in (summary.alias, summary.uid) and (not repo or repo in self._repo_names(summary.repo))
        ]

    def indexed_folders(self, wanted: set[str]) -> list[tuple[str, str]]:
        """Return folder and repository of the scripts that have all these tags, as far as cmind's index knows."""
        self._lookups += 1
        narrowest = self._entries
        if self._lookups > _FEW_LOOKUPS:
            narrowest = min((self._by_tag.get(tag, []) for tag in wanted), key=len, default=narrowest)
        return [
            (str(entry["path"]), str((entry.get("repo") or [""])[0]))
            for entry in narrowest
            if wanted.issubset(entry.get("tags") or ()) and has_meta(entry["path"])
        ]

    @cached_property
    def summaries(self) -> list[Summary]:
        """Names of all readable scripts. Of scripts with the same UID, only the first in the order of repositories."""
        by_folder: dict[str, Summary] = {}
        for summary in summaries(self._candidates(), os.path.join(self._cmind.repos_path, _SUMMARIES)):
            if summary.automation_uid == SCRIPT_AUTOMATION[1]:
                by_folder.setdefault(summary.uid or summary.path, summary)
        return list(by_folder.values())

    def all(self) -> list[ScriptMeta]:
        """Return all readable scripts. Of scripts with the same UID, only the first in the order of repositories."""
        scripts = []
        for summary in self.summaries:
            with contextlib.suppress(CmError):  # a part has the wrong shape: choosing it reports what is wrong
                scripts.append(self.script(summary.path, summary.repo))
        return scripts

    def script(self, folder: str, repo: str) -> ScriptMeta:
        """Return the script in a folder. Raises RecipeError when its meta cannot be read."""
        if folder not in self._read:
            self._read[folder] = load_script(folder, repo, self.metas.read)
        return self._read[folder]

    @cached_property
    def _entries(self) -> list[dict[str, Any]]:
        index = getattr(self._cmind, "index", None)
        entries = (index.meta if index is not None else {}).get(SCRIPT_AUTOMATION[1], {})
        # Each script stands twice in the index; the entry under its UID is the one that has its alias.
        return [entry for entry in entries.values() if isinstance(entry, dict) and "alias" in entry and "path" in entry]

    @cached_property
    def _by_tag(self) -> dict[str, list[dict[str, Any]]]:
        """Return the entries of cmind's index by each of their tags."""
        entries: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for entry in self._entries:
            for tag in entry.get("tags") or ():
                entries[tag].append(entry)
        return entries

    def folders(self) -> Iterator[tuple[str, str]]:
        """Yield the folders of all scripts, those of one UID included, each with the alias of its repository."""
        return (folder for folder in self._candidates() if has_meta(folder[0]))

    def _candidates(self) -> Iterator[tuple[str, str]]:
        """Yield each folder that may hold a script with its repository's alias, repository by repository."""
        for repo in self._cmind.repos.lst:
            top = os.path.normpath(repo.path_with_prefix)
            for automation in (name for name in _names_in(top) if name.startswith("script")):
                folder = os.path.join(top, automation)
                for name in _names_in(folder):
                    yield os.path.join(folder, name), str(repo.meta.get("alias", ""))

    def _repo_names(self, alias: str) -> set[str]:
        return {
            alias,
            *(str(repo.meta.get("uid", "")) for repo in self._cmind.repos.lst if repo.meta.get("alias") == alias),
        }


def _names_in(folder: str) -> list[str]:
    """Return the names in a folder; none where it cannot be read, which `cm doctor script` reports."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


# --- cmind's index on disk: written whole, under a lock, and without losing what another run added meanwhile ----------
#
# cmind itself writes `index.json` in place and from memory. Whoever reads it meanwhile, or is killed writing it, would
# leave half a file, and the later of two runs would forget the entries of the earlier one.

_INDENTED = b"{\n"
_LOCAL = ("local", "9a3280b14a4285c9")
CACHE_AUTOMATION = ("cache", "541d6f712a6b464e")


def protect(cmind: Any) -> None:
    """Make a running CM save its index by this module in every case."""
    index = getattr(cmind, "index", None)
    if index is not None:
        index.save = lambda: _save(index)


def hide_unfinished_entries(cmind: Any) -> None:
    """Make a running CM find no folder without a meta: a renewal makes an entry there now, or was killed.

    cmind's own search fails as a whole where one folder of its index has none.
    """
    index = getattr(cmind, "index", None)
    if index is not None:
        index.find = lambda *asked: _with_metas(type(index).find(index, *asked))


def _with_metas(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "list": [artifact for artifact in answer.get("list", ()) if has_meta(artifact["path"])]}


def add_to_index(cmind: Any, meta: Mapping[str, Any], folder: str, repo: tuple[str, str] = _LOCAL) -> None:
    """Add an artifact of a repository with this alias and UID to the index, in memory and on disk."""
    index = getattr(cmind, "index", None)
    if index is None or not cmind.use_index:
        return
    index.add(meta, folder, repo, update=True)
    _save(index)
    index.updated = False


def slim(cmind: Any) -> None:
    """Take out the spaces that cmind writes between the parts of its index: every start reads all of it.

    Among 10,000 scripts that is a tenth of a start. Where the file cannot be written, it stays as it is.
    """
    with contextlib.suppress(OSError), open(cmind.index.full_path_to_index, "rb") as file:
        if file.read(len(_INDENTED)) == _INDENTED:
            _save(cmind.index, as_on_disk=True)


def _save(index: Any, *, as_on_disk: bool = False) -> dict[str, int]:
    """Write cmind's index to its file, joined with what other processes wrote; return cmind's answer."""
    from pathlib import Path

    path = Path(index.full_path_to_index)
    # An index that cannot be written is no failure of the run: what it does not list is searched for in the folders.
    with contextlib.suppress(CmError, OSError), locked(path.with_name(f".{path.name}.lock")):
        on_disk = json_mapping(path) or {}
        if not as_on_disk:
            _take_over(index.meta, on_disk)
        if meta := on_disk if as_on_disk else index.meta:
            write_bytes(path, json.dumps(meta, separators=(",", ":")).encode())
    return {"return": 0}


def _take_over(own: dict[str, Any], on_disk: Mapping[str, Any]) -> None:
    """Add the entries that another run made since this one read the index; those that it removed have no folder."""
    for automation in CACHE_AUTOMATION:  # the index has every automation under its UID and its alias
        known = own.setdefault(automation, {})
        for name, artifact in on_disk.get(automation, {}).items():
            if name not in known and os.path.isdir(artifact["path"]):
                known[name] = artifact

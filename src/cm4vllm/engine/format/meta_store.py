"""Store of parsed metas in the CM home: parsing YAML takes as long as everything else about a script.

Each meta is a file, in the binary form in which Python keeps bytecode; the names of all scripts are in one more file,
so that an unknown tag does not cost reading every meta. Each holds as long as size and times of the meta's files
are what they were: one that changed moments ago is not kept, for it could change once more within the clock's tick and
look the same. What cannot be read, or does not fit, counts as absent: the meta itself is read.
"""

import contextlib
import json
import marshal
import time
from collections.abc import Iterable
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_bytes
from cm4vllm.common.kept_values import KeptValues
from cm4vllm.engine.format.dependency import split_tags
from cm4vllm.engine.format.documents import json_mapping
from cm4vllm.engine.format.meta_files import SETTLED_S, data_changed_at, data_unchanged, read_meta, signature_of
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

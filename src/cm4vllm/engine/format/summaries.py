"""What all scripts are called, remembered in the CM home so that tags nobody knows do not cost reading every meta.

A summary holds as long as size and times of its meta's files are what they were. A file that changed moments ago is not
remembered: it could change once more within the clock's tick and look the same.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_bytes
from cm4vllm.engine.format.documents import SETTLED_S, read_meta, signature_of
from cm4vllm.engine.format.meta import split_tags
from cm4vllm.engine.format.value import Value

__all__ = ["Summary", "summaries"]

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
    known = _remembered(store)
    found: list[Summary] = []
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
        found.append(Summary(path, repo, automation_uid, alias, uid, tuple(tags), tags_help))
        if changed_at < settled:
            kept[path] = [signature, *words]
    if kept != known:
        with contextlib.suppress(*_MAY_NOT_BE_KEPT):
            from pathlib import Path

            write_bytes(Path(store), json.dumps(kept).encode())
    return found


def _remembered(store: str) -> dict[str, Any]:
    try:
        with open(store, "rb") as file:
            known = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _words(folder: str) -> list[Any] | None:
    """Return automation UID, alias, UID, tags and tags_help of a meta; None when it cannot be read."""
    try:
        raw = read_meta(folder)
    except _MAY_NOT_BE_KEPT:
        return None  # one broken meta must not hide the others; choosing it tells what is wrong
    tags = raw.get("tags")
    return [*(str(raw.get(key) or "") for key in ("automation_uid", "alias", "uid")),
            list(split_tags(tags)) if isinstance(tags, (str, list)) else [], str(raw.get("tags_help") or "")]

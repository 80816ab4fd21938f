"""cmind's index on disk: written whole, under a lock, and without losing what another run added meanwhile.

cmind itself writes `index.json` in place and from memory. Whoever reads it meanwhile, or is killed writing it, would
leave half a file, and the later of two runs would forget the entries of the earlier one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import locked, write_bytes
from cm4vllm.engine.format.meta_files import has_meta, json_mapping

if TYPE_CHECKING:
    from pathlib import Path


_INDENTED = b"{\n"
_LOCAL = ("local", "9a3280b14a4285c9")
CACHE_AUTOMATION = ("cache", "541d6f712a6b464e")


def protect(cmind: Any) -> None:
    """Make a running CM save its index by this module in every case."""
    index = getattr(cmind, "index", None)
    if index is not None:
        index.save = lambda: _save(index)


def hide_unfinished(cmind: Any) -> None:
    """Make a running CM find no folder without a meta: a renewal makes an entry there now, or was killed.

    cmind's own search fails as a whole where one folder of its index has none.
    """
    index = getattr(cmind, "index", None)
    if index is not None:
        index.find = lambda *asked: _with_metas(type(index).find(index, *asked))


def _with_metas(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "list": [artifact for artifact in answer.get("list", ()) if has_meta(artifact["path"])]}


def add(cmind: Any, meta: Mapping[str, Any], folder: str, repo: tuple[str, str] = _LOCAL) -> None:
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
    with contextlib.suppress(CmError, OSError):
        with open(cmind.index.full_path_to_index, "rb") as file:
            if file.read(len(_INDENTED)) != _INDENTED:
                return
        from pathlib import Path

        path = Path(cmind.index.full_path_to_index)
        with locked(_lock_of(path)):
            if meta := json_mapping(path):
                write_bytes(path, _without_indentation(meta))


def _without_indentation(meta: Any) -> bytes:
    return json.dumps(meta, separators=(",", ":")).encode()


def _save(index: Any) -> dict[str, int]:
    """Write cmind's index to its file, joined with what other processes wrote; return cmind's answer."""
    from pathlib import Path

    path = Path(index.full_path_to_index)
    # An index that cannot be written is no failure of the run: what it does not list is searched for in the folders.
    with contextlib.suppress(CmError, OSError), locked(_lock_of(path)):
        _take_over(index.meta, json_mapping(path) or {})
        write_bytes(path, _without_indentation(index.meta))
    return {"return": 0}


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _take_over(own: dict[str, Any], on_disk: Mapping[str, Any]) -> None:
    """Add the entries that another run made since this one read the index; those that it removed have no folder."""
    for automation in CACHE_AUTOMATION:  # the index has every automation under its UID and its alias
        known = own.setdefault(automation, {})
        for name, artifact in on_disk.get(automation, {}).items():
            if name not in known and os.path.isdir(artifact["path"]):
                known[name] = artifact

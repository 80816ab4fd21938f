"""What lies in the cache, as people look at it: which script made it, how large and how old it is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Stored", "age_text", "leftovers", "size_of", "stored"]


@dataclass(frozen=True, slots=True)
class Stored:
    """One finished entry of the cache, of this engine or of another; `made_at` is in seconds since the epoch."""

    folder: Path
    tags: tuple[str, ...]
    script: str
    script_uid: str
    version: str
    made_at: float

    @classmethod
    def of(cls, folder: Path, meta: dict[str, Any]) -> Stored:
        alias, _, uid = str(meta.get("associated_script_artifact") or "").partition(",")
        try:
            made_at = float(meta.get("made_at") or folder.stat().st_mtime)
        except (OSError, TypeError, ValueError):  # removed or altered meanwhile
            made_at = time.time()
        tags = meta.get("tags")
        words = tuple(map(str, tags)) if isinstance(tags, list) else ()
        return cls(folder, words, alias, uid, str(meta.get("version") or ""), made_at)


def stored(root: Path) -> Iterator[Stored]:
    """Yield the finished entries in the cache's folder, in the order of their names."""
    if not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        if folder.name.startswith("."):
            continue
        try:
            meta = json.loads((folder / "_cm.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(meta, dict):
            yield Stored.of(folder, meta)


def leftovers(root: Path) -> list[Path]:
    """Return the folders that are no entries: what killed runs left, and what runs that go on now are making."""
    if not root.is_dir():
        return []
    return sorted(folder for folder in root.iterdir() if folder.is_dir() and folder.name != ".locks"
                  and not any((folder / name).is_file() for name in ("_cm.json", "_cm.yaml")))


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder, links not followed."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # removed while we look, or not ours to read
    return total


def age_text(made_at: float) -> str:
    """Return how long ago something was made: 5 s, 12 min, 3 h, 4 days."""
    seconds = max(time.time() - made_at, 0)
    for limit, length, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds // 86400:.0f} days"

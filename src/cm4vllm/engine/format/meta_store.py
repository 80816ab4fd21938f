"""Metas as they were read before, kept in the CM home: to parse YAML takes as long as all else about a script.

Each is a file of its own, in the binary form in which Python keeps bytecode after a digest of that, and holds as long
as size and times of the meta's files are what they were. What cannot be read, or does not fit, counts as absent: the
meta itself is read.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import time
from typing import Any

from cm4vllm.engine.cache.digests import digest_of
from cm4vllm.engine.format.documents import SETTLED_S, read_meta, signature_of
from cm4vllm.engine.format.shapes import require_shapes

__all__ = ["KeptMetas"]

_FORMAT = 4  # of marshal; every Python since 3.4 reads it
_DIGEST_BYTES = 64


class KeptMetas:
    """The metas kept in the folder `store`."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._new: list[tuple[str, list[int], dict[str, Any]]] = []

    def read(self, folder: str) -> dict[str, Any]:
        """Return the meta of the script in `folder`. Raises RecipeError when nobody can read it, or a part of it."""
        signature, changed_at = signature_of(folder)
        try:
            with open(self._path(folder), "rb") as file:
                digest, data = file.read(_DIGEST_BYTES), file.read()
            if digest != _digest(data):  # marshal makes what a damaged length says, which may take all memory
                raise ValueError(folder)
            of, known, meta = marshal.loads(data)  # noqa: S302 our own file, in the user's own home
            if of == folder and known == signature:
                return dict(meta)
        except (OSError, ValueError, EOFError, TypeError):
            pass
        meta = read_meta(folder)
        require_shapes(folder, meta)
        if changed_at < time.time() - SETTLED_S:
            self._new.append((folder, signature, meta))
        return meta

    def keep(self) -> None:
        """Write down what was read anew; where that cannot be, the next run reads it again."""
        new, self._new = self._new, []
        with contextlib.suppress(OSError):
            if new:
                os.makedirs(self._store, exist_ok=True)
            for folder, signature, meta in new:
                path = self._path(folder)
                with contextlib.suppress(ValueError):  # a date, say: marshal knows none
                    data = marshal.dumps((folder, signature, meta), _FORMAT)
                    with open(f"{path}.{os.getpid()}", "wb") as file:
                        file.write(_digest(data) + data)
                    os.replace(f"{path}.{os.getpid()}", path)

    def _path(self, folder: str) -> str:
        return os.path.join(self._store, digest_of(os.fsencode(folder))[:32])


def _digest(data: bytes) -> bytes:
    return digest_of(data).encode()

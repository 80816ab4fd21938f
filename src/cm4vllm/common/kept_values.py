"""Values computed from files, kept in a folder of the user's own while these files stay as they are.

A value is kept by the name of what it was computed from, together with the state that this had: one file a name, so
that the value of another state takes its place. A file that is missing or damaged, and a value of another state, count
as absent: it is computed again. Where nothing can be written, nothing is kept. Only `os` is imported: the engine's
start waits for this.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cm4vllm.common.digests import digest_of

T = TypeVar("T")
_DIGEST_BYTES = 64


class KeptValues(Generic[T]):
    """The values kept in `folder`. `dumps` and `loads` write and read (name, state, value)."""

    def __init__(
        self, folder: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], tuple[str, Any, T]]
    ) -> None:
        self._folder, self._dumps, self._loads = folder, dumps, loads

    def get(self, name: str, state: object) -> T | None:
        """Return the kept value of `name` for this state; None if nothing is kept."""
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
            with open(self._path(name), "rb") as file:
                digest, data = file.read(_DIGEST_BYTES), file.read()
            if digest == digest_of(data).encode():  # marshal takes all memory for a length that is damaged
                of, known, value = self._loads(data)
                if of == name and known == state:
                    return value
        return None

    def put(self, name: str, state: object, value: T) -> None:
        """Keep a value, in the place of the one that was kept of the same name."""
        path = self._path(name)
        with contextlib.suppress(OSError, ValueError):
            data = self._dumps((name, state, value))
            os.makedirs(self._folder, exist_ok=True)
            with open(f"{path}.{os.getpid()}", "wb") as file:
                file.write(digest_of(data).encode() + data)
            os.replace(f"{path}.{os.getpid()}", path)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, digest_of(os.fsencode(name))[:32])

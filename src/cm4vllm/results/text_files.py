"""The text files of a submission: pages and records that are published, and the programs beside them."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cm4vllm.common.files import beginning_of

#: The bytes of a file that are read: all of nearly every program, and the beginning of a long log.
LARGEST_TEXT = 2**18
#: A file with a zero byte among its first ones is no text.
_FIRST = 2**13
#: Texts that a submitter writes or a script collects.
_SUFFIXES = frozenset({".md", ".json", ".conf", ".txt", ".yaml", ".yml", ".out", ".sh", ".log", ".csv", ".html"})
_PARTS = frozenset({"measurements", "results", "systems", "documentation"})


@dataclass(frozen=True)
class TextFile:
    """A file and its first bytes. `stated` says whether it belongs to what was measured or stated, not to a program."""

    path: str
    content: bytes
    stated: bool


@dataclass
class TextFiles:
    """The texts below a submitter's folder, in a fixed order, without LoadGen's logs and without what links point to.

    While they are read, `binary` collects the files that are no text, `cut` those of which only the beginning was read,
    `unreadable` those that could not be opened. Paths are texts: of tens of thousands, objects would take seconds.
    """

    home: Path
    binary: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[TextFile]:
        for folder, folders, names in os.walk(self.home):
            folders.sort()
            below = os.path.relpath(folder, self.home)
            part = "" if below == "." else below.partition(os.sep)[0]
            for name in sorted(names):
                if name.startswith("mlperf_log_"):
                    continue
                path = f"{folder}{os.sep}{name}"
                content = self._content(path)
                if content is not None:
                    yield TextFile(
                        path, content, f".{name.rpartition('.')[2]}" in _SUFFIXES and (not part or part in _PARTS)
                    )

    def _content(self, path: str) -> bytes | None:
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return None  # a link or a pipe
            content = beginning_of(Path(path), LARGEST_TEXT + 1)
        except OSError:
            self.unreadable.append(path)
            return None
        if b"\0" in content[:_FIRST]:
            self.binary.append(path)
            return None
        if len(content) > LARGEST_TEXT:
            self.cut.append(path)
        return content[:LARGEST_TEXT]

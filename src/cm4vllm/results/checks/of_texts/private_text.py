"""Names of machines and people, addresses and credentials in the texts of a written tree, and in its programs.

The submitter and the machine of the tree are not known here: only texts of the form of such names are found.
What cm4vllm publishes itself is also checked for the names of this machine (submission/privacy_check.py).
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.checking.private_text import FORMS, Private, found_in
from cm4vllm.common.files import beginning_of
from cm4vllm.results.model import Submission
from cm4vllm.results.submitted_names import is_a_person, is_a_placeholder

#: The bytes of a file that are read: all of nearly every program, and the beginning of a long log.
LARGEST_TEXT = 2**18
#: A file with a zero byte among its first ones is no text.
_FIRST = 2**13
#: Texts that a submitter writes or a script collects.
_SUFFIXES = frozenset({".md", ".json", ".conf", ".txt", ".yaml", ".yml", ".out", ".sh", ".log", ".csv", ".html"})
_PARTS = frozenset({"measurements", "results", "systems", "documentation"})
_SOURCE = "docs/machine.md"
_REMOVE = "take it out of the file, and withdraw a credential that was published"
#: The number of unread files that are named.
_NAMED = 3
_OF_PROGRAMS = tuple(form for form in FORMS if form.in_programs)
#: The findings in texts that were searched before, by length and hash: partners publish the same programs many times.
_known: dict[tuple[int, int, int], tuple[tuple[Private, str], ...]] = {}


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
                content = self.text_at(path)
                if content is not None:
                    yield TextFile(
                        path, content, f".{name.rpartition('.')[2]}" in _SUFFIXES and (not part or part in _PARTS)
                    )

    def text_at(self, path: str) -> bytes | None:
        """Return the first bytes of a text; None for a link, a folder, or a file that is no text."""
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


@check("PRIVATE-TEXT", source=_SOURCE, remedy=_REMOVE, severity=Severity.WARNING, stage=Stage.TREE, each=whole)
def private(submission: Submission) -> Iterator[Fault]:
    """Nothing published names a person, a machine or an address, and nothing is a credential."""
    files = TextFiles(submission.home)
    in_programs: dict[tuple[Private, str], list[str]] = {}
    for file in files:
        for form, word in _private_words_in(file.content, FORMS if file.stated else _OF_PROGRAMS):
            if not form.is_secret and not is_a_person(word, submission.submitter):
                continue
            if file.stated:
                yield _fault(submission, form, word, [file.path])
            else:
                in_programs.setdefault((form, word), []).append(file.path)
    yield from (_fault(submission, form, word, paths) for (form, word), paths in in_programs.items())
    yield from _not_read(submission, files)


def _private_words_in(content: bytes, forms: tuple[Private, ...]) -> tuple[tuple[Private, str], ...]:
    """Return the private words of a text, without those that only show where a secret belongs."""
    key = len(forms), len(content), hash(content)
    if (known := _known.get(key)) is not None:
        return known
    words = found_in(content.decode(errors="replace"), forms)
    return _known.setdefault(
        key, tuple(pair for pair in words if not (pair[0].is_secret and is_a_placeholder(pair[1])))
    )


def _fault(submission: Submission, form: Private, word: str, paths: list[str]) -> Fault:
    return Fault(
        form.kind if len(paths) == 1 else f"{form.kind}, in {len(paths)} files of programs",
        os.path.relpath(paths[0], submission.root),
        "",
        f"{len(word)} characters, not shown" if form.is_secret else word,
        "nothing",
        severity=form.severity,
    )


def _not_read(submission: Submission, files: TextFiles) -> Iterator[Fault]:
    """Yield the files that were not searched, or not to their end."""
    place = submission.place
    for paths, fault in (
        (files.binary, "binary files were not searched for private text"),
        (files.cut, f"only the first {LARGEST_TEXT // 2**10} KiB of large texts were searched for private text"),
        (files.unreadable, "files could not be opened, and were not searched for private text"),
    ):
        if paths:
            names = [os.path.relpath(path, submission.home) for path in paths[:_NAMED]]
            more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
            yield Fault(
                fault,
                place,
                "",
                f"{len(paths)}: {', '.join(names)}{more}",
                severity=Severity.NOTE,
                remedy="search them by other means",
            )

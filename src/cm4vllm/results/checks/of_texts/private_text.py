"""Names of machines and people, addresses and credentials in the texts of a written tree, and in its programs.

The submitter and the machine of the tree are not known here: only texts of the form of such names are found.
What cm4vllm publishes itself is also checked for the names of this machine (submission/privacy_check.py).
"""

import os
from collections.abc import Iterator

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.checking.private_text import FORMS, Private, found_in
from cm4vllm.results.model import Submission
from cm4vllm.results.submitted_names import is_a_person, is_a_placeholder
from cm4vllm.results.text_files import LARGEST_TEXT, TextFiles

_SOURCE = "docs/machine.md"
_REMOVE = "take it out of the file, and withdraw a credential that was published"
#: The number of unread files that are named.
_NAMED = 3
_OF_PROGRAMS = tuple(form for form in FORMS if form.in_programs)


@check("PRIVATE-TEXT", source=_SOURCE, remedy=_REMOVE, severity=Severity.WARNING, stage=Stage.TREE, each=whole)
def private(submission: Submission) -> Iterator[Fault]:
    """Nothing published names a person, a machine or an address, and nothing is a credential."""
    files = TextFiles(submission.home)
    in_programs: dict[tuple[Private, str], list[str]] = {}
    for file in files:
        for form, word in _searched(file.content, FORMS if file.stated else _OF_PROGRAMS):
            if not form.is_secret and not is_a_person(word, submission.submitter):
                continue
            if file.stated:
                yield _fault(submission, form, word, [file.path])
            else:
                in_programs.setdefault((form, word), []).append(file.path)
    for (form, word), paths in in_programs.items():
        yield _fault(submission, form, word, paths)
    yield from _not_read(submission, files)


#: The findings in texts that were searched before, by length and hash: partners publish the same programs many times.
_known: dict[tuple[int, int, int], tuple[tuple[Private, str], ...]] = {}


def _searched(content: bytes, forms: tuple[Private, ...]) -> tuple[tuple[Private, str], ...]:
    """Return the private words of a text, without those that only show where a secret belongs."""
    key = len(forms), len(content), hash(content)
    if (known := _known.get(key)) is not None:
        return known
    words = found_in(content.decode(errors="replace"), forms)
    return _known.setdefault(
        key, tuple(pair for pair in words if not (pair[0].is_secret and is_a_placeholder(pair[1])))
    )


def _fault(submission: Submission, form: Private, word: str, paths: list[str]) -> Fault:
    shown = f"{len(word)} characters, not shown" if form.is_secret else word
    return Fault(
        form.kind if len(paths) == 1 else f"{form.kind}, in {len(paths)} files of programs",
        os.path.relpath(paths[0], submission.root),
        "",
        shown,
        "nothing",
        severity=form.severity,
    )


def _not_read(submission: Submission, files: TextFiles) -> Iterator[Fault]:
    """Yield the files that were not searched, or not to their end."""
    place = f"{submission.division}/{submission.submitter}"
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

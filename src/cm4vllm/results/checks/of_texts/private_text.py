"""Names of machines and people, addresses and credentials in the texts of a written tree, and in its programs.

The submitter and the machine of the tree are not known here: only texts of the form of such names are found.
What cm4vllm publishes itself is also checked for the names of this machine (submission/privacy.py).
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.secrets.secret_forms import keys_in
from cm4vllm.results.model import Submission
from cm4vllm.results.submitted_names import is_a_person, is_a_placeholder
from cm4vllm.results.text_files import LARGEST_TEXT, TextFiles

__all__: list[str] = []

_SOURCE = "docs/machine.md"
_REMOVE = "take it out of the file, and withdraw a credential that was published"
#: The number of unread files that are named.
_NAMED = 3


@dataclass(frozen=True)
class _Form:
    """A kind of private text, how it is found in the bytes of a text, and how bad it is.

    What is `secret` is not shown. A form that is found in a program names an account or is secret: addresses and the
    names of machines there are mostly examples.
    """

    what: str
    found_in: Callable[[bytes], Iterator[bytes]]
    severity: Severity = Severity.WARNING
    secret: bool = False
    in_programs: bool = False


def _matches(pattern: bytes, *signs: bytes) -> Callable[[bytes], Iterator[bytes]]:
    """Return a function that gives group 1 of each match of a pattern in a text that holds one of the signs."""
    compiled = re.compile(pattern, re.MULTILINE)

    def found_in(content: bytes) -> Iterator[bytes]:
        if any(sign in content for sign in signs):
            yield from (match[1] for match in compiled.finditer(content))

    return found_in


def _keys(content: bytes) -> Iterator[bytes]:
    """Yield keys of services, and private keys that hold more than the words around them."""
    for key in keys_in(content):
        if not key.startswith(b"-----") or len(key) > 200:
            yield key


_ADDRESS, _HOME = "the address of a machine", "the home folder of a person"
_FORMS = (
    _Form("a credential", _keys, Severity.ERROR, secret=True, in_programs=True),
    _Form(
        "a password in an address",
        _matches(rb"://[^\s/:@'\"<>{}$\[\]]{1,40}:([^\s/@'\"<>{}$*]{4,80})@[\w.-]", b"://"),
        Severity.ERROR,
        secret=True,
        in_programs=True,
    ),
    _Form(
        _HOME,
        _matches(
            rb"(?<![\w.$}-])/(?:home|Users|users)/([A-Za-z][\w.-]*)(?=[/\s\"',:]|$)", b"/home/", b"/Users/", b"/users/"
        ),
        in_programs=True,
    ),
    _Form(
        "the folder of a person in a shared file system",
        _matches(
            rb"(?<![\w.])/(?:lustre|gpfs|beegfs|fsx)/(?:[\w.-]+/)*?(?:users?/|(?<=/fsw/)[\w.-]+/|(?<=/share/)[\w.-]+/)"
            rb"([a-z][\w.-]*)(?=[/\s\"',:]|$)",
            b"/lustre/",
            b"/gpfs/",
            b"/beegfs/",
            b"/fsx/",
        ),
        in_programs=True,
    ),
    _Form("the name of a machine", _matches(rb'"CM_HOST_SYSTEM_NAME": "([^"]+)"', b"CM_HOST_SYSTEM_NAME")),
    _Form("the name of a machine", _matches(rb"^Linux (\S+) \d+\.\d+\.\d+\S* #", b"Linux ")),
    _Form(
        "user and machine of a shell",
        _matches(rb"^(?:\([\w.-]{1,40}\)\s?)?([a-z][\w-]{0,40}@[\w-]{1,64}):[~/][^\n$#]{0,80}[$#] ", b"@"),
    ),
    _Form(
        _ADDRESS,
        _matches(
            rb"(?<![\w.=:-])(192\.168\.\d{1,3}\.\d{1,3}|172\.(?:1[6-9]|2\d|3[01])\.\d{1,3}\.\d{1,3})(?![\w.])",
            b"192.168.",
            b"172.",
        ),
    ),
    _Form(
        _ADDRESS,
        _matches(
            rb"(?:://|@|inet |-h )((?!127\.|0\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b(?!\.\d)",
            b"://",
            b"@",
            b"inet ",
            b"-h ",
        ),
    ),
)
_OF_PROGRAMS = tuple(form for form in _FORMS if form.in_programs)


@check("PRIVATE-TEXT", source=_SOURCE, remedy=_REMOVE, severity=Severity.WARNING, stage=Stage.TREE, each=whole)
def private(submission: Submission) -> Iterator[Fault]:
    """Nothing published names a person, a machine or an address, and nothing is a credential."""
    files = TextFiles(submission.home)
    in_programs: dict[tuple[_Form, str], list[str]] = {}
    for file in files:
        forms = _FORMS if file.stated else _OF_PROGRAMS
        for form, word in _searched(file.content, forms):
            if not form.secret and not is_a_person(word, submission.submitter):
                continue
            if file.stated:
                yield _fault(submission, form, word, [file.path])
            else:
                in_programs.setdefault((form, word), []).append(file.path)
    for (form, word), paths in in_programs.items():
        yield _fault(submission, form, word, paths)
    yield from _not_read(submission, files)


#: The findings in texts that were searched before, by length and hash: partners publish the same programs many times.
_known: dict[tuple[int, int, int], tuple[tuple[_Form, str], ...]] = {}


def _searched(content: bytes, forms: tuple[_Form, ...]) -> tuple[tuple[_Form, str], ...]:
    """Return the private words of a text, by form and in the order of the alphabet."""
    key = len(forms), len(content), hash(content)
    if (known := _known.get(key)) is not None:
        return known
    words = []
    for form in forms:
        for word in sorted({word.decode(errors="replace") for word in form.found_in(content)}):
            if not (form.secret and is_a_placeholder(word)):
                words.append((form, word))
    return _known.setdefault(key, tuple(words))


def _fault(submission: Submission, form: _Form, word: str, paths: list[str]) -> Fault:
    shown = f"{len(word)} characters, not shown" if form.secret else word
    fault = form.what if len(paths) == 1 else f"{form.what}, in {len(paths)} files of programs"
    return Fault(fault, os.path.relpath(paths[0], submission.root), "", shown, "nothing", severity=form.severity)


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

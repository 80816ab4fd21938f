"""Names of machines and people, addresses and credentials in the texts of a written tree.

Whose tree it is and on which machine it was made is not known here: only what has the form of such a name is found.
What cm4vllm publishes itself is also checked for the names of this machine (submission/privacy.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.results.checks.check import Fault, Stage, check
from cm4vllm.results.findings import Severity
from cm4vllm.results.model import Submission

__all__: list[str] = []

_SOURCE = "docs/machine.md"
_REMOVE = "take it out of the file, and withdraw a credential that was published"
#: Texts that a submitter writes or a script collects; logs and programs are left out.
_SUFFIXES = frozenset({".md", ".json", ".conf", ".txt", ".yaml", ".yml", ".out", ".sh", ".log", ".csv", ".html"})
_PARTS = ("measurements", "results", "systems", "documentation")
_MAX_TEXT = 2**18
_NO_NAMES = frozenset(
    {
        "user",
        "username",
        "ubuntu",
        "root",
        "runner",
        "me",
        "you",
        "name",
        "cmuser",
        "mlcuser",
        "docker",
        "localhost",
        "mlperf_inf_dlrmv2",
        "work",
        "workspace",
        "mlperf",
        "your_user",
        "yourname",
        "admin",
        "shared",
        "data",
    }
)


@dataclass(frozen=True)
class _Form:
    """A kind of private text: what any such text holds, its pattern, whose group 1 is the name, and how bad it is.

    A text that holds none of `signs` is not searched. What is `secret` is not shown.
    """

    what: str
    signs: tuple[bytes, ...]
    pattern: re.Pattern[str]
    severity: Severity = Severity.WARNING
    secret: bool = False


_ADDRESS = "the address of a machine"
_FORMS = (
    _Form(
        "a credential",
        (b"hf_", b"gh", b"AKIA", b"sk-", b"nvapi-", b"PRIVATE KEY"),
        re.compile(
            r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|AKIA[0-9A-Z]{16}|sk-[A-Za-z0-9]{40,}|"
            r"nvapi-[\w-]{40,})|(-----BEGIN (?:RSA |EC |OPENSSH )?PRIVATE KEY-----)"
        ),
        Severity.ERROR,
        secret=True,
    ),
    _Form(
        "a password in an address",
        (b"://",),
        re.compile(r"://[^\s/:@'\"<>{}$\[\]]{1,40}:([^\s/@'\"<>{}$*]{4,80})@[\w.-]"),
        Severity.ERROR,
        secret=True,
    ),
    _Form(
        "the home folder of a person",
        (b"/home/", b"/Users/"),
        re.compile(r"(?<![\w.])/(?:home|Users)/([A-Za-z][\w.-]*)(?=[/\s\"',:]|$)"),
    ),
    _Form("the name of a machine", (b"CM_HOST_SYSTEM_NAME",), re.compile(r'"CM_HOST_SYSTEM_NAME": "([^"]+)"')),
    _Form("the name of a machine", (b"Linux ",), re.compile(r"^Linux (\S+) \d+\.\d+\.\d+\S* #", re.MULTILINE)),
    _Form(
        "user and machine of a shell",
        (b"@",),
        re.compile(r"^(?:\([\w.-]{1,40}\)\s?)?([a-z][\w-]{0,40}@[\w-]{1,64}):[~/][^\n$#]{0,80}[$#] ", re.MULTILINE),
    ),
    _Form(
        _ADDRESS,
        (b"192.168.", b"172."),
        re.compile(r"(?<![\w.=:-])(192\.168\.\d{1,3}\.\d{1,3}|172\.(?:1[6-9]|2\d|3[01])\.\d{1,3}\.\d{1,3})(?![\w.])"),
    ),
    _Form(
        _ADDRESS,
        (b"://", b"@", b"inet ", b"-h "),
        re.compile(r"(?:://|@|inet |-h )((?!127\.|0\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b(?!\.\d)"),
    ),
)


@check(
    "PRIVATE-TEXT",
    "nothing published names a person, a machine or an address, and nothing is a credential",
    source=_SOURCE,
    remedy=_REMOVE,
    severity=Severity.WARNING,
    stage=Stage.TREE,
)
def private(submission: Submission) -> Iterator[Fault]:
    for path in _texts(submission.home):
        with path.open("rb") as file:
            content = file.read(_MAX_TEXT)
        forms = [form for form in _FORMS if any(sign in content for sign in form.signs)]
        text = content.decode(errors="replace") if forms else ""
        name = path.relative_to(submission.root).as_posix()
        for form in forms:
            found = {next(filter(None, match.groups())) for match in form.pattern.finditer(text)}
            for word in sorted(one for one in found if one.lower() not in _NO_NAMES):
                shown = f"{len(word)} characters, not shown" if form.secret else word
                yield Fault(form.what, name, "", shown, "nothing", severity=form.severity)


def _texts(home: Path) -> Iterator[Path]:
    yield from (path for path in sorted(home.iterdir()) if path.is_file() and path.suffix in _SUFFIXES)
    for part in _PARTS:
        for folder, _, files in os.walk(home / part):
            for name in sorted(files):
                path = Path(folder, name)
                if path.suffix in _SUFFIXES and not name.startswith("mlperf_log_") and path.is_file():
                    yield path

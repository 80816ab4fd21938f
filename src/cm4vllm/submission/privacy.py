"""What may not be published: the names of this machine and of its user, its addresses, its serial numbers.

Two measures. A text that we word ourselves (README, page, command line) is scrubbed: the home folder becomes `~`, what
else is private a marker such as [host]. What is evidence or the user's own statement (logs, user.conf, scores, the
system description) is never changed: a private word in it refuses the whole tree, naming file and line.

A name that is also a common word is searched for only where it can be nothing but a name: a user called `max` or a host
called `vllm` would else refuse every tree. Common is a word of less than three letters or of this program's own text.
"""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from cm4vllm.common.errors import SubmissionError
from cm4vllm.hardware.kernel_files import text
from cm4vllm.submission.sources import program_files

__all__ = ["PrivateWord", "first_private", "private_words", "refuse_private", "scrubbed"]

_NO_NAMES = frozenset({"localhost", "localhost.localdomain", "(none)", "none", "not specified", "default string",
                       "to be filled by o.e.m.", "system serial number", "chassis serial number", "0", ""})


@dataclass(frozen=True)
class PrivateWord:
    """One word of one kind: home folder, user, host, address, serial; `pattern` matches it where it may not stand."""

    kind: str
    word: str
    pattern: re.Pattern[str]

    @property
    def names_somebody(self) -> bool:
        """Say whether it may not be published at all: /root is scrubbed from our texts, yet is everybody's."""
        return self.word != "/root"

    @property
    def marker(self) -> str:
        return "~" if self.kind == "home folder" else f"[{self.kind}]"


def private_words(root: Path = Path("/"), environ: Mapping[str, str] | None = None,
                  servers: Collection[str] = (), serials: Collection[str] = ()) -> list[PrivateWord]:
    """Return the private words of this machine, the longest first, so that a folder goes before a name in it.

    `servers` are host names and addresses of servers elsewhere, `serials` what else tells one device from all others.
    """
    env = os.environ if environ is None else environ
    homes = {home.rstrip("/") for home in (env.get("HOME", ""), str(Path.home()))}
    found = [PrivateWord("home folder", home, re.compile(rf"{re.escape(home)}(?![\w-])"))
             for home in homes - {""}]
    found += [word for name in _user_names(env) for word in _name("user", name)]
    found += [word for name in _host_names(root) for word in _name("host", name)]
    found += [PrivateWord("address", one, _standing(one)) for one in _addresses()]
    found += [PrivateWord("serial", one, _standing(one)) for one in {*_serials(root), *serials} if len(one) > 3]
    for server in servers:
        is_address = bool(re.fullmatch(r"[\d.]+|.*:.*", server))
        if not _is_local(server):
            found += [PrivateWord("server", server, _standing(server))] if is_address else _name("server", server)
    return sorted(found, key=lambda one: (-len(one.word), one.kind))


def scrubbed(content: str, words: Iterable[PrivateWord]) -> str:
    """Return a text of ours with a marker in the place of each private word."""
    for one in words:
        content = one.pattern.sub(one.marker, content)
    return content


def refuse_private(folder: Path, words: Collection[PrivateWord]) -> None:
    """Raise SubmissionError where a file below `folder`, or the name of one, holds a private word."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if found := first_private(str(inside), words):
            _refuse(f"the name of {inside}", found)
        if path.is_file():
            with path.open(errors="replace") as file:
                for number, line in enumerate(file, 1):
                    if found := first_private(line, words):
                        _refuse(f"{inside}, line {number},", found)


def _refuse(where: str, found: PrivateWord) -> None:
    raise SubmissionError(
        f"no submission: {where} names this machine's {found.kind}", cause=f"{found.word!r} would be published",
        remedy="take it out of what the file is made from (system file, --hw_name, folders, user.conf); logs are made "
               "anew with --rerun",
    )


def first_private(line: str, words: Collection[PrivateWord]) -> PrivateWord | None:
    """Return a private word that stands in a line; None where none does."""
    lower = line.lower()
    return next((one for one in words if one.names_somebody and one.word.lower() in lower and one.pattern.search(line)),
                None)


def _standing(word: str) -> re.Pattern[str]:
    """Return a pattern for a word that is no part of a longer one."""
    return re.compile(rf"(?<![^\W_])(?<!\d\.){re.escape(word)}(?![^\W_]|\.\d)", re.IGNORECASE)


def _name(kind: str, name: str) -> list[PrivateWord]:
    """Return a name as it may not stand: anywhere, or for a common word only as a folder of a user, or before an @."""
    if not _is_common(name):
        return [PrivateWord(kind, name, _standing(name))]
    if kind != "user":
        return []
    quoted = re.escape(name)
    as_name = rf"(?<=/home/){quoted}(?!\w)|(?<=/Users/){quoted}(?!\w)|\b{quoted}(?=@\w)"
    return [PrivateWord(kind, name, re.compile(as_name))]


def _is_common(name: str) -> bool:
    parts = re.findall(r"[^\W_]+", name.lower())
    return "." not in name and all(len(part) < 3 or part in _vocabulary() for part in parts)


@cache
def _vocabulary() -> frozenset[str]:
    return frozenset(word for content in program_files().values() for word in re.findall(r"[^\W_]+", content.lower()))


def _user_names(env: Mapping[str, str]) -> set[str]:
    names = {env.get(key, "") for key in ("USER", "LOGNAME", "SUDO_USER")}
    with suppress(KeyError, OSError):  # a number without a name, as in many containers
        names.add(getpass.getuser())
    return names - {"root", ""}


def _host_names(root: Path) -> set[str]:
    names = {text(root / "proc/sys/kernel/hostname"), text(root / "etc/hostname")}
    names |= {name.partition(".")[0] for name in names}
    return {name for name in names if name.lower() not in _NO_NAMES}


def _addresses() -> set[str]:
    found = {address.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for address in addresses}
    return {one for one in found if not _is_local(one) and set(one) - set("0:")}


def _is_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in _NO_NAMES
    return address.is_loopback or address.is_unspecified


def _serials(root: Path) -> set[str]:
    dmi = root / "sys/class/dmi/id"
    files = [dmi / name for name in ("product_serial", "product_uuid", "board_serial", "chassis_serial",
                                     "product_asset_tag", "chassis_asset_tag")]
    disks = root / "sys/block"
    files += [root / "etc/machine-id", *disks.glob("*/device/serial"), *disks.glob("*/serial"), *disks.glob("*/wwid")]
    return {serial for path in files if (serial := text(path)) and serial.lower() not in _NO_NAMES}

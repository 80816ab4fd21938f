"""Private words, which may not be published: names of this machine and its user, addresses, serial numbers, secrets.

Two measures. A text that we word ourselves (README, page, command line) is scrubbed: the home folder becomes `~`, what
else is private a marker such as [host]. What is evidence or the user's own statement (logs, user.conf, scores, the
system description) is never changed: a private word in it refuses the whole tree, naming file and line.

A name that is also a common word is searched for only where it can only be a name: a user called `max` or a host
called `vllm` would else refuse every tree. Common is a word of less than three letters or of this program's own text.
The program's files are published as they are: the content of its repository names no person on this machine.
"""

import getpass
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from cm4vllm.common.files import text_of
from cm4vllm.common.host_addresses import address_spellings, is_address, is_loopback
from cm4vllm.common.kernel_files import matching, text
from cm4vllm.common.programs.own_program import program_files
from cm4vllm.common.secrets.redaction import Vault, vault
from cm4vllm.common.secrets.secret_forms import HIDDEN

_NO_NAMES = frozenset(
    {
        "localhost",
        "localhost.localdomain",
        "(none)",
        "none",
        "not specified",
        "default string",
        "to be filled by o.e.m.",
        "system serial number",
        "chassis serial number",
        "0",
        "",
    }
)
#: Where the hub's client keeps what a login gave it.
_HUB_LOGIN = ".cache/huggingface/token"


@dataclass(frozen=True)
class PrivateWord:
    """One word of one kind: home folder, folder, user, host, address, serial, server, secret.

    `pattern` matches it where it may not stand. `name` is what a secret is called, which is all that is said of it.
    """

    kind: str
    word: str
    pattern: re.Pattern[str]
    name: str = ""

    @property
    def marker(self) -> str:
        """Return the text that stands in place of the word."""
        return {"home folder": "~", "secret": HIDDEN}.get(self.kind, f"[{self.kind}]")

    @property
    def shown(self) -> str:
        """The word for an error message, or its kind alone for a secret."""
        return f"the value of {self.name}" if self.kind == "secret" else repr(self.word)


def private_words(
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    *,
    servers: Collection[str] = (),
    serials: Collection[str] = (),
    folders: Collection[str] = (),
) -> list[PrivateWord]:
    """Return the private words of this machine, the longest first, so that a folder goes before a name in it.

    `servers` are host names and addresses of servers elsewhere, `serials` what else tells one device from all others,
    `folders` those of the results and of CM; one that others may well have too, such as /data, belongs to no person.
    The secrets are those of the run under way and of `environ`.
    """
    env = os.environ if environ is None else environ
    homes = {home.rstrip("/") for home in (env.get("HOME", ""), str(Path.home()))} - {""}
    others = {folder.rstrip("/") for folder in folders} - homes
    words = [
        *(PrivateWord("home folder", home, re.compile(rf"{re.escape(home)}(?![\w-])")) for home in homes),
        *(
            PrivateWord("folder", folder, re.compile(rf"{re.escape(folder)}(?![\w-])"))
            for folder in others
            if folder.count("/") > 2
        ),
        *(word for name in _user_names(env) for word in _name("user", name)),
        *(word for name in _host_names(root) for word in _name("host", name)),
        *(word for address in _addresses() for word in _address("address", address)),
        *(PrivateWord("serial", word, _standing(word)) for word in {*_serials(root), *serials} if len(word) > 3),
        *(word for server in servers if not is_loopback(server) for word in _server(server)),
        *_secrets(env, homes),
    ]
    return sorted(dict.fromkeys(words), key=lambda private_word: (-len(private_word.word), private_word.kind))


def scrub(content: str, words: Iterable[PrivateWord]) -> str:
    """Return a text with a marker in place of each private word, and without words that have the form of a secret."""
    for word in words:
        content = word.pattern.sub(word.marker, content)
    return vault().clean(content)


def first_private(line: str, words: Collection[PrivateWord]) -> PrivateWord | None:
    """Return a private word that stands in a line; None where none does. /root names no person."""
    lower, suspects = line.lower(), (word for word in words if word.word != "/root")
    return next((word for word in suspects if word.word.lower() in lower and word.pattern.search(line)), None)


def _standing(word: str, after: str = "") -> re.Pattern[str]:
    """Return a pattern for a word that is not part of a longer one; `after` is a pattern of the text behind it."""
    return re.compile(rf"(?<![^\W_])(?<!\d\.){re.escape(word)}{after}(?![^\W_]|\.\d)", re.IGNORECASE)


def _address(kind: str, address: str) -> list[PrivateWord]:
    return [PrivateWord(kind, spelled, _standing(spelled)) for spelled in address_spellings(address)]


def _server(server: str) -> list[PrivateWord]:
    """Return the words of a server elsewhere: its address, or its name with and without its domain."""
    if is_address(server):
        return _address("server", server)
    return [word for name in {server, server.partition(".")[0]} for word in _name("server", name)]


def _name(kind: str, name: str) -> list[PrivateWord]:
    """Return a name as it may not stand: anywhere, or for a common word only where nothing else can be meant."""
    quoted = re.escape(name)
    if not _is_common(name):
        # With its domain: what follows a host's short name belongs to it.
        domain = "" if kind == "user" or "." in name else r"(?:\.[a-z][a-z0-9-]*)*"
        return [PrivateWord(kind, name, _standing(name, domain))]
    if kind == "user":
        as_name = rf"(?<=/home/){quoted}(?!\w)|(?<=/Users/){quoted}(?!\w)|\b{quoted}(?=@\w)"
    else:
        as_name = (
            rf"(?<=[\w\]]@){quoted}(?![\w-])|(?<=://){quoted}(?=[:/?#\s\"']|$)|(?<![\w.-]){quoted}(?=:\d{{4,5}}\b)"
        )
        as_name += rf"|(?<=Linux ){quoted}(?= \d)|(?<=hostname[=: ]){quoted}(?![\w-])"
    return [PrivateWord(kind, name, re.compile(as_name))]


def _is_common(name: str) -> bool:
    parts = re.findall(r"[^\W_]+", name.lower())
    return "." not in name and all(len(part) < 3 or part in _vocabulary() for part in parts)


@cache
def _vocabulary() -> frozenset[str]:
    """Return the words of the program's public text without its tests, which are full of made-up names.

    An archive of the repository has no list of what is public, and all of its text counts.
    """
    files = program_files()
    public = [file for file in files if file.published] or files
    texts = (text_of(file.path) for file in public if not file.name.startswith("tests/"))
    return frozenset(word for content in texts for word in re.findall(r"[^\W_]+", content.lower()))


def _secrets(env: Mapping[str, str], homes: Collection[str]) -> list[PrivateWord]:
    """Return the secrets of the run, of an environment, and of a login to the model hub."""
    known = Vault(env)
    for home in homes:
        known.note("the model hub's login", text(Path(home) / _HUB_LOGIN))
    values = {**known.values, **vault().values}
    # A password that is an ordinary word stands in any text, and is not found by that.
    return [
        PrivateWord("secret", value, re.compile(re.escape(value), re.IGNORECASE), name)
        for value, name in values.items()
        if not (value.isalpha() and value.lower() in _vocabulary())
    ]


def _user_names(env: Mapping[str, str]) -> set[str]:
    names = {env.get(key, "") for key in ("USER", "LOGNAME", "SUDO_USER")}
    with suppress(KeyError, OSError):  # a number without a name, as in many containers
        names.add(getpass.getuser())
    return names - {"root", ""}


def _host_names(root: Path) -> set[str]:
    names = {text(root / "proc/sys/kernel/hostname"), text(root / "etc/hostname"), *_names_in_hosts(root)}
    names |= {name.partition(".")[0] for name in names}
    return {name for name in names if name.lower() not in _NO_NAMES and not is_loopback(name)}


def _names_in_hosts(root: Path) -> set[str]:
    """Return the names that /etc/hosts gives this machine's own addresses, its full name among them."""
    own = _addresses() | {"127.0.1.1"}
    lines = (line.partition("#")[0].split() for line in text(root / "etc/hosts").splitlines())
    return {name for words in lines if words and words[0] in own for name in words[1:]}


def _addresses() -> set[str]:
    all_addresses = {
        address.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for address in addresses
    }
    return {address for address in all_addresses if not is_loopback(address) and set(address) - set("0:")}


def _serials(root: Path) -> set[str]:
    dmi = root / "sys/class/dmi/id"
    files = [
        dmi / name
        for name in (
            "product_serial",
            "product_uuid",
            "board_serial",
            "chassis_serial",
            "product_asset_tag",
            "chassis_asset_tag",
        )
    ]
    disks = root / "sys/block"
    files += [
        root / "etc/machine-id",
        *matching(disks, "*/device/serial"),
        *matching(disks, "*/serial"),
        *matching(disks, "*/wwid"),
    ]
    return {serial for path in files if (serial := text(path)) and serial.lower() not in _NO_NAMES}

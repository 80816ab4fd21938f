"""Private text, which may not leave a machine, by its form: credentials, addresses, names of people and of machines.

One table has each kind with how it is found and how bad it is. It is used on trees of anyone, and beside the names of
this machine (private_words.py) on what cm4vllm publishes itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.host_addresses import is_address, is_loopback
from cm4vllm.common.secrets.secret_forms import keys_in, without_forms


@dataclass(frozen=True)
class Private:
    """A kind of private text, how its words are found in a text, and how bad they are.

    A word that `is_secret` is not shown. A form that is found in a program names an account or is secret: addresses and
    the names of machines there are mostly examples.
    """

    kind: str
    find: Callable[[str], Iterable[str]] = field(compare=False)
    severity: Severity = Severity.WARNING
    is_secret: bool = False
    in_programs: bool = False


def _matches(pattern: str, *signs: str) -> Callable[[str], Iterator[str]]:
    """Return a function that yields group 1 of each match of a pattern in a text that holds one of the signs."""
    compiled = re.compile(pattern, re.MULTILINE | re.ASCII)

    def find(text: str) -> Iterator[str]:
        if any(sign in text for sign in signs):
            yield from (match[1] for match in compiled.finditer(text))

    return find


def _whole_keys(text: str) -> Iterator[str]:
    """Yield keys of services, and private keys that hold more than the words around them."""
    return (key for key in keys_in(text) if not key.startswith("-----") or len(key) > 200)


#: Keys alone, for code, which is full of what has the form of a password; and all that has the form of a secret.
KEYS = Private("a secret", keys_in, Severity.ERROR, is_secret=True, in_programs=True)
SECRETS = Private(
    "a secret", lambda text: [text] if without_forms(text) != text else [], Severity.ERROR, is_secret=True
)
HOME = Private(
    "the home folder of a person",
    _matches(r"(?<![\w.$}-])/(?:home|Users|users)/([A-Za-z][\w.-]*)(?=[/\s\"',:]|$)", "/home/", "/Users/", "/users/"),
    in_programs=True,
)
_ADDRESS = "the address of a machine"
#: What is searched for in texts of anyone.
FORMS = (
    Private("a credential", _whole_keys, Severity.ERROR, is_secret=True, in_programs=True),
    Private(
        "a password in an address",
        _matches(r"://[^\s/:@'\"<>{}$\[\]]{1,40}:([^\s/@'\"<>{}$*]{4,80})@[\w.-]", "://"),
        Severity.ERROR,
        is_secret=True,
        in_programs=True,
    ),
    HOME,
    Private(
        "the folder of a person in a shared file system",
        _matches(
            r"(?<![\w.])/(?:lustre|gpfs|beegfs|fsx)/(?:[\w.-]+/)*?(?:users?/|(?<=/fsw/)[\w.-]+/|(?<=/share/)[\w.-]+/)"
            r"([a-z][\w.-]*)(?=[/\s\"',:]|$)",
            "/lustre/",
            "/gpfs/",
            "/beegfs/",
            "/fsx/",
        ),
        in_programs=True,
    ),
    Private("the name of a machine", _matches(r'"CM_HOST_SYSTEM_NAME": "([^"]+)"', "CM_HOST_SYSTEM_NAME")),
    Private("the name of a machine", _matches(r"^Linux (\S+) \d+\.\d+\.\d+\S* #", "Linux ")),
    Private(
        "user and machine of a shell",
        _matches(r"^(?:\([\w.-]{1,40}\)\s?)?([a-z][\w-]{0,40}@[\w-]{1,64}):[~/][^\n$#]{0,80}[$#] ", "@"),
    ),
    Private(
        _ADDRESS,
        _matches(
            r"(?<![\w.=:-])(192\.168\.\d{1,3}\.\d{1,3}|172\.(?:1[6-9]|2\d|3[01])\.\d{1,3}\.\d{1,3})(?![\w.])",
            "192.168.",
            "172.",
        ),
    ),
    Private(
        _ADDRESS,
        _matches(
            r"(?:://|@|inet |-h )((?!127\.|0\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b(?!\.\d)",
            "://",
            "@",
            "inet ",
            "-h ",
        ),
    ),
)
#: The value of a key that names a machine, and one that names its address, in YAML, JSON or a command line.
_MACHINE = re.compile(
    r"\b(?:hostname|host_name|node_name|machine_name)[\"']?\s*[:=]\s*[\"']?([A-Za-z][\w.-]+)", re.IGNORECASE | re.ASCII
)
_IPV4 = re.compile(
    r"(?:host|addr|address|ip|server|endpoint|node)[\"']?\s*[:=]\s*[\"']?(\d{1,3}(?:\.\d{1,3}){3})(?![\w.])",
    re.IGNORECASE | re.ASCII,
)
#: Groups of hexadecimal digits, the first with all four of them: others are times, or names in C++.
_IPV6 = re.compile(r"(?<![\w:.])([0-9a-f]{4}:(?:[0-9a-f]{0,4}:){1,6}[0-9a-f]{0,4})(?![\w:])", re.IGNORECASE | re.ASCII)
_NO_MACHINE = frozenset({"none", "null", "true", "false"})


def _machines(text: str) -> Iterator[str]:
    names = (match[1] for match in _MACHINE.finditer(text))
    return (name for name in names if not is_loopback(name) and name.lower() not in _NO_MACHINE)


def _addresses(text: str) -> Iterator[str]:
    words = (match[1] for pattern in (_IPV4, _IPV6) for match in pattern.finditer(text))
    return (word for word in words if is_address(word) and not is_loopback(word))


#: What is searched for in documents that state what was measured, too: descriptions and configurations.
DOCUMENT_FORMS = (*FORMS, Private("the name of a machine", _machines), Private(_ADDRESS, _addresses))


def found_in(text: str, kinds: Iterable[Private]) -> Iterator[tuple[Private, str]]:
    """Yield the private words of a text with their kinds, by kind and in the order of the alphabet."""
    for kind in kinds:
        yield from ((kind, word) for word in sorted(set(kind.find(text))))

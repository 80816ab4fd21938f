"""Command lines as others may read and paste them: without secrets, and with variables for what is this machine's own.

A secret or a path becomes a variable that is named after its flag: --output_dir="${OUTPUT_DIR:?}". A shell refuses the
command while the variable is not set, and runs the same command once it is.
"""

import itertools
import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from cm4vllm.common.errors import UsageError
from cm4vllm.common.secrets.redaction import PLACEHOLDER, Vault, redacted_words, variable

#: An absolute path, or one below a home folder, as a word or in one: after =, a comma, file://, or _path. of a tag.
_PATH = re.compile(r"(?:(?<=^)|(?<=[=,:;\s\"'(\[{@])|(?<=://)|(?<=[A-Za-z0-9]\.))(?P<path>~?/(?!/)[^\s,;:\"')\]}@]*)")
#: A value that is a path as a whole, with any characters, and not several of them, as a mount has.
_LONE_PATH = re.compile(r"~?/(?!/)(?:(?!,| -|:/).)*", re.DOTALL)
#: A URL up to its path.
_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,31})://(?P<host>\[[^\]]{0,64}\]|[^\s/:,?#\"']*)(?P<rest>[^\s,\"']*)", re.IGNORECASE
)
#: Variables that have a meaning in every shell, and variables that a reader has already set.
_TAKEN = frozenset({"PATH", "HOME", "USER", "PWD", "OLDPWD", "SHELL", "TMPDIR", "LANG", "IFS", "UID", "TAGS", "INPUT"})


def given_words(flag: str, text: str) -> list[str]:
    """Return the words in the value of a flag, which is quoted as in a shell. Raises UsageError, without a secret."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{redacted_words([f'{flag}={text}'])[0]} cannot be read", cause=str(error), remedy="quote it as in a shell"
        ) from error


def options_in(word: str, without_value: str) -> list[str]:
    """Return the names of the options that one word of a command gives: --name, or the short ones that are joined.

    `without_value` are the letters of the short options that take no value, and so stand before others: of `it`, -itp80
    gives -i, -t and -p.
    """
    if word.startswith("--") or not word.startswith("-"):
        return [word.partition("=")[0]]
    begun = len(word) - len(word[1:].lstrip(without_value)) + 1
    return [f"-{letter}" for letter in word[1:begun]]


def refuse_secrets(flag: str, words: Sequence[str], *, cause: str, remedy: str) -> None:
    """Raise UsageError for the first word in the value of a flag that has a secret in it, which is not shown."""
    for word, shown in zip(words, redacted_words(words), strict=True):
        if shown != word:
            raise UsageError(f"a secret in {flag}: {shown}", cause=cause, remedy=remedy)


def stored_command(words: Sequence[str], secrets: Vault | None = None) -> str:
    """Return a command for a record: on one line, quoted for a shell, each secret a variable."""
    return " ".join(shell_word(word) for word in redacted_words(words, secrets))


def published_command(
    command: str, names: Mapping[str, str] | None = None, hosts: Collection[str] = (), secrets: Vault | None = None
) -> str:
    """Return a stored command for a published page, one flag a line. A text that no shell can read stays as it is."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return shell_line(published_words(words, names, hosts, secrets))


def published_words(
    words: Sequence[str],
    names: Mapping[str, str] | None = None,
    hosts: Collection[str] = (),
    secrets: Vault | None = None,
) -> list[str]:
    """Return the words of a command with variables for secrets, for paths of this machine and for `hosts`.

    `names` maps folders to the variables that stand for them; another path is named after its flag.
    """
    namer = _Namer(names or {}, {host.lower() for host in hosts})
    shown = redacted_words(words, secrets)
    return [
        namer.named(word, before if before.startswith("--") and "=" not in before else "")
        for before, word in zip(["", *shown], shown, strict=False)
    ]


class _Namer:
    """The variables of paths and servers; the same path has the same variable in the whole command."""

    def __init__(self, names: Mapping[str, str], hosts: Collection[str]) -> None:
        self._folders = sorted(
            ((folder.rstrip("/"), f"${{{name}:?}}") for folder, name in names.items() if folder.strip("/")),
            key=lambda name: -len(name[0]),
        )
        self._hosts = hosts
        self._given: dict[str, str] = {}

    def named(self, word: str, before: str) -> str:
        """Return a word with its variables; `before` is the flag that stands before it, and whose value it may be."""
        option = re.match(r"(-{0,2}[\w.+,-]+)=", word)
        flag, value = (option[1], word[option.end() :]) if option else (before, word)
        value = _URL.sub(lambda url: self._server(flag, url), value)
        # HOST:PORT, as a Ray cluster is named, or HOST,HOST as nodes are.
        if _host_of(value) in self._hosts or any(word.lower() in self._hosts for word in value.split(",")):
            value = self._variable(flag, value)
        if _LONE_PATH.fullmatch(value):
            value = self._path(flag, value)
        else:
            value = _PATH.sub(lambda path: self._path(flag, path["path"], value[: path.start()]), value)
        return f"{option[1]}={value}" if option else value

    def _server(self, flag: str, url: re.Match[str]) -> str:
        host = url["host"].rpartition("@")[2].strip("[]").lower()
        return self._variable(flag or "SERVER", url[0]) if host in self._hosts else url[0]

    def _path(self, flag: str, path: str, before: str = "") -> str:
        """Return a path with the variable in place of the folder that it lies in."""
        if path in ("/", "~/"):
            return path
        for folder, stands in self._folders:
            if path == folder or path.startswith(f"{folder}/"):
                return stands + path[len(folder) :]
        variation = re.search(r"(?<!\w)_(\w+)\.$", before)
        return self._variable(variation[1] if variation else flag or "FILE", path)

    def _variable(self, name: str, value: str) -> str:
        """Return the variable that stands for a value, the same one for equal values."""
        if value in self._given:
            return self._given[value]
        plain = variable(name)[2:-3]
        plain = f"GIVEN_{plain}" if plain in _TAKEN else plain
        taken = {*self._given.values(), *(stands for _, stands in self._folders)}
        free = (
            chosen
            for count in itertools.count(1)
            if (chosen := f"${{{plain}{f'_{count}' if count > 1 else ''}:?}}") not in taken
        )
        return self._given.setdefault(value, next(free))


def _host_of(value: str) -> str:
    """Return the host of HOST:PORT; for any other text, a name that no host can have."""
    address = re.fullmatch(r"\[?([^\s/,=\]]+)\]?:\d+", value)
    return address[1].lower() if address else "/"


# --- quoting ---------------------------------------------------------------------------------------------------------


def shell_line(words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Return a command for a shell, one flag a line; `env` are the variables that it begins with."""
    lines = [f"{name}={shell_word(value)}" for name, value in sorted((env or {}).items())]
    current = ""
    for word in words:
        if word.startswith("--"):
            lines.append(current)
            current = shell_word(word)
        else:
            current = f"{current} {shell_word(word)}".strip()
    return " \\\n    ".join(line for line in [*lines, current] if line)


def shell_word(word: str) -> str:
    """Quote a word for a shell, which is to replace the variables ${NAME:?} in it and nothing else."""
    flag = re.match(r"-{1,2}[\w.+-]+=", word)
    start, value = (flag[0], word[flag.end() :]) if flag else ("", word)
    if not PLACEHOLDER.search(value):
        return f"{start}{shlex.quote(value)}" if value or not start else start
    if "!" in value:  # an interactive shell would replace that between double quotes
        ends = [*PLACEHOLDER.finditer(value)]
        quoted = [shlex.quote(text) if text else "" for text in PLACEHOLDER.split(value)]
        return start + quoted[0] + "".join(f'"{name[0]}"{text}' for name, text in zip(ends, quoted[1:], strict=True))
    escaped = "".join(
        part if PLACEHOLDER.fullmatch(part) else re.sub(r'([\\"$`])', r"\\\1", part)
        for part in re.split(f"({PLACEHOLDER.pattern})", value)
    )
    return f'{start}"{escaped}"'

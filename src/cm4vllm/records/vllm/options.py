"""The options of a vLLM, read from its own help, and the check of a command line's options against them.

`vllm serve --help=all` takes seconds, because all of vLLM is imported for it. So its text is kept beside the record of
the installation, whose proof writes it. serve-help.txt has the options of 0.32.0, for command lines of servers whose
installation is not known.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.files import bytes_of, text_of
from cm4vllm.common.records import Record

#: The name of the help's file in an installation's folder.
HELP_FILE = "serve-help.txt"

_ENTRY = re.compile(r"^  (-\S.*?)(?:  .*)?$")
_NAME = re.compile(r"(?P<name>--?[A-Za-z][\w.-]*)(?: (?P<value>\S.*?))?(?:, (?=-)|$)")
_HELP = "`vllm serve --help=all` lists what it knows"
#: `-O3`, `-O=3` and `-O 3` are `--optimization-level 3`.
_LEVEL = re.compile(r"-O=?(?P<level>[^.=].*)?")
#: The words of the help for an option whose number may have a suffix.
_MULTIPLES = "Parse human-readable integers"
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)


@dataclass(frozen=True)
class Option:
    """One spelling of an option: whether a value follows it, and which values are allowed where the help lists them.

    `full_name` is vLLM's own name, without dashes, which all spellings share; `off` is the spelling --no-NAME of an
    option without a value. With `several` any number of values may follow. With `multiples` 1k stands for 1000 and 1K
    for 1024.
    """

    name: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    full_name: str = ""
    off: bool = False
    several: bool = False
    multiples: bool = False


Options = Mapping[str, Option]


@dataclass(frozen=True)
class GivenOption:
    """An option of a command line: its name with dashes, as vLLM writes it, and all words that belong to it.

    `own` is the value in the option's own word (`--a=1`), None where values follow. `keys` lead to the part of a JSON
    value that is given (`--a.b.c 1`); with `adds` it is added to a list (`--a.b+ x,y`).
    """

    name: str
    words: list[str]
    own: str | None = None
    keys: tuple[str, ...] = ()
    adds: bool = False

    @property
    def as_written(self) -> str:
        """The option as it is written in the command line, without a value."""
        return self.words[0].partition("=")[0]

    @property
    def values(self) -> list[str]:
        """Return the values that were given to the option, as text."""
        return self.words[1:] if self.own is None else [self.own]


def split_options(words: Iterable[str]) -> tuple[list[str], list[GivenOption]]:
    """Return the words before the first option, and the options, each with the words that belong to it."""
    before: list[str] = []
    given: list[GivenOption] = []
    for word in words:
        if word.startswith("-") and word.strip("-") and not _NEGATIVE.fullmatch(word):
            given.append(_parse_option(word))
        else:
            (given[-1].words if given else before).append(word)
    return before, given


def _parse_option(word: str) -> GivenOption:
    """Return the option of one word of a command line: name, value after `=`, and keys of a JSON value."""
    if level := _LEVEL.fullmatch(word):
        return GivenOption("--optimization-level", [word], level["level"])
    head, equals, value = word.partition("=")
    name, *keys = head.removesuffix("+").split(".")
    name = name.replace("_", "-") if name.startswith("--") else name
    return GivenOption(name, [word], value if equals else None, tuple(keys), head.endswith("+"))


class Renamed(Record, frozen=True, kw_only=True):
    """Replacement of an option of earlier releases: the words with the same meaning now, or none, and the reason."""

    option: str
    now: list[str] = []
    note: str


def read_options(installation: Path) -> Options | None:
    """Return the options of the installation whose record is at this path, None where its help was not kept."""
    try:
        return parse_help(text_of(installation.with_name(HELP_FILE))) or None
    except OSError:
        return None


@cache
def stored_options() -> Options:
    """Return the options of vLLM 0.32.0."""
    return parse_help(text_of(Path(__file__).with_name(HELP_FILE)))


def parse_help(text: str) -> dict[str, Option]:
    """Return the options that a help text of argparse lists, by every name they have."""
    options: dict[str, Option] = {}
    spellings: list[Option] = []
    for line in text.splitlines():
        if entry := _ENTRY.match(line):
            spellings = _spellings(entry[1])
            options |= {option.name: option for option in spellings}
        elif _MULTIPLES in line:
            options |= {option.name: replace(option, multiples=True) for option in spellings}
    return options


def _spellings(entry: str) -> list[Option]:
    """Return the spellings of an option in one entry of the help; the help of Python 3.13 has the value once."""
    names = [(match["name"], match["value"] or "") for match in _NAME.finditer(entry)]
    shown = next((value for _, value in names if value), "")
    # Choices with words after them, as "or a name that is registered", are not all.
    choices = tuple(shown[1:-1].split(",")) if re.fullmatch(r"\{[^}]*\}", shown) else ()
    full = next((name for name, _ in names if name.startswith("--")), names[0][0] if names else "")
    return [
        Option(
            name,
            bool(shown),
            choices,
            full_name=full.lstrip("-"),
            off=name == f"--no-{full.lstrip('-')}",
            several=shown.endswith("...]"),
        )
        for name, _ in names
    ]


def fit_to_release(words: list[str], options: Options) -> tuple[list[str], list[str]]:
    """Return the words as this release takes them, and a note for each that was translated or left out.

    Raises UsageError for an option that it does not know and for a value that the option does not take.
    """
    done, given = split_options(words)
    notes: list[str] = []
    for option in given:
        if option.name in options:
            _check_value(options[option.name], option)
            done += option.words
        elif (renamed := _renamed_options().get(option.name)) is not None:
            now = [word.replace("{}", " ".join(option.values)) for word in renamed.now]
            done += now
            notes.append(f"{option.words[0]}: {renamed.note}; " + (f"said as {' '.join(now)}" if now else "left out"))
        else:
            raise UsageError(
                f"the installed vLLM has no option {option.name}",
                cause=f"given as {' '.join(option.words)}",
                remedy=_nearest_option(option.name, options),
            )
    return done, notes


def _check_value(option: Option, given: GivenOption) -> None:
    """Raise UsageError for a value that is missing, not taken, or not among the choices of the option."""
    word, values = given.as_written, given.values
    if given.keys:
        return  # a part of a JSON value, of any kind
    # Short options alone may stand without the value that the help shows.
    if option.takes_value and not values and option.name.startswith("--"):
        raise UsageError(f"{word} needs a value", remedy=nearest("", option.choices) or _HELP)
    if not option.takes_value and values:
        raise UsageError(f"{word} takes no value", cause=f"given {' '.join(values)}", remedy=f"write {word} alone")
    for value in values if option.choices else []:
        if value not in option.choices:
            raise UsageError(
                f"{word}={value} is not supported by the installed vLLM", remedy=nearest(value, option.choices)
            )


def _nearest_option(name: str, options: Options) -> str:
    close = difflib.get_close_matches(name, [known for known in options if known.startswith("--")], n=1)
    return f"did you mean {close[0]!r}?" if close else _HELP


@cache
def _renamed_options() -> Mapping[str, Renamed]:
    data = bytes_of(Path(__file__).with_name("renamed.yaml"))
    return {renamed.option: renamed for renamed in msgspec.yaml.decode(data, type=list[Renamed])}

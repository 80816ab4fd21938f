"""The options of a vLLM, as its argument parser has them, and the check of a command line's options against them.

The parser is asked by the proof of an installation (serving/installation/verification.py), which imports all of vLLM
anyway; its answer is kept beside the record of the installation. serve-options.json has the options of 0.32.0, for
command lines of servers whose installation is not known. Records, presets and searches name an option as cm4vllm does
in every release: spellings.yaml has the names that vLLM changed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.files import bytes_of
from cm4vllm.common.records import Record

#: The name of the options' file in an installation's folder, and the options of the release that is stored here.
OPTIONS_FILE = "serve-options.json"
STORED_OPTIONS, STORED_RELEASE = Path(__file__).with_name(OPTIONS_FILE), "0.32.0"

_HELP = "`vllm serve --help=all` lists what it knows"
#: `-O3`, `-O=3` and `-O 3` are `--optimization-level 3`.
_LEVEL = re.compile(r"-O=?(?P<level>[^.=].*)?")
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)


@dataclass(frozen=True)
class Option:
    """One spelling of an option: whether a value follows it, and which values are allowed where they are listed.

    `full_name` is the name in records, without dashes, which all spellings share; `off` is the spelling --no-NAME of an
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
    """Replacement of an option of earlier releases: the words with the same meaning now, or none, and the reason.

    With `values` the words depend on the old value, and no other is taken. With `refused` there are no such words. With
    `single` it is that of an option with one value alone; with several, spellings.yaml has it.
    """

    option: str
    now: list[str] = []
    values: dict[str, list[str]] = {}
    refused: bool = False
    single: bool = False
    note: str
    source: str

    def words(self, given: GivenOption) -> list[str]:
        """Return the present words for an option as it is given. Raises UsageError where there are none."""
        if given.name != self.option:  # --no-NAME
            return []
        value = " ".join(given.values)
        if self.refused or (self.values and value not in self.values):
            raise UsageError(
                f"the installed vLLM has no option {given.name}",
                cause=f"given as {' '.join(given.words)}; {self.note}",
                remedy=f"remove it, or take a release that has it; {_HELP}",
            )
        words = [word.replace("{}", value) for word in self.values.get(value, self.now)]
        return [".".join([words[0], *given.keys]), *words[1:]] if words else []


class _Action(msgspec.Struct):
    """An option of vLLM's parser (argparse.Action): its spellings, and what follows them."""

    flags: list[str]
    nargs: int | str | None
    type: str
    multiples: bool
    choices: list[str]


def read_options(installation: Path) -> Options | None:
    """Return the options of the installation whose record is at this path, None where they were not kept."""
    try:
        return parsed_options(bytes_of(installation.with_name(OPTIONS_FILE))) or None
    except (OSError, msgspec.MsgspecError):
        return None


@cache
def stored_options() -> Options:
    """Return the options of vLLM 0.32.0."""
    return parsed_options(bytes_of(STORED_OPTIONS))


def parsed_options(data: bytes) -> dict[str, Option]:
    """Return the options in a file of a parser's options, by every name they have. Raises msgspec.MsgspecError."""
    return {
        flag: Option(
            flag,
            action.nargs != 0,
            tuple(action.choices),
            full_name=neutral_name(full),
            off=flag == f"--no-{full}",
            several=action.nargs in ("+", "*"),
            multiples=action.multiples,
        )
        for action in msgspec.json.decode(data, type=list[_Action])
        for full in [next((flag for flag in action.flags if flag.startswith("--")), action.flags[0]).lstrip("-")]
        for flag in action.flags
    }


def neutral_name(name: str) -> str:
    """Return the name in records of the option that a release of vLLM spells as `name`, without dashes."""
    return next((neutral for neutral, spelled in spellings().items() if name in spelled), name)


def spelling(name: str, options: Options | None = None) -> str:
    """Return how vLLM spells the option of a name in records; `options` are those of the release, else of 0.32.0."""
    known = stored_options() if options is None else options
    return next((spelled for spelled in spellings().get(name, ()) if f"--{spelled}" in known), name)


@cache
def spellings() -> Mapping[str, list[str]]:
    """Return the spellings of the options that vLLM renamed, by their names in records."""
    return msgspec.yaml.decode(bytes_of(Path(__file__).with_name("spellings.yaml")), type=dict[str, list[str]])


def option_named(name: str, known: Options) -> Option | None:
    """Return the option of a name, which may be shortened as long as it is the beginning of one option only."""
    if name in known or not name.startswith("--"):
        return known.get(name)
    begun = [option for other, option in known.items() if other.startswith(name)]
    return begun[0] if len(begun) == 1 else None


def fit_to_release(words: list[str], options: Options) -> tuple[list[str], list[str]]:
    """Return the words as this release takes them, and a note for each that was translated or left out.

    Raises UsageError for an option that it does not know and for a value that the option does not take.
    """
    done, given = split_options(words)
    notes: list[str] = []
    for option in (_as_spelled(option, options) for option in given):
        if option.name in options:
            _check_value(options[option.name], option)
            done += option.words
        elif (renamed := _renamed(option)) is not None:
            now = fit_to_release(renamed.words(option), options)[0]
            done += now
            notes.append(f"{option.words[0]}: {renamed.note}; " + (f"said as {' '.join(now)}" if now else "left out"))
        elif (begun := option_named(option.name, options)) is not None:
            _check_value(begun, option)
            done += option.words
        else:
            raise UsageError(
                f"the installed vLLM has no option {option.name}",
                cause=f"given as {' '.join(option.words)}",
                remedy=nearest(option.name, [known for known in options if known.startswith("--")], _HELP),
            )
    return done, notes


def _as_spelled(option: GivenOption, options: Options) -> GivenOption:
    """Return an option as this release spells it."""
    if option.as_written.startswith("-O") and ("-O" in options or "{" in option.as_written + "".join(option.values)):
        return replace(option, name="-O")  # before 0.12, and JSON, which was a value of -O until then
    renamed = _renamed_options().get(option.name)
    if renamed is not None and renamed.single and len(option.values) == 1:
        return option
    off = "no-" if option.name.startswith("--no-") else ""
    name = f"--{off}{spelling(neutral_name(option.name.removeprefix(f'--{off}')), options)}"
    if option.name in options or name not in options:
        return option
    first, *values = option.words
    return replace(option, name=name, words=[name + first[len(option.name) :], *values])


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


def _renamed(option: GivenOption) -> Renamed | None:
    """Return the replacement of an option, or of that which `--no-NAME` switches off."""
    known = _renamed_options()
    return known.get(option.name) or known.get(f"--{option.name.removeprefix('--no-')}")


@cache
def _renamed_options() -> Mapping[str, Renamed]:
    data = bytes_of(Path(__file__).with_name("renamed.yaml"))
    return {renamed.option: renamed for renamed in msgspec.yaml.decode(data, type=list[Renamed])}

"""The parts of a capsule's command that a replay takes by itself, and those that the user has to accept.

A capsule may be a file of a stranger. Which flags, variations and options of vLLM are taken, and with values of which
form, is data (replayed.yaml), each with its reason; all else is shown with what it does, and taken with --accept alone.
A variable is filled only where --fill names it, and only as a whole value: beside the address of a host, that host
would read it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.progress import say_text
from cm4vllm.common.records import Record
from cm4vllm.common.secrets.command_lines import stored_command
from cm4vllm.common.secrets.redaction import PLACEHOLDER
from cm4vllm.common.secrets.secret_forms import is_secret_name
from cm4vllm.records.access import KEY_VARIABLES
from cm4vllm.records.vllm.options import neutral_name
from cm4vllm.rules import catalogue

_FLAG = re.compile(r"[A-Za-z][\w-]*(?:\.[\w-]+)*,?", re.ASCII)
#: A variable that is a whole value, or the folder that one begins with.
_WHOLE = re.compile(rf"{PLACEHOLDER.pattern}(?:/[\w./-]*)?")
_EXTRA = "extra_args"


@dataclass(frozen=True)
class Consent:
    """The permissions that the user gave on the command line: flags of the capsule, and variables that are filled."""

    accept: tuple[str, ...] = ()
    fill: tuple[str, ...] = ()

    @classmethod
    def of(cls, accept: str, fill: str) -> Consent:
        """Read both as they are typed: names, separated by commas."""
        flags = (flag_name(name.strip().removeprefix("--")) for name in accept.split(","))
        return cls(tuple(filter(None, flags)), tuple(filter(None, map(str.strip, fill.split(",")))))


@dataclass(frozen=True)
class Asked:
    """A flag of a capsule that has to be accepted: `word` as it stands there, and `does`, its effect."""

    flag: str
    word: str
    does: str

    def __str__(self) -> str:
        return f"{stored_command([self.word])}: {self.does}"


class _Entry(Record, frozen=True, kw_only=True):
    names: list[str]
    takes: list[str]
    why: str
    several: bool = False


class _Tags(Record, frozen=True, kw_only=True):
    named: list[list[str]]
    others: list[str]
    why: str


class _EngineFlags(Record, frozen=True, kw_only=True):
    begins: list[str]
    does: str
    never: bool = False


class _Replayed(Record, frozen=True, kw_only=True):
    forms: dict[str, str]
    tags: _Tags
    variations: list[_Entry]
    flags: list[_Entry]
    vllm_options: list[_Entry]
    engine: list[_EngineFlags]


@cache
def replayed() -> _Replayed:
    """Return the lists of replayed.yaml."""
    text = resources.files("cm4vllm.submission.capsule").joinpath("replayed.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=_Replayed)


def flag_name(name: str) -> str:
    """Return a flag's name as the recipes spell it.

    cmind takes `-` for `_` in the part before the first dot, and a comma at the end for the mark of a list.
    """
    first, dot, rest = name.removesuffix(",").partition(".")
    return first.replace("-", "_") + dot + rest


def asked_of(
    tags: str, flags: Mapping[str, str | None], help_of: Mapping[str, str], environ: Mapping[str, str]
) -> list[Asked]:
    """Return the flags of a capsule's command that the user has to accept; `help_of` says what each does.

    A server on this machine may be another user's: it is asked for where `environ` has a key that it would get. Raises
    UsageError for what is refused, accepted or not: another script than the main job, a flag of the engine that
    chooses one, a value that the engine would fill.
    """
    asked = _asked_of_tags(tags)
    key = next((variable for variable in KEY_VARIABLES if environ.get(variable, "").strip()), "")
    for name, value in flags.items():
        word = f"--{name}" if value is None else f"--{name}={value}"
        refuse_unusable(word)
        if name == _EXTRA and value is not None:
            if options := _options_asked(value):
                asked.append(Asked(name, word, f"options of vLLM that are not on the list: {', '.join(options)}"))
        elif name == "api_server" and key and not PLACEHOLDER.fullmatch(value or ""):
            asked.append(Asked(name, word, f"the server there gets the key in {key} with each request"))
        elif not _is_taken(replayed().flags, name, value or ""):
            asked.append(Asked(name, word, _effect(name, help_of)))
    return asked


def refuse_unusable(word: str) -> None:
    """Raise UsageError for a word of a command that no replay takes: no flag, or one that chooses a script."""
    name = word.partition("=")[0].removeprefix("-").removeprefix("-")
    base = flag_name(name).partition(".")[0]
    never = next((group.does for group in replayed().engine if group.never and base in group.begins), "")
    if not word.startswith("-") or not _FLAG.fullmatch(name):
        never = "it is not a flag of the form --name=value"
    elif not word.isprintable():
        never = "it has characters that a terminal does not show"
    elif "<<<" in word:
        never = "the script engine would put values of its environment in the place of <<<...>>>"
    if never:
        raise UsageError(
            f"{stored_command([word])} of the capsule is refused",
            cause=never,
            remedy="replay it only if its source is trusted, after you removed this from `command` in the capsule",
        )


def require_consent(asked: Sequence[Asked], missing: Mapping[str, str], unset: Collection[str], ok: Consent) -> None:
    """Raise UsageError, with the line to type, for what is not accepted and for variables that cannot be filled.

    `missing` maps variables to the words in which they stand, `unset` names those that have no value here.
    """
    if not asked and not missing:
        return
    variables = [
        f"{stored_command([word])}: has the variable {name}, "
        + ("which has no value here" if name in unset else "which --fill does not name")
        for name, word in missing.items()
    ]
    accepted = dict.fromkeys((*ok.accept, *(asked_word.flag for asked_word in asked)))
    words = [f"--accept={','.join(accepted)}"] if asked else []
    words += [f"--fill={','.join(dict.fromkeys((*ok.fill, *missing)))}"] if missing else []
    exports = " ".join(f"{name}=..." for name in missing if name in unset)
    raise UsageError(
        "the capsule asks for more than a replay takes by itself",
        cause="\n".join([*map(str, asked), *variables]),
        remedy=f"if you trust its source, and want all of this, add to replay,mlperf: {' '.join(words)}"
        + (f"\nand set before: export {exports}" if exports else ""),
    )


def question(asked: Sequence[Asked]) -> bool:
    """Ask the user, once for all flags, whether they are taken; without a terminal they are not."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    say_text("\n  ".join(["the capsule asks for more than a replay takes by itself:", *map(str, asked)]))
    try:
        answer = input("Run it with all of this? Only if its source is trusted. (y/N) ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def refuse_unknown(ok: Consent, flags: Collection[str], variables: Collection[str]) -> None:
    """Raise UsageError for a flag or a variable that the user names and the capsule does not have."""
    for given, names, known in (("accept", ok.accept, {*flags, "tags"}), ("fill", ok.fill, variables)):
        for name in names:
            if name not in known:
                raise UsageError(
                    f"the capsule has no {'flag' if given == 'accept' else 'variable'} {name}",
                    cause=f"named by --{given} of replay,mlperf",
                    remedy=nearest(name, known) or "leave it out",
                )


# --- variables -------------------------------------------------------------------------------------------------------


def variables_in(word: str) -> Iterator[str]:
    """Yield the names of the variables in a word."""
    return (placeholder[2:-3] for placeholder in PLACEHOLDER.findall(word))


def refuse_exposed(word: str) -> None:
    """Raise UsageError where a variable of a capsule's word would be filled beside other text, or a secret elsewhere.

    The other text may be the address of a host, which would then read the value; a secret is filled only into a flag
    or a variable that has the name of a secret itself.
    """
    for receiver, value in _values_of(word):
        if not (names := list(variables_in(value))):
            continue
        whole = all(_WHOLE.fullmatch(part) for part in value.split(",") if PLACEHOLDER.search(part))
        secret = next((name for name in names if is_secret_name(name)), "")
        if whole and (not secret or is_secret_name(receiver.strip("-").rpartition(".")[2])):
            continue
        raise UsageError(
            f"{secret or names[0]} is not filled into {stored_command([word])} of the capsule",
            cause="a secret goes into a flag that is named as one alone"
            if whole
            else "a variable is filled as a whole value alone: the host of an address, or a program, that the capsule "
            "names would read it",
            remedy="give the flag yourself where replay,mlperf has it, as in: --api_server=URL to replay,mlperf",
        )


def _values_of(word: str) -> Iterator[tuple[str, str]]:
    """Yield each value in a word with what receives it: of extra arguments each option, of tags each variation."""
    name, _, value = word.removeprefix("--").partition("=")
    if name == "tags":
        for tag in value.split(","):
            kind, _, rest = tag.partition(".")
            yield kind, rest if rest else tag
    elif name == _EXTRA:
        before = name
        for part in _words(value):
            option, equals, rest = part.partition("=")
            yield (option, rest) if equals and part.startswith("-") else (before, part)
            before = option if part.startswith("-") else before
    else:
        yield name, value


# --- the list --------------------------------------------------------------------------------------------------------


def _asked_of_tags(tags: str) -> list[Asked]:
    """Return what the tags of a capsule ask for beyond what a replay takes by itself."""
    known, words = replayed().tags, [tag for tag in tags.split(",") if tag]
    allowed = [*dict.fromkeys(tag for group in known.named for tag in group), *known.others]
    plain = [tag for tag in words if not tag.startswith("_")]
    strange = [tag for tag in plain if tag not in allowed]
    named = " or ".join(",".join(group) for group in known.named)
    if strange or not any(set(group) <= set(plain) for group in known.named):
        raise UsageError(
            f"the capsule does not run the main job: --tags={tags}",
            cause=f"{strange[0]} is not among its tags" if strange else f"it has not the tags {named}",
            remedy=f"a replay takes {', '.join(allowed)}, and variations of that job",
        )
    asked = []
    for tag in (word for word in words if word.startswith("_")):
        name, _, value = tag[1:].partition(".")
        entries = [
            variation for variation in replayed().variations if _named(variation, name) or _named(variation, tag[1:])
        ]
        if not entries or "<<<" in tag:
            raise UsageError(
                f"the capsule asks for the variation {tag}",
                cause="the main job has no such variation",
                remedy="remove it from --tags in `command` of the capsule, if its source is trusted",
            )
        value = "" if any(_named(entry, tag[1:]) for entry in entries) else value
        if not any(_fits(entry, value) for entry in entries):
            asked.append(Asked("tags", f"--tags={tag}", "measures a model that is not in the catalogue of cm4vllm"))
    return asked


def _named(entry: _Entry, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in entry.names)


def _is_taken(entries: Iterable[_Entry], name: str, value: str) -> bool:
    return any(name in entry.names and _fits(entry, value) for entry in entries)


def _fits(entry: _Entry, value: str) -> bool:
    parts = value.split(",") if entry.several else [value]
    return all(any(_has_form(form, part) for form in entry.takes) for part in parts)


def _has_form(form: str, value: str) -> bool:
    if form == "catalogue":
        return any(value in (name, model.hub) for name, model in catalogue().models.items())
    return re.fullmatch(replayed().forms[form], value, re.ASCII) is not None


def _options_asked(text: str) -> list[str]:
    """Return the options in further words for vLLM that are not on the list, or have a value of another form."""
    options, name, values = [], "", list[str]()
    for word in (*_words(text), "--"):
        if not word.startswith("-") or (name and _has_form("number", word)):
            values.append(word)
            continue
        if (name or values) and not _is_listed(name, values):
            options.append(" ".join((name, *values)).strip())
        name, equals, value = word.partition("=")
        values = [value] if equals else []
    return options


def _is_listed(option: str, values: list[str]) -> bool:
    """Return True if a replay takes this option of vLLM with these values by itself."""
    entries, name = replayed().vllm_options, neutral_name(option.removeprefix("--").replace("_", "-"))
    if not option.startswith("--") or len(values) > 1:
        return False
    negated = name.startswith("no-")
    return not (negated and values) and _is_taken(entries, name.removeprefix("no-"), "".join(values))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # its quotes do not match; the job refuses it
        return text.split()


def _effect(name: str, help_of: Mapping[str, str]) -> str:
    base = name.partition(".")[0]
    engine = next((group.does for group in replayed().engine if base in group.begins), "")
    return engine or help_of.get(base) or "a flag of the script engine, or none that the job has"

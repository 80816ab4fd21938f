"""The words by which names that submitters choose are read: counts of accelerators, software, shared accounts."""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.resources import files
from math import prod

import msgspec

from cm4vllm.common.records import Record


class Serving(Record, frozen=True, kw_only=True):
    """Software that serves a model; `names` and `commands` are patterns without regard to case, empty for none."""

    name: str
    names: str
    commands: str

    def is_named_in(self, text: str) -> bool:
        return bool(re.search(self.names, text, re.IGNORECASE))

    def is_used_in(self, commands: str) -> bool:
        """Return True if a text of command lines starts this software, or sends requests to its server."""
        return bool(self.commands and re.search(self.commands, commands, re.IGNORECASE))


class _Words(Record, frozen=True, kw_only=True):
    accelerator_counts: list[str]
    not_accelerators: list[str]
    serving: list[Serving]
    served_model: list[str]
    drives: list[str]
    homes: list[str]
    placeholders: list[str]
    programs: list[str]


@cache
def _words() -> _Words:
    return msgspec.yaml.decode((files("cm4vllm.results") / "known" / "words.yaml").read_bytes(), type=_Words)


def serving_software() -> list[Serving]:
    """Return the software that names of systems and command lines are searched for."""
    return _words().serving


@lru_cache(maxsize=16)
def models_served(page: str) -> frozenset[str]:
    """Return the models that the commands of a page serve, by name or path."""
    return frozenset(re.findall(rf"(?:{'|'.join(_words().served_model)})([^\s\\-][^\s\\]*)", page))


def accelerators_named(name: str) -> set[int]:
    """Return the numbers of accelerators that one name may mean; empty where it states none.

    A name may state them before the product and again after it; several products in one place are added up.
    """
    return {sum(_counts(pattern, name)) for pattern in _words().accelerator_counts} - {0}


def _counts(pattern: str, name: str) -> Iterator[int]:
    for match in re.finditer(pattern, name, re.IGNORECASE):
        groups = match.groupdict()
        if not _non_accelerator_pattern().search(match["product"]):
            yield prod(int(factor) for factor in re.findall(r"\d+", groups.get("factors") or groups["count"] or ""))


@cache
def _non_accelerator_pattern() -> re.Pattern[str]:
    words = "|".join(map(re.escape, _words().not_accelerators))
    return re.compile(rf"(?<![a-z])x?(?:{words})(?![a-z]{{2}})", re.IGNORECASE)


def is_no_framework(text: str) -> bool:
    """Return True if a text names only what lies below a framework, as `CUDA 12.2` does; false for an empty one."""
    words = re.findall(r"[A-Za-z]{2,}", text)
    known = {drive.lower() for drive in _words().drives}
    return bool(words) and all(word.lower() in known for word in words)


def is_a_person(name: str, *others: str) -> bool:
    """Return True if the name of an account may be a person's: not where it consists of words for shared accounts.

    `others` are names that are no person's here, as the submitter's.
    """
    plain = name.lower()
    return not _shared_names_pattern().fullmatch(plain) and plain not in {other.lower() for other in others}


@cache
def _shared_names_pattern() -> re.Pattern[str]:
    words = "|".join(sorted(map(re.escape, _words().homes), key=len, reverse=True))
    return re.compile(rf"[\d_.-]*(?:(?:{words})(?:v\d|[\d_.-])*)+(?:(?<=[_.-])[a-z]\d*)?")


def is_a_placeholder(secret: str) -> bool:
    """Return True if what has the form of a secret only shows where one belongs: `password`, hf_XXXX, hf_123456789."""
    return secret.lower() in _words().placeholders or len(set(secret.lower())) < min(10, len(secret) // 2)


def shows_a_command(page: str) -> bool:
    """Return True if a page in Markdown shows a command: as code, or on a line that begins with a program's name."""
    return bool(_code().search(page))


@cache
def _code() -> re.Pattern[str]:
    programs = "|".join(map(re.escape, _words().programs))
    return re.compile(
        rf"^\s*(?:```|~~~|<pre|\$ |\./\S|(?:{programs})\s+\S)|^(?: {{4}}|\t)\s*\S|`[^`\n]*\s[^`\n]*`|<code>",
        re.MULTILINE,
    )

"""Typed settings from and to a recipe's environment: a field says by `Key` which environment key gives it.

A hook of a recipe is the edge: it reads a Settings class out of the environment, hands it to a function of the package,
and writes the Settings class that the function returns. No other function takes or reads an environment.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record

#: The greatest whole number that every program behind a setting takes.
GREATEST = 2**31 - 1

Extra = TypeVar("Extra")

#: Python compiles the text of all annotations of a class each time that it is asked for them.
_hints: Callable[..., Mapping[str, Any]] = cache(get_type_hints)


@dataclass(frozen=True)
class Key:
    """The environment key of a field: `name: Annotated[str, Key("CM_NAME")]`. Upstream's name where it has one."""

    name: str


@dataclass(frozen=True)
class Bounds:
    """The numbers of a field, beside its `Key`: above 0, or from 0 on where `zero`, up to `most`.

    `part_of` names the whole of which the number is a part: at most 1.
    """

    most: float = GREATEST
    zero: bool = False
    part_of: str = ""

    def require(self, name: str, value: float) -> None:
        """Raise UsageError for a number outside; one up to 100 may be a percentage of the whole."""
        most, kind = (1, f"it is a part of {self.part_of}:") if self.part_of else (self.most, "it must be")
        if 0 < value <= most or (self.zero and value == 0):
            return
        least = "0 or more" if self.zero else "above 0"
        percent = f"a percentage is divided by 100: give {name}={value / _PERCENT:.15g}"
        raise UsageError(
            f"{name}={value:.15g} is not usable",
            cause=f"{kind} {least}, and {most:,.15g} at most",
            remedy=percent if self.part_of and 1 < value <= _PERCENT else "give a value in this range, or leave it out",
        )


@cache
def extras_of(cls: type, kind: type[Extra]) -> Mapping[str, Extra]:
    """Return what stands beside the types of the fields of `cls`, of one kind; also where the field may be None."""
    return {
        field: extra
        for field, hint in _hints(cls, include_extras=True).items()
        for each in (hint, *get_args(hint))
        for extra in getattr(each, "__metadata__", ())
        if isinstance(extra, kind)
    }


def env_keys(cls: type) -> Mapping[str, str]:
    """Return the environment key of each field of `cls` that has one, in the order of the fields."""
    return {field: key.name for field, key in extras_of(cls, Key).items()}


@cache
def parts_of(cls: type) -> Mapping[str, type["Settings"]]:
    """Return the fields of `cls` that are settings themselves, read from the same environment, each with its class."""
    hints = _hints(cls).items()
    return {field: hint for field, hint in hints if isinstance(hint, type) and issubclass(hint, Settings)}


class Settings(Record, frozen=True, kw_only=True):
    """The base of all settings: the fields that have a `Key`, and those of parts, are read from an environment."""

    @classmethod
    def of(cls, env: Mapping[str, Any]) -> Self:
        """Read the settings from environment values.

        Keys that are absent or empty leave the field's default; words like yes, no, on and off are understood for
        booleans. Raises UsageError naming the key whose value does not fit, and what would.
        """
        keys, hints = env_keys(cls), _hints(cls)
        values: dict[str, Any] = {
            field: _boolean(env[key]) if bool in (hints[field], *get_args(hints[field])) else env[key]
            for field, key in keys.items()
            if env.get(key) not in (None, "")
        }
        for field, value in values.items():
            try:
                read = msgspec.convert(value, hints[field], strict=False)
            except msgspec.ValidationError as error:
                raise UsageError(
                    f"{keys[field]}={value!r} is not usable",
                    cause=_expected_words(hints[field]) or str(error),
                    remedy=_plain_number(keys[field], value) or "give a value that fits, or leave it out",
                ) from error
            if (bounds := extras_of(cls, Bounds).get(field)) is not None:
                bounds.require(keys[field], read)
        values |= {field: part.of(env) for field, part in parts_of(cls).items()}
        try:
            return msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            given_by = ", ".join(keys.values())
            raise UsageError(f"the settings are incomplete: {error}", remedy=f"given by {given_by}") from error

    def env(self) -> dict[str, str]:
        """Return the fields that have a `Key` as environment values, as `of` reads them; None is left out."""
        values = ((key, getattr(self, field)) for field, key in env_keys(type(self)).items())
        own = {key: setting_text(value) for key, value in values if value is not None}
        return dict(ChainMap(own, *(getattr(self, field).env() for field in parts_of(type(self)))))


def setting_text(value: Any) -> str:
    """Return a value as text of an environment; numbers keep their full precision."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return repr(value) if isinstance(value, float) else str(value)


def _plain_number(name: str, value: Any) -> str:
    """Return the remedy for a percentage with its sign; empty for another value."""
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", str(value))
    return f"give a number without a unit: {name}={float(number[1]) / _PERCENT:.15g}" if number else ""


#: The greatest number that may be a percentage of a whole.
_PERCENT = 100


def _expected_words(hint: Any) -> str:
    """Return the words for the values of a field; empty where its type says too little."""
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    if get_origin(hint) is Literal:
        return f"it must be one of {', '.join(map(str, kinds))}"
    words = {int: "it must be a whole number", float: "it must be a number", bool: "it must be yes or no"}
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], Enum):
        return f"it must be one of {', '.join(str(member.value) for member in kinds[0])}"
    return words.get(kinds[0], "") if len(kinds) == 1 else ""


def _boolean(value: Any) -> Any:
    word = str(value).lower()
    return True if word in ("yes", "on", "true", "1") else False if word in ("no", "off", "false", "0") else value

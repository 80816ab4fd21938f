"""Conditions of a dependency, or of a change to one: enable_if_env, skip_if_env and their `any` forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cm4vllm.engine.format.value import Value

CONDITION_KEYS = ("enable_if_env", "skip_if_env", "enable_if_any_env", "skip_if_any_env")

_YES = frozenset({"yes", "on", "true", "1"})
_NO = frozenset({"no", "off", "false", "0", ""})

#: True, False, or, in a plan, the keys of the facts on which it depends.
Truth = bool | frozenset[str]

Clause = Mapping[str, frozenset[str]]
#: Tells whether one key of a clause matches, of its name, its values, and whether a missing key says no.
Match = Callable[[str, frozenset[str], bool], Truth]


def is_no(value: Any) -> bool:
    """Return True if a value says no, or nothing."""
    return str(value).strip().lower() in _NO


class Conditions(Value):
    """All clauses of one entry. A clause maps an environment key to the values that match it."""

    enable_all: Clause | None = None
    skip_all: Clause | None = None
    enable_any: Clause | None = None
    skip_any: Clause | None = None

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Conditions:
        """Read the four condition keys of a raw mapping; other keys are ignored."""
        return cls(*(_clause(raw[key]) if key in raw else None for key in CONDITION_KEYS))

    def hold(self, env: Mapping[str, Any]) -> bool:
        """Return True if the entry takes part under `env`.

        A value list with `yes` matches every set value that does not say no; one with `no` matches what says no, and in
        the `all` forms also a missing key. Other values are compared without regard to case.
        """
        return self.decide(partial(matches, env)) is True

    def decide(self, match: Match) -> Truth:
        """Return whether the entry takes part, or on which facts that depends; `match` decides about a key of a clause.

        A missing key says no in the `all` forms alone.
        """
        parts: list[Truth] = []
        if self.enable_all is not None:
            parts += [match(key, values, True) for key, values in self.enable_all.items()]
        if self.enable_any is not None:
            unmatched = [_negated(match(key, values, False)) for key, values in self.enable_any.items()]
            parts.append(_negated(both(*unmatched)))
        if self.skip_all is not None:
            parts.append(_negated(both(*(match(key, values, True) for key, values in self.skip_all.items()))))
        if self.skip_any is not None:
            parts += [_negated(match(key, values, False)) for key, values in self.skip_any.items()]
        return both(*parts)


def both(*parts: Truth) -> Truth:
    """Return whether all of these hold."""
    if any(part is False for part in parts):
        return False
    return frozenset(key for part in parts if isinstance(part, frozenset) for key in part) or True


def _negated(truth: Truth) -> Truth:
    return truth if isinstance(truth, frozenset) else not truth


def _clause(raw: Mapping[str, Any]) -> Clause:
    return {
        key: frozenset(_word(v) for v in (values if isinstance(values, list) else [values]))
        for key, values in raw.items()
    }


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value).strip().lower()


def says_yes(values: frozenset[str]) -> bool:
    """Return True if a value list matches whatever is set and does not say no."""
    return bool(values & _YES)


def says_no(values: frozenset[str]) -> bool:
    """Return True if a value list matches only what says no."""
    return not says_yes(values) and bool(values & (_NO - {""}))


def matches(env: Mapping[str, Any], key: str, values: frozenset[str], missing_is_no: bool) -> bool:
    """Return True if one key of a clause matches; `missing_is_no` is the rule of the `all` forms."""
    if key not in env:
        return missing_is_no and bool(values & _NO)
    value = _word(env[key])
    if says_yes(values):
        return value not in _NO
    if says_no(values):
        return value in _NO
    return value in values

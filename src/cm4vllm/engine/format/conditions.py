"""Conditions of a dependency, or of a change to one: enable_if_env, skip_if_env and their `any` forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cm4vllm.engine.format.value import Value

__all__ = ["CONDITION_KEYS", "Clause", "Conditions", "is_no", "matches", "says_no", "says_yes"]

CONDITION_KEYS = ("enable_if_env", "skip_if_env", "enable_if_any_env", "skip_if_any_env")

_YES = frozenset({"yes", "on", "true", "1"})
_NO = frozenset({"no", "off", "false", "0", ""})

Clause = Mapping[str, frozenset[str]]


def is_no(value: Any) -> bool:
    """Tell whether a value says no, or nothing."""
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
        """Tell whether the entry takes part under `env`.

        A value list with `yes` matches every set value that does not say no; one with `no` matches what says no, and in
        the `all` forms also a missing key. Other values are compared without regard to case.
        """
        if self.enable_all is not None and not all(matches(key, v, env, True) for key, v in self.enable_all.items()):
            return False
        if self.enable_any is not None and not any(matches(key, v, env, False) for key, v in self.enable_any.items()):
            return False
        if self.skip_all is not None and all(matches(key, v, env, True) for key, v in self.skip_all.items()):
            return False
        return not (self.skip_any is not None and any(matches(key, v, env, False) for key, v in self.skip_any.items()))


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
    """Tell whether a value list matches whatever is set and does not say no."""
    return bool(values & _YES)


def says_no(values: frozenset[str]) -> bool:
    """Tell whether a value list matches only what says no."""
    return not says_yes(values) and bool(values & (_NO - {""}))


def matches(key: str, values: frozenset[str], env: Mapping[str, Any], missing_is_no: bool) -> bool:
    """Tell whether one key of a clause matches; `missing_is_no` is the rule of the `all` forms."""
    if key not in env:
        return missing_is_no and bool(values & _NO)
    value = _word(env[key])
    if says_yes(values):
        return value not in _NO
    if says_no(values):
        return value in _NO
    return value in values

"""Facts that only a run can give, as a plan carries them: marked text that stands where the value will be.

A fact goes through substitution, tags and lists like any other text, so that each text made from it shows its mark. An
assured fact is known to be set to something that does not say no; its value is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cm4vllm.engine.format.conditions import Clause, Conditions, matches, says_no, says_yes

__all__ = ["Truth", "assured", "both", "decide", "facts_in", "in_words", "is_assured", "unknown"]

_OPEN, _CLOSE = "\u27e6", "\u27e7"
_MARK = re.compile(f"{_OPEN}[!?]([^{_CLOSE}]*){_CLOSE}")

#: True, False, or the keys of the facts on which it depends.
Truth = bool | frozenset[str]


def unknown(key: str) -> str:
    """Return the mark for a value that a run may give to `key`."""
    return f"{_OPEN}?{key}{_CLOSE}"


def assured(key: str) -> str:
    """Return the mark for a value that a run will give to `key`."""
    return f"{_OPEN}!{key}{_CLOSE}"


def is_assured(value: Any) -> bool:
    """Tell whether a value holds an assured fact, and so does not say no."""
    return f"{_OPEN}!" in str(value)


def facts_in(value: Any) -> frozenset[str]:
    """Return the keys of all facts in a text, or in the texts of a list or mapping."""
    if isinstance(value, str):
        return frozenset(_MARK.findall(value)) if _OPEN in value else frozenset()
    if isinstance(value, Mapping):
        return facts_in([*value.keys(), *value.values()])
    if isinstance(value, Iterable):
        return frozenset(key for item in value for key in facts_in(item))
    return frozenset()


def in_words(text: str) -> str:
    """Return a text in which `<KEY>` stands for each fact."""
    return _MARK.sub(r"<\1>", text)


def decide(conditions: Conditions, env: Mapping[str, Any]) -> Truth:
    """Tell whether an entry takes part under `env`, or on which facts that depends."""
    parts: list[Truth] = []
    if conditions.enable_all is not None:
        parts.append(_all(conditions.enable_all, env))
    if conditions.enable_any is not None:
        parts.append(_any(conditions.enable_any, env))
    if conditions.skip_all is not None:
        parts.append(_opposite(_all(conditions.skip_all, env)))
    if conditions.skip_any is not None:
        parts.append(_opposite(_any(conditions.skip_any, env)))
    return both(*parts)


def both(*parts: Truth) -> Truth:
    """Return whether all of these hold."""
    if any(part is False for part in parts):
        return False
    keys = frozenset(key for part in parts if isinstance(part, frozenset) for key in part)
    return keys or True


def _opposite(truth: Truth) -> Truth:
    return truth if isinstance(truth, frozenset) else not truth


def _all(clause: Clause, env: Mapping[str, Any]) -> Truth:
    return both(*(_matches(key, values, env, missing_is_no=True) for key, values in clause.items()))


def _any(clause: Clause, env: Mapping[str, Any]) -> Truth:
    parts = [_matches(key, values, env, missing_is_no=False) for key, values in clause.items()]
    return _opposite(both(*map(_opposite, parts)))


def _matches(key: str, values: frozenset[str], env: Mapping[str, Any], *, missing_is_no: bool) -> Truth:
    facts = facts_in(env.get(key))
    if not facts:
        return matches(key, values, env, missing_is_no)
    if is_assured(env[key]):
        if says_yes(values):
            return True
        if says_no(values):
            return False
    return facts

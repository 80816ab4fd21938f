"""Facts that only a run can give, as a plan carries them: marked text that stands where the value will be.

A fact goes through substitution, tags and lists like any other text, so that each text made from it shows its mark. An
assured fact is known to be set to something that does not say no; its value is not known.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from cm4vllm.engine.format.conditions import Conditions, Truth, matches, says_no, says_yes

_OPEN, _CLOSE = "\u27e6", "\u27e7"
_MARK = re.compile(f"{_OPEN}[!?]([^{_CLOSE}]*){_CLOSE}")


def unknown(key: str) -> str:
    """Return the mark for a value that a run may give to `key`."""
    return f"{_OPEN}?{key}{_CLOSE}"


def mark_of_assured(key: str) -> str:
    """Return the mark for a value that a run will give to `key`."""
    return f"{_OPEN}!{key}{_CLOSE}"


def is_assured(value: Any) -> bool:
    """Return True if a value holds an assured fact, and so does not say no."""
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
    """Return whether an entry takes part under `env`, or on which facts that depends."""
    return conditions.decide(partial(_matches, env))


def _matches(env: Mapping[str, Any], key: str, values: frozenset[str], missing_is_no: bool) -> Truth:
    """Return whether a key has one of the values, or the facts on which that depends."""
    facts = facts_in(env.get(key))
    if not facts:
        return matches(env, key, values, missing_is_no)
    if is_assured(env[key]):
        if says_yes(values):
            return True
        if says_no(values):
            return False
    return facts

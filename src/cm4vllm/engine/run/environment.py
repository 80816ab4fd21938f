"""The environment of a script: what overrides what, `<<<KEY>>>`, `+KEY` lists, and what a script returns.

From the weakest to the strongest:

    caller's environment, --env of the command line
    default_env            fills what is missing
    env                    of the meta; does not touch what the command line's own --env gives
    default_env, env       of the variations, in order: bases, then what builds on them, then combinations
    env                    of the version
    const                  what input_mapping makes of the flags; const of the caller, then of meta, variations, version
    dependencies           what they export
    customize.py, run.sh
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from cm4vllm.engine.format.meta import Layer

Env = dict[str, Any]

#: Keys that a dependency does not inherit.
LOCAL_KEYS = (
    "CM_VERSION",
    "CM_VERSION_MIN",
    "CM_VERSION_MAX",
    "CM_VERSION_MAX_USABLE",
    "CM_DETECTED_VERSION",
    "CM_INPUT",
    "CM_OUTPUT",
    "CM_OUTBASENAME",
    "CM_OUTDIRNAME",
    "CM_NAME",
    "CM_EXTRA_CACHE_TAGS",
    "CM_TMP_*",
    "CM_GIT_*",
    "CM_RENEW_CACHE_ENTRY",
)

_PLACEHOLDER = re.compile(r"<<<(.*?)>>>")


def as_text(value: Any) -> Any:
    """Return a value as the environment keeps it: text, or a list of texts; True is yes, False is no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return [str(as_text(item)) for item in value]
    if value is None:
        return ""
    return value if isinstance(value, (str, dict)) else str(value)


def merge_into(env: Env, update: Mapping[str, Any]) -> None:
    """Set the keys of `update` in `env`; lists of `+KEY` are appended without repeats."""
    for key, value in update.items():
        text = as_text(value)
        present = env.get(key)
        if key.startswith("+") and isinstance(present, list):
            added = text if isinstance(text, list) else [text]
            env[key] = present + [item for item in added if item not in present]
        else:
            env[key] = [text] if key.startswith("+") and not isinstance(text, list) else text


def compose(
    caller: Mapping[str, Any],
    base: Layer,
    layers: Sequence[Layer],
    const: Mapping[str, Any],
    *,
    explicit: Container[str],
) -> tuple[Env, Env]:
    """Return a script's environment and its constants, before its dependencies run.

    `layers` are the variations in their order and the version. `const` holds what the caller declares constant and what
    input_mapping makes of flags; `explicit` names the keys that the command line's --env gives.
    """
    env: Env = {}
    merge_into(env, caller)
    merge_into(env, _values_not_present(base.default_env, env))
    merge_into(env, _values_not_present(base.env, explicit))
    defaults: Env = {}
    for layer in layers:
        merge_into(defaults, layer.default_env)
    merge_into(env, _values_not_present(defaults, env))
    for layer in layers:
        merge_into(env, layer.env)
    constants: Env = {}
    for source in (const, base.const, *(layer.const for layer in layers)):
        merge_into(constants, source)
    env.update(constants)
    return env, constants


def _values_not_present(values: Mapping[str, Any], present: Container[str]) -> Env:
    return {key: value for key, value in values.items() if key not in present}


def substitute(value: Any, env: Mapping[str, Any]) -> Any:
    """Replace `<<<KEY>>>` in a text, or in the texts of a list or mapping; unknown keys stay as they are written."""
    if isinstance(value, str):
        if "<<<" not in value:
            return value
        return _PLACEHOLDER.sub(lambda m: _as_text(env[m[1]]) if m[1] in env else m[0], value)
    if isinstance(value, list):
        return [substitute(item, env) for item in value]
    if isinstance(value, Mapping):
        return {key: substitute(item, env) for key, item in value.items()}
    return value


def _as_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def substitute_all(env: Env) -> None:
    """Replace `<<<KEY>>>` in all values of `env` from `env` itself, values of values included."""
    for _ in range(8):  # a chain longer than this is a cycle, and stays as it is written
        before = dict(env)
        for key in (key for key, value in before.items() if is_unresolved(value)):
            env[key] = substitute(env[key], {k: v for k, v in env.items() if k != key})
        if env == before:
            return


def is_unresolved(value: Any) -> bool:
    """Return True if a value still holds `<<<`."""
    if isinstance(value, str):
        return "<<<" in value
    return isinstance(value, list) and any(is_unresolved(item) for item in value)


def matching(keys: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the keys that are among the patterns, or match one with `*`, `?` or `[`."""
    is_match = _matches_of(tuple(patterns))
    return [key for key in keys if is_match[key]]


class _Matches(dict[str, bool]):
    """Keys, and True for those that match one of the patterns: a plan asks each of them hundreds of times."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        """Take the patterns, of which those without `*`, `?` and `[` are keys."""
        wild = [pattern for pattern in patterns if any(sign in pattern for sign in "*?[")]
        self._exact = frozenset(patterns) - set(wild)
        self._globs = re.compile("|".join(map(fnmatch.translate, wild))) if wild else None

    def __missing__(self, key: str) -> bool:
        self[key] = key in self._exact or (self._globs is not None and self._globs.match(key) is not None)
        return self[key]


@cache
def _matches_of(patterns: tuple[str, ...]) -> _Matches:
    return _Matches(patterns)


def exported_keys(env: Mapping[str, Any], patterns: Iterable[str]) -> Env:
    """Return the keys that a script exports, those that `new_env_keys` names; `<<<X>>>` names the key that X holds."""
    names = [str(substitute(pattern, env)) for pattern in patterns]
    # A glob does not mean the keys that tell a script where it is: they are wrong for everybody else.
    return {key: env[key] for key in matching(env, names) if key in names or not key.startswith("CM_TMP_CURRENT_")}

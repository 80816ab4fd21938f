"""The shapes of a meta's parts: which key holds a mapping, a list, a text or a number.

What cannot be read is refused when the meta is read, with its place. What public metas leave open stays open: an
absent or empty part, a text in place of a list of one, a number in place of a text.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cm4vllm.common.errors import RecipeError
from cm4vllm.engine.format.dependency import CONDITION_KEYS, PHASES

Place = tuple[str | int, ...]
WrongShapes = Iterator[tuple[Place, str]]
#: Yields the faults in a mapping that stands at a place.
Inner = Callable[[Mapping[str, Any], Place], WrongShapes]

_MAPPINGS = frozenset(
    {
        "env",
        "default_env",
        "const",
        "state",
        "const_state",
        "adr",
        "add_deps_recursive",
        "ad",
        "add_deps",
        "docker",
        "variations",
        "versions",
        "input_mapping",
        "input_description",
        "default_variations",
        "print_env_at_the_end",
        "env_key_mappings",
        "tests",
        "inputs",
        "inputs_of",
        "input_groups",
        "variations_of",
        "input_changes",
        "data",
        "removed_inputs",
        "update_tags_from_env_with_prefix",
        *CONDITION_KEYS,
    }
)
_LISTS = frozenset(
    {
        *PHASES,
        "brings",
        "update_meta_if_env",
        "invalid_variation_combinations",
        "valid_variation_combinations",
        "extra_cache_tags_from_env",
    }
)
_TEXTS = frozenset(
    {
        "alias",
        "uid",
        "group",
        "script_name",
        "default_version",
        "tags_help",
        "version",
        "version_min",
        "version_max",
        "version_max_usable",
    }
)
_NUMBERS = frozenset({"sort", "required_disk_space", "disk_bytes", "download_bytes"})
#: A text, or a list of texts.
_WORDS = frozenset(
    {
        "tags",
        "names",
        "shared_tags",
        "base",
        "new_env_keys",
        "new_state_keys",
        "made_by",
        "promised_env_keys",
        "local_env_keys",
        "clean_env_keys_post_deps",
        "shell_env_keys",
        "secret_env_keys",
        "clean_files",
        "clean_output_files",
        "print_files_if_script_error",
        "warnings",
        "force_env_keys",
        "force_new_env_keys",
        "update_tags_from_env",
        "skip_inherit_variation_groups",
        "extra_cache_tags",
        "first_inputs",
        "examples",
    }
)
#: Mappings whose keys become environment keys or flags, and whose values are plain.
_ENVIRONMENTS = frozenset({"env", "default_env", "const", "input_mapping", *CONDITION_KEYS})


def require_shapes(path: str, raw: Mapping[str, Any]) -> None:
    """Raise RecipeError for the first part of a script's meta that cannot be read; `path` is its folder."""
    failure = f"the meta of {path} has a part of the wrong shape"
    for place, text in wrong_shapes(raw):
        raise RecipeError(
            failure,
            cause=f"{'.'.join(map(str, place))} {text}",
            remedy="cm lint script lists everything that is wrong with it",
        )
    try:
        json.dumps(raw, default=str, skipkeys=True)
    except (ValueError, RecursionError) as error:  # a part that holds itself, or is nested too deeply
        raise RecipeError(failure, cause=str(error)) from error


def wrong_shapes(raw: Mapping[str, Any]) -> WrongShapes:
    """Yield the place of each part that has the wrong shape for its key, with the shape that it must have."""
    yield from _part(raw, ())
    for kind in ("variations", "versions"):
        yield from _faults_by_name(raw.get(kind), (kind,), _part, may_be_empty=True)
    yield from _faults_by_name(raw.get("inputs"), ("inputs",), _input)
    yield from _faults_by_name(raw.get("input_changes"), ("input_changes",), _anything)
    description = raw.get("input_description")
    for key, entry in description.items() if isinstance(description, Mapping) else ():
        if not isinstance(entry, (Mapping, str, type(None))):
            yield ("input_description", key), _must_be("a mapping or a text", entry)
    inputs = (raw.get("tests") or {}).get("run_inputs") if isinstance(raw.get("tests") or {}, Mapping) else None
    yield from _entries(inputs, ("tests", "run_inputs"), _anything)


def _faults_by_name(named: Any, place: Place, inner: Inner, *, may_be_empty: bool = False) -> WrongShapes:
    """Yield the faults in a mapping of names to mappings; what is no mapping itself has a fault already."""
    for name, entry in named.items() if isinstance(named, Mapping) else ():
        if isinstance(entry, Mapping):
            yield from inner(entry, (*place, name))
        elif entry is not None or not may_be_empty:
            yield (*place, name), _must_be("a mapping", entry)


def _anything(_entry: Mapping[str, Any], _place: Place) -> WrongShapes:
    return iter(())


def _input(entry: Mapping[str, Any], place: Place) -> WrongShapes:
    if not isinstance(entry.get("key"), str):
        yield (*place, "key"), _must_be("the name of an environment key", entry.get("key"))
    elif entry.get("values") is not None and not isinstance(entry["values"], list):
        yield (*place, "values"), _must_be("a list", entry["values"])


def _part(raw: Mapping[str, Any], place: Place) -> WrongShapes:
    """Yield the faults in the keys of the meta itself, of a variation, a version or a dependency."""
    for key, value in raw.items():
        if not isinstance(key, str):
            continue  # lint reports it as unknown
        wanted = next((words for keys, fits, words in _KINDS if key in keys and not fits(value)), "")
        if wanted and value is not None:
            yield (*place, key), _must_be(wanted, value)
            continue
        if key in _ENVIRONMENTS:
            yield from _environment(value, (*place, key), plain=key == "input_mapping")
        elif key in PHASES or key == "update_meta_if_env" or key == "brings":
            yield from _entries(value, (*place, key), _part)
        elif key == "extra_cache_tags_from_env":
            yield from _entries(value, (*place, key), _cache_tag)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, (Mapping, list))  # YAML makes dates of some versions


def _is_number(value: Any) -> bool:
    """Return True if a value is a number, or a text that is one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_words(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_plain, value)))


#: Keys, the test of their values, and the words for those that pass.
_KINDS: tuple[tuple[frozenset[str], Callable[[Any], bool], str], ...] = (
    (_MAPPINGS, lambda value: isinstance(value, Mapping), "a mapping"),
    (_LISTS, lambda value: isinstance(value, list), "a list"),
    (_TEXTS, _is_plain, "a text"),
    (_WORDS, _is_words, "a text or a list of texts"),
    (_NUMBERS, _is_number, "a number"),
)


def _environment(value: Any, place: Place, *, plain: bool = False) -> WrongShapes:
    """Yield the faults in a mapping of environment keys; with `plain` each value must be the name of a key."""
    for key, item in (value or {}).items():
        if not isinstance(key, str):
            yield (*place, key), f"must be named by a text, not by {key!r}"
        elif plain and not isinstance(item, str):
            yield (*place, key), _must_be("the name of an environment key", item)


def _entries(value: Any, place: Place, inner: Inner) -> WrongShapes:
    """Yield the faults in a list of mappings, each checked by `inner`."""
    if value is not None and not isinstance(value, list):
        yield place, _must_be("a list", value)
        return
    for number, entry in enumerate(value or ()):
        if isinstance(entry, Mapping):
            yield from inner(entry, (*place, number))
        else:
            yield (*place, number), _must_be("a mapping", entry)


def _cache_tag(entry: Mapping[str, Any], place: Place) -> WrongShapes:
    if not isinstance(entry.get("env"), str):
        yield (*place, "env"), _must_be("the name of an environment key", entry.get("env"))


def _must_be(wanted: str, value: Any) -> str:
    return f"must be {wanted}, not {str(value)[:60]!r}" if value is not None else f"must be {wanted}"

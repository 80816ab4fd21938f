"""The meta of a folder: its files, read with PyYAML's C loader, and the parts that a data file states in one place.

    data: {builds: serving/installation/builds.yaml}    # a list of entries, each with a `name`
    inputs:
      device: {values: [{names_of: builds}], default: {default_of: builds}}
    variations:
      <name>: {each_of: builds, default: true, env: {CM_VLLM_VARIANT: <name>}}

`names_of` stands for the names of all entries, `default_of` for the name of the one
with `default: true`. A variation with `each_of` stands for one of each entry: a field's name in angle brackets is
replaced by the entry's text, or alone by its number, and `default: true` holds for the default entry alone.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import cm4vllm
from cm4vllm.common.bounded_documents import json_of, yaml_of
from cm4vllm.common.errors import RecipeError

AnyPath = str | os.PathLike[str]


def _read(path: AnyPath, kind: str, parse: Callable[[bytes], Any]) -> Any:
    """Return what `parse` makes of a file. Raises RecipeError naming the file where that is not possible."""
    try:
        with open(path, "rb") as file:
            return parse(file.read())
    except OSError as error:
        raise RecipeError(
            f"{path} cannot be read", cause=str(error.strerror), remedy="change its permissions"
        ) from error
    except ValueError as error:
        raise RecipeError(f"{path} is not {kind}", cause=str(error)) from error


def read_yaml(path: AnyPath) -> Any:
    """Return the content of a YAML file. Raises RecipeError naming file and line when it is not YAML."""
    return _read(path, "YAML", yaml_of)


def read_json(path: AnyPath) -> Any:
    """Return the content of a JSON file. Raises RecipeError naming the file when it is not JSON."""
    return _read(path, "JSON", json_of)


def json_mapping(path: AnyPath) -> dict[str, Any] | None:
    """Return the mapping in a JSON file; None where there is no such file, or it holds anything else."""
    with contextlib.suppress(RecipeError):
        if isinstance(value := read_json(path), dict):
            return value
    return None


def lines_of(path: AnyPath) -> dict[tuple[str | int, ...], int]:
    """Return the line on which each key and list item of a YAML file begins, by its path of keys from the top.

    A file that cannot be read, or that is not YAML, has none.
    """
    import yaml

    lines: dict[tuple[str | int, ...], int] = {}

    def visit(node: Any, place: tuple[str | int, ...]) -> None:
        """Note the line of each key and item below a node, by its place."""
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                lines.setdefault((*place, str(key.value)), key.start_mark.line + 1)
                visit(value, (*place, str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                lines.setdefault((*place, number), item.start_mark.line + 1)
                visit(item, (*place, number))

    def nodes(data: bytes) -> Any:
        """Return the tree of YAML nodes of a text. Raises what reading it as a document raises."""
        yaml_of(data)  # what is refused there has nodes without end
        return yaml.compose(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))

    with contextlib.suppress(RecipeError):
        visit(_read(path, "YAML", nodes), ())
    return lines


def merge(first: Any, second: Any) -> Any:
    """Return `first` with `second` merged in: mappings by key, lists appended without repeats, all else replaced.

    Neither argument is changed.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        result = dict(first)
        for key, value in second.items():
            result[key] = merge(result[key], value) if key in result else value
        return result
    if isinstance(first, list) and isinstance(second, list):
        return first + [item for item in second if item not in first]
    return second


def with_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Return a value of JSON's types in which `change` has changed every text, keys of mappings too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    if isinstance(value, Mapping):
        return {with_texts(key, change): with_texts(item, change) for key, item in value.items()}
    return value


META_NAMES = ("_cm.yaml", "_cm.json")

#: Seconds after which a change of a file is certain to show in its times.
SETTLED_S = 2.0

_PACKAGE = os.path.dirname(os.path.abspath(cm4vllm.__file__))
_Tables = Mapping[str, list[Mapping[str, Any]]]


def has_meta(folder: AnyPath) -> bool:
    """Return True if `folder` is a CM artifact."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in META_NAMES)


def read_meta(folder: AnyPath) -> dict[str, Any]:
    """Return the meta of the artifact in `folder`: `_cm.yaml`, updated by `_cm.json` where both exist.

    `data` then has the state of each data file by its path. Raises RecipeError when there is no meta, when it is not a
    mapping, and for data that does not fit.
    """
    paths = [path for path in (os.path.join(folder, name) for name in META_NAMES) if os.path.isfile(path)]
    if not paths:
        raise RecipeError(f"{folder} has no _cm.yaml")
    meta: dict[str, Any] = {}
    for path in paths:
        part = read_yaml(path) if path.endswith(".yaml") else read_json(path)
        if not isinstance(part, Mapping):
            raise RecipeError(f"{path} is not a mapping of keys to values")
        meta.update(part)
    return _with_data(meta, os.fspath(folder)) if "data" in meta else meta


def signature_of(folder: str) -> tuple[list[int], float]:
    """Return size and times of the meta's files, empty where there is none, and when they changed last."""
    states = [_state(os.path.join(folder, name)) for name in META_NAMES]
    signature = [number for state in states for number in state]
    return (signature if any(len(state) > 1 for state in states) else []), _changed_at(states)


def data_unchanged(meta: Mapping[str, Any]) -> bool:
    """Return True if the data files of a meta are as they were when it was read."""
    return all(_state(path) == state for path, state in (meta.get("data") or {}).items())


def data_changed_at(meta: Mapping[str, Any]) -> float:
    """Return when a data file of a meta changed last; 0 where it has none."""
    return _changed_at((meta.get("data") or {}).values())


def _state(path: str) -> list[int]:
    """Return size and times of a file, empty where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return [-1]
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _changed_at(states: Iterable[list[int]]) -> float:
    return max((time_ns / 1e9 for state in states for time_ns in state[1:]), default=0.0)


def _with_data(raw: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return a meta with the entries of its data files in place."""
    try:
        paths = {name: os.path.join(_PACKAGE, path) for name, path in raw.pop("data").items()}
        tables = {name: read_yaml(path) for name, path in paths.items()}
        meta = {
            key: _variations(part, tables) if key == "variations" else _part(part, tables) for key, part in raw.items()
        }
    except (AttributeError, KeyError, StopIteration, TypeError) as error:
        raise RecipeError(
            f"the meta of {folder} and its data do not fit together",
            cause=f"{type(error).__name__}: {error}",
            remedy="data maps a name to a file, which is a list of entries with a name, one of them with default: true",
        ) from error
    return {**meta, "data": {path: _state(path) for path in paths.values()}}


def _variations(raw: Any, tables: _Tables) -> dict[str, Any]:
    variations: dict[str, Any] = {}
    for name, layer in raw.items():
        if not isinstance(layer, Mapping) or "each_of" not in layer:
            variations[name] = _part(layer, tables)
            continue
        for entry in tables[layer["each_of"]]:
            left_out = {"each_of"} if entry.get("default") else {"each_of", "default"}
            filled = _fill({key: value for key, value in layer.items() if key not in left_out}, entry)
            variations[_fill(name, entry).removeprefix("_")] = _part(filled, tables)
    return variations


def _part(value: Any, tables: _Tables) -> Any:
    """Return a part of a meta with names and defaults of the data in place."""
    if isinstance(value, Mapping):
        if value.keys() == {"default_of"}:
            return next(entry["name"] for entry in tables[value["default_of"]] if entry.get("default"))
        return {key: _part(item, tables) for key, item in value.items()}
    if isinstance(value, list):
        parts: list[Any] = []
        for item in value:
            named = isinstance(item, Mapping) and item.keys() == {"names_of"}
            parts += [entry["name"] for entry in tables[item["names_of"]]] if named else [_part(item, tables)]
        return parts
    return value


def _fill(value: Any, entry: Mapping[str, Any]) -> Any:
    """Return a part of a template with the texts and numbers of an entry."""
    texts = {f"<{field}>": text for field, text in entry.items() if isinstance(text, str)}
    numbers = {f"<{field}>": number for field, number in entry.items() if isinstance(number, int)}
    return with_texts(
        value,
        lambda text: (
            numbers[text]
            if text in numbers
            else reduce(lambda done, field: done.replace(field, texts[field]), texts, text)
        ),
    )

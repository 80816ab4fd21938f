"""YAML and JSON documents, read with the C loader where PyYAML has it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from cm4vllm.common.errors import RecipeError

__all__ = [
    "META_NAMES",
    "SETTLED_S",
    "has_meta",
    "json_mapping",
    "lines_of",
    "merged",
    "read_json",
    "read_meta",
    "read_yaml",
    "signature_of",
    "with_texts",
]

META_NAMES = ("_cm.yaml", "_cm.json")

#: Seconds after which a change of a file is certain to show in its times.
SETTLED_S = 2.0

AnyPath = str | os.PathLike[str]


def read_yaml(path: AnyPath) -> Any:
    """Return the content of a YAML file. Raises RecipeError naming file and line when it is not YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with open(path, "rb") as file:
            return yaml.load(file.read(), Loader=loader)  # noqa: S506 both are safe loaders
    except OSError as error:
        raise _unreadable(path, error) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not YAML", cause=str(error)) from error


def _unreadable(path: AnyPath, error: OSError) -> RecipeError:
    return RecipeError(f"{path} cannot be read", cause=str(error.strerror), remedy="change its permissions")


def lines_of(path: AnyPath) -> dict[tuple[str | int, ...], int]:
    """Return the line on which each key and list item of a YAML file begins, by its path of keys from the top.

    A file that cannot be read, or that is not YAML, has none.
    """
    import yaml

    lines: dict[tuple[str | int, ...], int] = {}

    def visit(node: Any, place: tuple[str | int, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                lines.setdefault((*place, str(key.value)), key.start_mark.line + 1)
                visit(value, (*place, str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                lines.setdefault((*place, number), item.start_mark.line + 1)
                visit(item, (*place, number))

    try:
        with open(path, "rb") as file:
            visit(yaml.compose(file.read(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), ())
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    return lines


def read_json(path: AnyPath) -> Any:
    """Return the content of a JSON file. Raises RecipeError naming the file when it is not JSON."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not JSON", cause=str(error)) from error


def json_mapping(path: AnyPath) -> dict[str, Any] | None:
    """Return the mapping in a JSON file; None where there is no such file, or it holds anything else."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def has_meta(folder: AnyPath) -> bool:
    """Tell whether `folder` is a CM artifact."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in META_NAMES)


def read_meta(folder: AnyPath) -> dict[str, Any]:
    """Return the meta of the artifact in `folder`: `_cm.yaml`, updated by `_cm.json` where both exist.

    Raises RecipeError when there is none or it is not a mapping.
    """
    meta: dict[str, Any] = {}
    present = False
    for name in META_NAMES:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        present = True
        part = read_yaml(path) if name.endswith(".yaml") else read_json(path)
        if not isinstance(part, Mapping):
            raise RecipeError(f"{path} is not a mapping of keys to values")
        meta.update(part)
    if not present:
        raise RecipeError(f"{folder} has no _cm.yaml")
    return meta


def signature_of(folder: str) -> tuple[list[int], float]:
    """Return size and times of the meta's files, empty where there is none, and when they changed last."""
    signature: list[int] = []
    changed_at = 0.0
    for name in META_NAMES:
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError:
            signature.append(-1)
            continue
        signature += [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        changed_at = max(changed_at, status.st_mtime, status.st_ctime)
    return (signature if changed_at else []), changed_at


def merged(first: Any, second: Any) -> Any:
    """Return `first` with `second` merged in: mappings by key, lists appended without repeats, all else replaced.

    Neither argument is changed.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        result = dict(first)
        for key, value in second.items():
            result[key] = merged(result[key], value) if key in result else value
        return result
    if isinstance(first, list) and isinstance(second, list):
        return first + [item for item in second if item not in first]
    return second


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON's types in which `change` has changed every text, keys of mappings too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    if isinstance(value, Mapping):
        return {with_texts(key, change): with_texts(item, change) for key, item in value.items()}
    return value

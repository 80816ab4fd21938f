"""YAML and JSON documents, read with the C loader where PyYAML has it."""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

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


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON's types in which `change` has changed every text, keys of mappings too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    if isinstance(value, Mapping):
        return {with_texts(key, change): with_texts(item, change) for key, item in value.items()}
    return value

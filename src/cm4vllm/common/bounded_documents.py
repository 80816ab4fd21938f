"""YAML and JSON documents, and files of lines, whose cost their length bounds: anybody may have written them.

A YAML text of some hundred bytes can stand for any number of values, as its references may refer to each other; a text
that is nested deep ends the interpreter or every function that follows it; a number of hundreds of digits fits no
float. None of them is loaded: each is a ValueError in one line, which names the field where it has one.

`json`, `msgspec` and `yaml` are imported where they are used: the start of `cm` would pay for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from cm4vllm.common.files import MOST_BYTES, beginning_of, open_file

if TYPE_CHECKING:
    from pathlib import Path


V = TypeVar("V")

#: The most values of a YAML document, those that its references stand for among them.
_MOST_VALUES = 250_000
_DEEPEST = 100
#: Whole numbers are below 2**64, in either direction.
_LARGEST = 2**64 - 1
#: The most characters of a number in YAML: to read one takes the square of its length.
_LONGEST_NUMBER = 1000


def json_of(data: str | bytes) -> Any:
    """Return the value of a JSON text; NaN and Infinity, which Python writes, are read. Raises ValueError.

    Halves of UTF-16 pairs, which JSON can escape and no UTF-8 file can hold, become question marks.
    """
    import json

    try:
        value = json.loads(data)
        halves = b"\\ud" in data.lower() if isinstance(data, bytes) else "\\ud" in data.lower()
        whole = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace")) if halves else value
        return require_bounded(whole)
    except RecursionError as error:
        raise _too_deep() from error


def yaml_of(data: str | bytes) -> Any:
    """Return the value of a YAML text. Raises ValueError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _require_few_values(yaml.parse(data, Loader=loader))
        return require_bounded(yaml.load(data, Loader=loader))  # noqa: S506 both are safe loaders
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise _too_deep() from error
    except (OverflowError, TypeError, AttributeError, LookupError) as error:  # of PyYAML's constructors
        raise ValueError(f"a value cannot be read: {error}") from error


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """Return the value in a JSON file. Raises OSError, ValueError."""
    return json_of(_content(path, most))


def read_yaml(path: Path, most: int = MOST_BYTES) -> Any:
    """Return the value in a YAML file. Raises OSError, ValueError."""
    return yaml_of(_content(path, most))


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON as the standard has it, without NaN. Raises OSError, ValueError."""
    import msgspec

    kind = dict[str, Any]
    try:
        return require_bounded(msgspec.json.decode(_content(path, MOST_BYTES), type=kind))
    except RecursionError as error:
        raise _too_deep() from error


def object_of(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty where the file is missing or unreadable, or holds anything else."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def lines_of(path: Path, most: int = MOST_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file, the last also without its line feed. Raises OSError, ValueError for a longer one."""
    with open_file(path) as file:
        number = 0
        while line := file.readline(most + 1):
            number += 1
            if len(line) > most:
                raise ValueError(f"line {number} is longer than {most:,} bytes")
            yield line


def require_bounded(value: V) -> V:
    """Return a value of JSON's types. Raises ValueError for one that is nested too deep, or has a number too large."""
    layer: list[Any] = [[value]]
    depth = 0
    while layer:
        if depth > _DEEPEST:
            raise _too_deep()
        below: list[Any] = []
        for part in layer:
            items = part.values() if isinstance(part, dict) else part
            kinds = set(map(type, items))  # a dataset has lists of millions of tokens
            if int in kinds and not _fit(items if kinds == {int} else [item for item in items if type(item) is int]):
                raise ValueError(f"{_large_in(value)} is a number beyond 64 bits")
            if kinds & {dict, list}:
                below += [item for item in items if isinstance(item, dict | list)]
        layer, depth = below, depth + 1
    return value


def _fit(numbers: Collection[int]) -> bool:
    return min(numbers) >= -_LARGEST and max(numbers) <= _LARGEST


def _large_in(value: Any) -> str:
    """Return the place of the first number that is too large, as a.b[0]."""
    waiting = [("", value)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, dict):
            waiting += [(f"{place}.{key}".lstrip("."), item) for key, item in part.items()]
        elif isinstance(part, list):
            waiting += [(f"{place}[{number}]", item) for number, item in enumerate(part)]
        elif type(part) is int and not _fit([part]):
            return place or "its value"
    return "a value"


def _require_few_values(events: Iterator[Any]) -> None:
    """Read the events of a YAML text, with the values that each reference stands for, before it is loaded.

    libyaml overflows the stack on a text that is nested deep. Raises ValueError.
    """
    import yaml

    sizes: dict[str, int] = {}  # of each whole part that has a name
    open_parts: list[tuple[str | None, int]] = [(None, 0)]  # the name, and the values so far
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            open_parts.append((event.anchor, 1))
            if len(open_parts) > _DEEPEST:
                raise _too_deep()
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            name, size = open_parts.pop()
        elif isinstance(event, yaml.ScalarEvent):
            name, size = event.anchor, 1
            may_be_number = not event.implicit[1] and (event.tag or event.value[:1] in (*"+-.0123456789",))
            if may_be_number and len(event.value) > _LONGEST_NUMBER:
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise ValueError(f"line {line} has a number of {len(event.value):,} characters")
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"it refers to a part of itself, or to none: *{event.anchor}")
            name, size = None, sizes[event.anchor]
        else:
            continue
        if name is not None:
            sizes[name] = size
        before, values = open_parts.pop()
        open_parts.append((before, values + size))
        if values + size > _MOST_VALUES:
            raise ValueError(f"it stands for more than {_MOST_VALUES:,} values, with those of its references")


def _content(path: Path, most: int) -> bytes:
    data = beginning_of(path, most + 1)
    if len(data) > most:
        raise ValueError(f"it is longer than {most:,} bytes")
    return data


def _too_deep() -> ValueError:
    return ValueError(f"it is nested too deep, more than {_DEEPEST} levels")

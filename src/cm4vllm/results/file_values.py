"""Values of objects in JSON and YAML files of any program: one of another type counts as missing."""

from collections.abc import Mapping
from typing import Any

#: No figure is larger; NaN is not smaller.
_LARGEST = 1e30


def part(content: object, key: str) -> Mapping[str, Any]:
    """Return the object inside an object; empty where it is missing."""
    value = content.get(key) if isinstance(content, Mapping) else None
    return value if isinstance(value, dict) else {}


def number(content: object, key: str) -> float | None:
    """Return a finite number of at least 0; None where it is missing."""
    return magnitude(content.get(key) if isinstance(content, Mapping) else None)


def magnitude(value: object) -> float | None:
    """Return a value that is a finite number of at least 0; None for any other."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        return None
    return float(value)


def count(content: object, key: str) -> int | None:
    """Return a whole number of at least 0; None where it is missing."""
    value = content.get(key) if isinstance(content, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

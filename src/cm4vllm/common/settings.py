"""Typed settings out of a recipe's environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from cm4vllm.common.errors import UsageError

__all__ = ["read_settings"]

T = TypeVar("T")


def read_settings(cls: type[T], env: Mapping[str, Any], keys: Mapping[str, str]) -> T:
    """Make a `cls` (a msgspec.Struct) from environment values.

    `keys` maps each field to its environment key. Keys that are absent or empty leave the field's default; words like
    yes, no, on and off are understood for booleans. Raises UsageError naming the key whose value does not fit.
    """
    import msgspec

    hints = {field.name: field.type for field in msgspec.structs.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for field, key in keys.items():
        value = env.get(key)
        if value is None or value == "":
            continue
        values[field] = _boolean(value) if hints[field] is bool else value
    for field, value in values.items():
        try:
            msgspec.convert(value, hints[field], strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(f"{keys[field]}={value!r} is not usable", cause=str(error)) from error
    try:
        return msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as error:
        given_by = ", ".join(keys.values())
        raise UsageError(f"the settings are incomplete: {error}", remedy=f"given by {given_by}") from error


def _boolean(value: Any) -> Any:
    word = str(value).lower()
    return True if word in ("yes", "on", "true", "1") else False if word in ("no", "off", "false", "0") else value

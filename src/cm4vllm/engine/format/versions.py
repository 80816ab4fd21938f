"""Versions: their order, the wanted version, and the one that a script falls back to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cm4vllm.common.errors import UsageError
from cm4vllm.engine.format.value import Value

#: Input and meta keys, in the order of Wanted's fields; in the environment they are CM_<UPPER>.
VERSION_KEYS = ("version", "version_min", "version_max", "version_max_usable")
_ENV_KEYS = tuple(f"CM_{key.upper()}" for key in VERSION_KEYS)


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key: 1.0rc1 < 1.0 < 1.0.post1 < 1.0.1 < 1.10, and 1.0 equals 1.0.0 and 1.0+cpu."""
    words = re.findall(r"[0-9]+|[a-zA-Z]+", version.partition("+")[0].removeprefix("v"))
    at = next((n for n, word in enumerate(words) if not word.isdecimal()), len(words))
    release, rest = words[:at], words[at:]
    while release and not release[-1].strip("0"):
        release.pop()
    return (*map(_part, release), *(map(_part, rest) if rest else [(0, 0, "")]))


def _part(word: str) -> tuple[int, int, str]:
    """Return the key by which one part of a version is ordered."""
    # In order: a word of a pre-release, the end of a version, a later build of it, a further number.
    if word.isdecimal():
        digits = word.lstrip("0")  # a number of any length: int() refuses one of thousands of digits
        return (1, len(digits), digits)
    return (0, 1, "") if word == "post" else (-1, 0, word)


class Wanted(Value):
    """The versions that a request accepts; empty strings stand for no limit."""

    version: str = ""
    minimum: str = ""
    maximum: str = ""
    max_usable: str = ""

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> Wanted:
        """Read the version keys of an input, a dependency or a meta."""
        if not any(map(source.get, VERSION_KEYS)):
            return ANY
        return cls(*(_text(source.get(key), key) for key in VERSION_KEYS))

    @classmethod
    def from_environment(cls, env: Mapping[str, Any]) -> Wanted:
        """Read the CM_VERSION* keys."""
        return cls(*(_text(env.get(key), key) for key in _ENV_KEYS)) if any(map(env.get, _ENV_KEYS)) else ANY

    @property
    def limits(self) -> tuple[str, str, str, str]:
        """Return the requirements in the order of VERSION_KEYS."""
        return self.version, self.minimum, self.maximum, self.max_usable

    def or_else(self, other: Wanted) -> Wanted:
        """Return these requirements on a version; those that are not set come from `other`."""
        return Wanted(*(own or others for own, others in zip(self.limits, other.limits, strict=True)))

    def __bool__(self) -> bool:
        return bool(self.version or self.minimum or self.maximum)

    def accepts(self, version: str) -> bool:
        """Return True if a known version fits."""
        key = version_key(version)
        return (
            (not self.version or key == version_key(self.version))
            and (not self.minimum or key >= version_key(self.minimum))
            and (not self.maximum or key <= version_key(self.maximum))
        )

    def with_default(self, default: str) -> Wanted:
        """Return the version to get when no suitable one was found: the default, moved into the limits."""
        if self.version or not default:
            return self
        key = version_key(default)
        if self.minimum and key < version_key(self.minimum):
            default = self.minimum
        elif self.maximum and key > version_key(self.maximum):
            default = self.max_usable or self.maximum
        return self.but(version=default)

    def environment(self) -> dict[str, str]:
        """Return the CM_VERSION* keys and the limits in pip's notation."""
        pairs = zip((*_ENV_KEYS, "CM_TMP_PIP_VERSION_STRING"), (*self.limits, self.pip_text()), strict=True)
        return {key: value for key, value in pairs if value}

    def pip_text(self) -> str:
        """Return `==1.2`, `>=1,<=2`, or nothing."""
        limits = (f">={self.minimum}" if self.minimum else "", f"<={self.maximum}" if self.maximum else "")
        return f"=={self.version}" if self.version else ",".join(filter(None, limits))

    def __str__(self) -> str:
        return self.pip_text() or "any"


#: No version in particular.
ANY = Wanted()


def _text(value: Any, key: str) -> str:
    """Return the version given under `key` as text, empty where none is. Raises UsageError for what is no version."""
    # `--version` without a value arrives as True; it asks for nothing.
    text = "" if value is None or isinstance(value, bool) else str(value)
    if text and "<<<" not in text and not re.search(r"[0-9a-zA-Z]", text):
        raise UsageError(
            f"{key}={text!r} is not a version",
            remedy="a version consists of digits or letters, for example 1.2 or main",
        )
    return text

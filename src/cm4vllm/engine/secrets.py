"""Secrets: which environment keys hold one, and how their values are kept out of all that a run writes.

A key is secret by its name (HF_TOKEN, OPENAI_API_KEY, ...) or because a meta lists it under `secret_env_keys`. Its
value is learnt when it is first seen; from then on every text that leaves the run passes `Vault.clean`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TextIO, cast

from cm4vllm.engine.environment import matching

__all__ = ["HIDDEN", "Vault", "secret_key"]

#: What stands in the place of a secret.
HIDDEN = "(secret)"
# Shorter values are words like `yes` and `none`: taking them out would garble every text and hide nothing.
_SHORTEST = 6
# Singular and last: CM_HF_TOKEN is a secret, CM_MAX_TOKENS and CM_TOKENIZER_PATH are not.
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$", re.IGNORECASE)


@cache
def secret_key(key: str) -> bool:
    """Tell whether a key's name says that its value is a secret; such values are never written to a file."""
    return bool(_SECRET.search(key))


class Vault:
    """The secrets that a run has met."""

    def __init__(self) -> None:
        self._patterns: set[str] = set()
        self._values: list[str] = []
        self.learn(os.environ)

    def declare(self, patterns: Iterable[str]) -> None:
        """Treat the keys that match as secret from now on."""
        self._patterns.update(patterns)

    def is_secret(self, key: str) -> bool:
        """Tell whether the value of a key must not be written anywhere."""
        return secret_key(key) or bool(self._patterns and matching((key,), self._patterns))

    def learn(self, env: Mapping[str, Any]) -> None:
        """Take note of the values of the secret keys of `env`, and of each line of those that have several."""
        for key, value in env.items():
            if isinstance(value, str) and len(value) >= _SHORTEST and self.is_secret(key):
                for text in {value, *value.splitlines()}:
                    if len(text) >= _SHORTEST and text not in self._values:
                        self._values.append(text)
                        self._values.sort(key=len, reverse=True)

    def clean(self, text: str) -> str:
        """Return a text without the secrets known so far."""
        for value in self._values:
            if value in text:
                text = text.replace(value, HIDDEN)
        return text

    def holds(self, value: Any) -> bool:
        """Tell whether a value contains a secret, at any depth."""
        if isinstance(value, str):
            return any(secret in value for secret in self._values)
        if isinstance(value, Mapping):
            return any(self.holds(key) or self.holds(item) for key, item in value.items())
        return isinstance(value, (list, tuple)) and any(self.holds(item) for item in value)

    def cleaned(self, value: Any, key: str = "") -> Any:
        """Return a value of JSON's types without secrets: those of secret keys, and known values inside of texts."""
        if isinstance(value, Mapping):
            return {self.clean(str(name)): self.cleaned(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.cleaned(item, key) for item in value]
        if isinstance(value, str):
            return HIDDEN if value and self.is_secret(key) else self.clean(value)
        return value

    @contextmanager
    def guarded_output(self) -> Iterator[None]:
        """Clean what this process prints to standard output and standard error inside the block."""
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (cast(TextIO, _Cleaning(stream, self)) for stream in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class _Cleaning:
    """A text stream that cleans what is written to it, and is the stream below in all else."""

    def __init__(self, stream: TextIO, vault: Vault) -> None:
        self._stream = stream
        self._vault = vault

    def write(self, text: str) -> int:
        clean = self._vault.clean(text)
        try:
            self._stream.write(clean)
        except UnicodeEncodeError:  # a byte that is no text, out of an environment, or a letter that the locale lacks
            encoding = self._stream.encoding or "ascii"
            self._stream.write(clean.encode(encoding, "backslashreplace").decode(encoding))
        except BrokenPipeError:
            self._to_nowhere()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._to_nowhere()

    def _to_nowhere(self) -> None:
        """Go on without a reader: what a run makes does not depend on who watches it."""
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

"""Redaction: which values are secret, and how they are kept out of all that is stored, printed or published.

A value is secret by the name it is given under, of an environment variable or of a flag (HF_TOKEN, --api-key,
--env.AWS_SECRET_ACCESS_KEY), because a recipe lists the name under `secret_env_keys`, or by its form (hf_..., ghp_...,
the password in a URL). It is learnt when it is first seen; from then on no text that passes `Vault.clean` holds it.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TextIO, cast

from cm4vllm.common.programs.standard_streams import give_up, have_wait
from cm4vllm.common.secrets.secret_forms import (
    HIDDEN,
    headers_changed,
    holds_form,
    is_secret_name,
    secrets_of_urls,
    variable_name,
    without_forms,
)

#: The text in the place of a value in a command: a variable, which a shell refuses to leave empty.
PLACEHOLDER = re.compile(r"\$\{[A-Z_][A-Z0-9_]*:\?\}")
# Shorter values are words like `yes` and `none`: taking them out would garble every text and hide nothing.
_SHORTEST = 6


def variable(name: str) -> str:
    """Return the placeholder for the value that is given under `name`: ${HF_TOKEN:?}, as a shell reads it."""
    plain = variable_name(name).strip("_") or "VALUE"
    return f"${{{f'_{plain}' if plain[0].isdecimal() else plain}:?}}"


# --- the secrets of a run --------------------------------------------------------------------------------------------


class Vault:
    """The secrets that a run has met. The process environment's are known from the start."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._patterns: set[str] = set()
        #: Each value that is searched for, with the name it was given under; the longest first.
        self._names: dict[str, str] = {}
        self.learn(os.environ if environ is None else environ)

    @property
    def values(self) -> Mapping[str, str]:
        """The secret values, as they may be spelled in a text, each with the name it was given under."""
        return self._names

    def declare(self, patterns: Iterable[str]) -> None:
        """Treat the keys that match as secret from now on; `*`, `?` and `[` are wild."""
        self._patterns.update(patterns)

    def is_secret(self, key: str) -> bool:
        """Return True if the value of a key must not be written anywhere."""
        if is_secret_name(key) or key in self._patterns:
            return True
        wild = [pattern for pattern in self._patterns if any(sign in pattern for sign in "*?[")]
        if not wild:
            return False
        from fnmatch import fnmatchcase

        return any(fnmatchcase(key, pattern) for pattern in wild)

    def learn(self, env: Mapping[str, Any]) -> None:
        """Take note of the values of the secret keys of `env`, each line of those that have several, and of the
        passwords in URLs, as a proxy's and a package index's.
        """
        for key, value in env.items():
            if isinstance(value, str) and self.is_secret(key):
                self.note(key, value)
            elif isinstance(value, str) and "://" in value and ("@" in value or "?" in value):
                for secret in secrets_of_urls(value):
                    self.note(f"{key}_SECRET", secret)

    def learn_words(self, words: Iterable[str]) -> None:
        """Take note of the secrets among the words of a command."""
        walk = _Words(self)
        walk.redacted(words)
        for name, value in walk.named_secrets:
            self.note(name, value)

    def note(self, name: str, value: str) -> None:
        """Treat a value as a secret from now on, whatever the name is that it was given under."""
        for text in (value, *value.splitlines()):
            for spelled in _spellings(text):
                if len(text) >= _SHORTEST and not PLACEHOLDER.fullmatch(text):
                    self._names.setdefault(spelled, name)
        self._names = dict(sorted(self._names.items(), key=lambda pair: -len(pair[0])))

    def clean(self, text: str) -> str:
        """Return a text without the secrets known so far, and without words that have the form of a secret."""
        for value in self._names:
            if value in text:
                text = text.replace(value, HIDDEN)
        return without_forms(text)

    def holds(self, value: Any) -> bool:
        """Return True if a value contains a secret, at any depth."""
        if isinstance(value, str):
            return any(secret in value for secret in self._names) or holds_form(value)
        if isinstance(value, Mapping):
            return any(self.holds(key) or self.holds(item) for key, item in value.items())
        return isinstance(value, (list, tuple)) and any(self.holds(item) for item in value)

    def cleaned(self, value: Any, key: str = "", *, by_name: bool = True) -> Any:
        """Return a value of JSON's types without secrets: those of secret keys, and known values inside of texts.

        `by_name` False leaves what is only named like a secret: of a list of packages, `google-auth` is none.
        """
        if isinstance(value, Mapping):
            return {
                self.clean(str(name)): self.cleaned(item, str(name), by_name=by_name) for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.cleaned(item, key, by_name=by_name) for item in value]
        if isinstance(value, str):
            return HIDDEN if by_name and value and self.is_secret(key) else self.clean(value)
        return value

    @contextmanager
    def guarded_output(self) -> Iterator[None]:
        """Clean what this process prints to standard output and standard error inside the block.

        Inside it, `vault()` is this one.
        """
        before = sys.stdout, sys.stderr
        _in_use.append(self)
        sys.stdout, sys.stderr = (cast(TextIO, _Cleaning(stream, self)) for stream in before)
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            sys.stdout, sys.stderr = before
            _in_use.remove(self)


_in_use: list[Vault] = []


def vault() -> Vault:
    """Return the secrets of the present run; outside of a run, those of the process environment."""
    return _in_use[-1] if _in_use else Vault()


class _Cleaning:
    """A text stream that cleans what is written to it, and is the stream below in all else."""

    def __init__(self, stream: TextIO, secrets: Vault) -> None:
        self._stream = stream
        self._vault = secrets

    def write(self, text: str) -> int:
        """Write a text without its secrets; return its length."""
        clean = self._vault.clean(text)
        have_wait(self._stream)
        try:
            self._stream.write(clean)
        except UnicodeEncodeError:  # a byte that is no text, out of an environment, or a letter that the locale lacks
            encoding = self._stream.encoding or "ascii"
            self._stream.write(clean.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as error:
            give_up(self._stream, error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream; one whose reader has gone is given up."""
        have_wait(self._stream)
        try:
            self._stream.flush()
        except OSError as error:
            give_up(self._stream, error)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines without their secrets."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _spellings(text: str) -> set[str]:
    """Return a text as it may stand in JSON, in a URL, on a page, in CSV, and between a shell's quotes."""
    if re.fullmatch(r"[\w.~-]*", text, re.ASCII):
        return {text}
    import html
    import json
    from urllib.parse import quote, quote_plus

    page, raw = html.escape(text), _bytes(text)
    return {
        text,
        repr(text)[1:-1],
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        quote(raw, safe=""),
        quote(raw),
        quote_plus(raw),
        text.replace("'", "'\"'\"'"),
        text.replace('"', '""'),
        page,
        html.escape(text, quote=False),
        page.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    }


def _bytes(text: str) -> bytes:
    """Return the bytes of a text, including bytes from an environment that are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair, out of JSON
        return text.encode("utf-8", "backslashreplace")


# --- commands --------------------------------------------------------------------------------------------------------


def redacted_words(words: Sequence[str], secrets: Vault | None = None) -> list[str]:
    """Return the words of a command with ${NAME:?} in the place of each secret.

    Hidden are the values of `--hf-token X`, `--env.HF_TOKEN=X` and `HF_TOKEN=X`, also inside of a word that is itself a
    command or JSON (`--extra_args="--hf-token X"`), the secrets known to `secrets`, and what has the form of one.
    """
    return _Words(secrets or vault()).redacted(words)


def secret_flags(words: Iterable[str], secrets: Vault) -> dict[str, str]:
    """Return the flags among the words of a command that hold a secret, each with the secret's name."""
    flags = {}
    for word in words:
        walk = _Words(secrets)
        walk.redacted([word])
        if walk.named_secrets:
            flags[word.partition("=")[0]] = variable_name(walk.named_secrets[0][0])
    return flags


_SCHEMES = ("bearer", "basic", "token")
#: Commands in commands, each quoted for the one around it.
_DEEPEST = 12


@cache
def _pair() -> re.Pattern[str]:
    """Match a name before its value in a word that holds JSON or an assignment: "hf_token": "X", hf_token=X."""
    return re.compile(r"(?<![\w$.-])(?<!\$\{)(?P<name>[A-Za-z_][\w.-]*+)[\"']?\s*[:=]\s*")


@cache
def _value() -> re.Pattern[str]:
    """Match the value behind a name; its only group is what may be secret of it."""
    return re.compile(r"\"(?P<double>[^\"]+)\"|'(?P<single>[^']+)'|(?P<bare>(?!\$\{)[^\s,;&}\]\"']+)")


class _Words:
    """A walk over the words of a command. `named_secrets` collects (name, value) of each secret in them.

    A word that is a command in a command, and so on, is secret as a whole where this has no end soon.
    """

    def __init__(self, secrets: Vault) -> None:
        self._vault = secrets
        self._depth = 0
        self.named_secrets: list[tuple[str, str]] = []

    def redacted(self, words: Iterable[str]) -> list[str]:
        """Return the words of a command line with the values of secret flags hidden."""
        done: list[str] = []
        secret = ""  # the flag whose values follow it as words of their own
        for word in words:
            if secret and not word.startswith("-"):
                done.append(self._hide(secret, word))
                continue
            word = self._with_plain_name(word) if "=" in word else word
            name, equals, value = word.partition("=")
            if equals and re.fullmatch(r"-{0,2}[\w.+,:\[\]\"'-]+", name):
                secret = value if value.startswith("-") and "=" not in value and self._is_secret(value) else ""
                done.append(f"{name}={self._hide(name, value) if self._is_secret(name) else self._text(name, value)}")
            else:
                secret = word if word.startswith("-") and self._is_secret(word) else ""
                done.append(self._text("", word))
        return done

    def _with_plain_name(self, word: str) -> str:
        """Return a word without the secrets that reach into the part before its `=`: a secret may end in one."""
        for known, given in self._vault.values.items():
            if known in word and word.count(known) > word.partition("=")[2].count(known):
                word = word.replace(known, variable(given))
        return word

    def _is_secret(self, name: str) -> bool:
        return self._vault.is_secret(name.strip("-+,").rpartition(".")[2]) or is_secret_name(name)

    def _hide(self, name: str, value: str) -> str:
        if not value or PLACEHOLDER.fullmatch(value):
            return value
        self.named_secrets.append((name, value))
        return variable(name)

    def _text(self, name: str, text: str) -> str:
        """Redact a text that may be a command itself, JSON, a header or a URL; `name` is the flag it was given with."""
        if words := _command_in(text):
            if self._depth == _DEEPEST:
                return self._hide(name or "VALUE", text)
            self._depth += 1
            done = self.redacted(words)
            self._depth -= 1
            if done != words:
                import shlex

                return shlex.join(done)
        for value, known in self._vault.values.items():
            text = text.replace(value, variable(known))
        if ":" not in text and "=" not in text:
            return without_forms(text, variable(f"{name}_SECRET" if name else "SECRET"))
        text = self._pairs(headers_changed(text, self._hide))
        if "://" in text:
            self.named_secrets += [(name or "SECRET", secret) for secret in secrets_of_urls(text)]
        return without_forms(text, variable(f"{name}_SECRET" if name else "SECRET"))

    def _pairs(self, text: str) -> str:
        """Return a text with the values hidden whose names (`NAME=value`) say that they are secret."""
        done, place = list[str](), 0
        while match := _pair().search(text, place):
            # The value of a name that is not secret may have a name of its own: https://host/?token=X
            end, shown = match.end("name"), match["name"]
            if self._is_secret(shown) and (behind := _value().match(text, match.end())):
                value = behind[str(behind.lastgroup)]
                if not PLACEHOLDER.search(value) and value.lower() not in _SCHEMES:
                    end = behind.end(str(behind.lastgroup))
                    shown = text[match.start() : behind.start(str(behind.lastgroup))] + self._hide(shown, value)
            done += [text[place : match.start()], shown]
            place = end
        return "".join([*done, text[place:]])


def _command_in(text: str) -> list[str]:
    """Return the words of a text that is itself words for a program; none where it is one plain value."""
    if "-" not in text or not re.search(r"(?:^|[\s\"'])-", text) or not re.search(r"[\s=]", text):
        return []
    import shlex

    try:
        words = shlex.split(text)
    except ValueError:  # its quotes do not match; what stands after a flag is hidden too
        words = text.split()
    # One word is a command only as a flag with its value: anything else would be taken apart again without end.
    return words if words != [text] or re.match(r"-{0,2}[\w.+,-]+=", text) else []

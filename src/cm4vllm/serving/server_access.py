"""Credentials that a server needs with each request: a key and headers, read from environment variables.

Records and settings hold the names of the variables alone. Every process that sends requests reads the values itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.errors import ServerUnsuitable, UsageError
from cm4vllm.common.host_addresses import is_loopback
from cm4vllm.common.records import Record
from cm4vllm.common.redaction import vault

__all__ = [
    "KEY_VARIABLES",
    "NO_ACCESS",
    "OWN_KEY_VARIABLE",
    "Access",
    "Unanswered",
    "chosen_access",
    "not_measurable",
    "own_access",
    "refused",
    "unencrypted",
]

#: The variables that may hold the key when the user names none: vLLM's own, and the one of OpenAI's clients.
KEY_VARIABLES = ("VLLM_API_KEY", "OPENAI_API_KEY")
#: Where `vllm serve` takes from the key that it asks for.
OWN_KEY_VARIABLE = "VLLM_API_KEY"
#: Headers on which the framing of the client's requests and of their answers rests.
_RESERVED = (
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
_HIDDEN = "(secret)"
#: Shorter values are ordinary words: hiding them would garble messages and protect nothing.
_SHORTEST = 6

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, token
_PRINTABLE = re.compile(r"[\x20-\x7e\t]*")
_HEADERS_EXAMPLE = """its value is lines such as `X-Tenant: blue`, or a JSON object {"X-Tenant": "blue"}"""


class Unanswered(ServerUnsuitable):
    """A server that gave no answer to the request itself: it asks for a key, is not ready, or redirects elsewhere."""


class Access(Record, frozen=True, kw_only=True):
    """The variables that hold a server's key and further headers for it; empty where it wants none."""

    key_env: str = ""
    headers_env: str = ""

    def headers(self) -> dict[str, str]:
        """Return the headers to send with each request. Raises UsageError, which never shows a value."""
        headers = _headers_of(self.headers_env) if self.headers_env else {}
        if not self.key_env:
            return headers
        if any(name.lower() == "authorization" for name in headers):
            raise UsageError(
                f"two keys for the server: in {self.key_env} and as Authorization in {self.headers_env}",
                remedy=f"leave one of them out; `env -u {self.key_env}` unsets the variable for a command",
            )
        key = _value_of(self.key_env, "the server's key").strip()
        if not key or not _PRINTABLE.fullmatch(key):
            raise UsageError(
                f"the key in {self.key_env} cannot be sent",
                cause="it is empty or has characters that are not allowed in a header",
                remedy="put the key alone into the variable, on one line",
            )
        return headers | {"Authorization": f"Bearer {key}"}

    def hidden(self, text: str) -> str:
        """Return the text of a server without the key and the headers' values, which some servers repeat."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    def _secrets(self) -> set[str]:
        try:
            values = self.headers().values()
        except UsageError:
            return set()
        return {word for value in values for word in (value, *value.split()) if len(word) >= _SHORTEST}


#: The access to a server that needs only the request itself.
NO_ACCESS = Access()


def chosen_access(key_env: str, headers_env: str) -> Access:
    """Return the access to a server: by the variables that are named, else by the first of KEY_VARIABLES that is set.

    Raises UsageError when what is named is no variable, is not set, or holds nothing that can be sent.
    """
    for flag, name in (("api_key_env", key_env), ("api_headers_env", headers_env)):
        if name and not _VARIABLE.fullmatch(name):
            # The value is not shown: somebody may have given the key itself.
            raise UsageError(
                f"--{flag} takes the name of an environment variable",
                cause="the value given is not such a name; every user of the machine can read a key on a command line",
                remedy=f"put the value into an environment variable, and give that variable's name: --{flag}=NAME",
            )
    access = Access(key_env=key_env, headers_env=headers_env)
    headers = _known_to_the_vault(access)
    if key_env or any(name.lower() == "authorization" for name in headers):
        return access
    variable = next((name for name in KEY_VARIABLES if os.environ.get(name, "").strip()), "")
    access = Access(key_env=variable, headers_env=headers_env)
    _known_to_the_vault(access)
    return access


def _known_to_the_vault(access: Access) -> dict[str, str]:
    """Return the headers, whose values the run keeps out of all that it stores from now on, however they are named."""
    headers = access.headers()
    for value in headers.values():
        vault().note(access.key_env or access.headers_env, value.removeprefix("Bearer "))
    return headers


def own_access() -> Access:
    """Return the access to a server that is started here, which inherits this environment."""
    return Access(key_env=OWN_KEY_VARIABLE if os.environ.get(OWN_KEY_VARIABLE, "").strip() else "")


def unencrypted(access: Access, endpoint: str) -> bool:
    """Return True if a key or header for a server would go over a network unencrypted."""
    parts = urlsplit(endpoint)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "") and access != NO_ACCESS


def refused(endpoint: str, path: str, status: int, access: Access) -> Unanswered:
    """Return the error for a server that answers 401 or 403."""
    if access.key_env:
        return Unanswered(
            f"the server at {endpoint} refuses the key",
            cause=f"{path}: HTTP {status} with the key in {access.key_env}",
            remedy=f"correct the value of {access.key_env}, or name another variable with "
            "--api_key_env=NAME; if the server needs further headers: --api_headers_env=NAME",
        )
    variables = " or ".join(KEY_VARIABLES)
    return Unanswered(
        f"the server at {endpoint} asks for a key",
        cause=f"{path}: HTTP {status}, and no key was sent",
        remedy=f"put it into the environment variable {variables}, or name the variable that holds it with "
        "--api_key_env=NAME; other headers: --api_headers_env=NAME",
    )


def not_measurable(endpoint: str, cause: str, kind: type[ServerUnsuitable] = ServerUnsuitable) -> ServerUnsuitable:
    """Return the error for what answers and is no server of this kind."""
    return kind(
        f"what answers at {endpoint} is not a server that can be measured",
        cause=cause.strip(),
        remedy="point --api_server at a server of OpenAI's completions API, such as `vllm serve`, "
        "with the path that stands before its /v1",
    )


def _value_of(variable: str, content: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise UsageError(
            f"the environment variable {variable} is not set",
            cause=f"it should contain {content}",
            remedy=f"export {variable} before the command, or name another variable",
        )
    return value


def _headers_of(variable: str) -> dict[str, str]:
    """Return the headers that a variable holds: lines of `Name: value`, or a JSON object."""
    text = _value_of(variable, "headers for the server").strip()
    headers: dict[str, str] = {}
    for name, value in _pairs(text, variable):
        if not _HEADER_NAME.fullmatch(name) or not _PRINTABLE.fullmatch(value):
            raise _no_headers(variable, "a name or a value has characters that are not allowed in a header")
        if name.lower() in _RESERVED:
            raise _no_headers(variable, f"{name} is set by the client itself")
        if name.lower() in {known.lower() for known in headers}:
            raise _no_headers(variable, f"{name} is given twice")
        headers[name] = value
    if not headers:
        raise _no_headers(variable, "it contains no header")
    return headers


def _pairs(text: str, variable: str) -> Iterator[tuple[str, str]]:
    if text.startswith("{"):
        try:
            document: Mapping[str, Any] = json_of(text)
        except ValueError:
            raise _no_headers(variable, "it begins with { but is not JSON") from None
        for name, value in document.items():
            if not isinstance(value, str):
                raise _no_headers(variable, "a value is not a text")
            yield name.strip(), value.strip()
        return
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon:
            raise _no_headers(variable, "a line has no colon")
        yield name.strip(), value.strip()


def _no_headers(variable: str, cause: str) -> UsageError:
    return UsageError(f"the headers in {variable} cannot be sent", cause=cause, remedy=_HEADERS_EXAMPLE)

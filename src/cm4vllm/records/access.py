"""The credentials that a server needs with each request: a key and headers, read from environment variables.

Records hold the names of the variables alone. Every process that sends requests reads the values itself.
"""

import os
import re

import msgspec

from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record

#: The variables that may hold the key when the user names none: vLLM's own, and the one of OpenAI's clients.
KEY_VARIABLES = ("VLLM_API_KEY", "OPENAI_API_KEY")
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

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, token
_PRINTABLE = re.compile(r"[\x20-\x7e\t]*")
_HEADERS_EXAMPLE = """its value is lines such as `X-Tenant: blue`, or a JSON object {"X-Tenant": "blue"}"""


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

    def without_secrets(self, text: str) -> str:
        """Return the text of a server without the key and the headers' values, which some servers repeat."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    def _secrets(self) -> set[str]:
        """Return the values of the headers and their words, as far as they are long enough to be secrets."""
        try:
            values = self.headers().values()
        except UsageError:
            return set()
        return {word for value in values for word in (value, *value.split()) if len(word) >= _SHORTEST}


#: The access to a server that needs only the request itself.
NO_ACCESS = Access()


def _value_of(variable: str, content: str) -> str:
    """Return an environment variable that should contain `content`. Raises UsageError if it is not set."""
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
    pairs = _of_json(text, variable) if text.startswith("{") else _of_lines(text, variable)
    for name, value in ((name.strip(), value.strip()) for name, value in pairs):
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


def _of_json(text: str, variable: str) -> list[tuple[str, str]]:
    """Return name and value of each header of a JSON object. Raises UsageError for anything else."""
    try:
        return list(msgspec.json.decode(text, type=dict[str, str]).items())
    except ValueError:
        raise _no_headers(variable, "it begins with { but is no JSON object of texts") from None


def _of_lines(text: str, variable: str) -> list[tuple[str, str]]:
    """Return name and value of each header of lines. Raises UsageError for anything else."""
    lines = [line.partition(":") for line in text.splitlines() if line.strip()]
    if not all(colon for _, colon, _ in lines):
        raise _no_headers(variable, "a line has no colon")
    return [(name, value) for name, _, value in lines]


def _no_headers(variable: str, cause: str) -> UsageError:
    return UsageError(f"the headers in {variable} cannot be sent", cause=cause, remedy=_HEADERS_EXAMPLE)

"""The access to a server as the user gives it, and the errors of servers that refuse it."""

import os
import re
from urllib.parse import urlsplit

from cm4vllm.common.errors import ServerUnsuitable, UsageError
from cm4vllm.common.host_addresses import is_loopback
from cm4vllm.common.secrets.redaction import vault
from cm4vllm.records.access import KEY_VARIABLES, NO_ACCESS, Access

#: Where `vllm serve` takes from the key that it asks for.
OWN_KEY_VARIABLE = "VLLM_API_KEY"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Unanswered(ServerUnsuitable):
    """A server that gave no answer to the request itself: it asks for a key, is not ready, or redirects elsewhere."""


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

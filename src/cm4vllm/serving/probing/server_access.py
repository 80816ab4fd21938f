"""The access to a server as the user gives it, and the errors of servers that refuse it or cannot be asked."""

import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable, UsageError
from cm4vllm.common.files import open_file
from cm4vllm.common.host_addresses import host_of, is_loopback
from cm4vllm.common.http_requests import AnswerError, NoHttpError
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
    if not (key_env or any(name.lower() == "authorization" for name in access.headers())):
        variable = next((name for name in KEY_VARIABLES if os.environ.get(name, "").strip()), "")
        access = Access(key_env=variable, headers_env=headers_env)
    for value in access.headers().values():  # the run keeps them out of all that it stores, however they are named
        vault().note(access.key_env or access.headers_env, value.removeprefix("Bearer "))
    return access


def own_access() -> Access:
    """Return the access to a server that is started here, which inherits this environment."""
    return Access(key_env=OWN_KEY_VARIABLE if os.environ.get(OWN_KEY_VARIABLE, "").strip() else "")


def unencrypted(access: Access, endpoint: str) -> bool:
    """Return True if a key or header for a server would go over a network unencrypted."""
    parts = urlsplit(endpoint)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "") and access != NO_ACCESS


def refusal(endpoint: str, path: str, status: int, access: Access) -> Unanswered:
    """Return the error for a server that answers 401 or 403."""
    if access.key_env:
        return Unanswered(
            f"the server at {endpoint} refuses the key",
            cause=f"{path}: HTTP {status} with the key in {access.key_env}",
            remedy=f"correct the value of {access.key_env}, or name another variable with "
            "--api_key_env=NAME; if the server needs further headers: --api_headers_env=NAME",
        )
    return Unanswered(
        f"the server at {endpoint} asks for a key",
        cause=f"{path}: HTTP {status}, and no key was sent",
        remedy=f"put it into the environment variable {' or '.join(KEY_VARIABLES)}, or name the variable that holds it "
        "with --api_key_env=NAME; other headers: --api_headers_env=NAME",
    )


def not_measurable(endpoint: str, cause: str, kind: type[ServerUnsuitable] = ServerUnsuitable) -> ServerUnsuitable:
    """Return the error for what answers and is no server of this kind."""
    return kind(
        f"what answers at {endpoint} is not a server that can be measured",
        cause=cause.strip(),
        remedy="point --api_server at a server of OpenAI's completions API, such as `vllm serve`, "
        "with the path that stands before its /v1",
    )


_HANDSHAKE_S = 3.0
#: OpenSSL's reasons where what answers is no TLS; its codes for a certificate of another name or address (X509_V_ERR_
#: in openssl/x509_vfy.h), and how many names of the certificate are shown.
_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
_OTHER_NAME, _NAMES = (62, 64), 8
_CERTIFICATE_REMEDIES = {
    9: "set the clocks of both machines, or have the server's certificate renewed",
    10: "have the server's certificate renewed, or set the clock of this machine",
    **dict.fromkeys(_OTHER_NAME, "give --api_server with a name or address that the certificate is for"),
}


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts the system's certificates and those of `ca_file`. Raises UsageError."""
    tls = ssl.create_default_context()
    if ca_file:
        try:
            with open_file(Path(ca_file)):
                tls.load_verify_locations(ca_file)
        except OSError as error:
            raise UsageError(
                f"cannot read the certificates in {ca_file}",
                cause=error.strerror or str(error),
                remedy="give a file of PEM certificates with --api_server_ca",
            ) from error
    return tls


@contextmanager
def translated_errors(endpoint: str, path: str, timeout_s: float, ca_file: str = "") -> Iterator[None]:
    """Turn the errors of a request into ServerUnreachable, or Unanswered where the answer cannot be used."""
    try:
        yield
    except ssl.SSLError as error:
        raise _no_tls(endpoint, ca_file, error) from error
    except TimeoutError as error:
        raise ServerUnreachable(
            f"{endpoint} does not answer {path}",
            cause=f"no answer within {timeout_s:.0f} s",
            remedy="read the server's log, or wait until it has started",
        ) from error
    except OSError as error:
        require_plain_http(endpoint)
        raise ServerUnreachable(
            f"nothing answers at {endpoint}",
            cause=error.strerror or str(error),
            remedy="start the server first, or correct --api_server",
        ) from error
    except NoHttpError as error:
        require_plain_http(endpoint)
        raise not_measurable(endpoint, f"it does not speak HTTP: {error}", Unanswered) from error
    except AnswerError as error:
        raise not_measurable(endpoint, f"its {path}: {error}", Unanswered) from error


def _no_tls(endpoint: str, ca_file: str, error: ssl.SSLError) -> Unanswered:
    """Return the error for a TLS connection that failed, with the remedy that fits its cause."""
    code = error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else 0
    cause = getattr(error, "verify_message", "") or error.reason or str(error)
    remedy = _CERTIFICATE_REMEDIES.get(
        code,
        "name the file of its certificate's authority with --api_server_ca=FILE, or give a http:// address "
        "if the server has no certificate",
    )
    if code in _OTHER_NAME:
        tls = tls_context(ca_file)
        tls.check_hostname = False
        names = [name for _, name in (_peer_certificate(endpoint, tls) or {}).get("subjectAltName", ())]
        cause = f"its certificate is for {', '.join(map(str, names[:_NAMES])) or 'another name'} ({cause})"
    elif not code and error.reason in _NO_TLS:
        cause, remedy = f"what answers there does not speak TLS ({cause})", "give its http:// address with --api_server"
    return Unanswered(f"no TLS connection to {endpoint}", cause=cause, remedy=remedy)


def require_plain_http(endpoint: str) -> None:
    """Raise Unanswered where a server that was asked in plain HTTP speaks TLS: it closes, or answers anything."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    if endpoint.startswith("http:") and _peer_certificate(endpoint, unchecked) is not None:
        raise Unanswered(
            f"the server at {endpoint} speaks TLS, not plain HTTP",
            cause="it completes a TLS handshake, and gives no usable answer without one",
            remedy="give its https:// address with --api_server",
        )


def _peer_certificate(endpoint: str, tls: ssl.SSLContext) -> Mapping[str, Any] | None:
    """Return the certificate of a server, empty where `tls` does not check it; None where it completes no handshake."""
    parts, host = urlsplit(endpoint), host_of(endpoint)
    with (
        suppress(OSError),
        socket.create_connection((host, parts.port or (443 if parts.scheme == "https" else 80)), _HANDSHAKE_S) as plain,
        tls.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.getpeercert() or {}
    return None

"""A reverse proxy as stands before secured servers: a prefix, a key, a further header, and perhaps a redirect."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from loopback_server import Handler, LoopbackServer


@dataclass
class Gateway(LoopbackServer):
    """Use as a context manager; `endpoint` is its base URL with the prefix, `heads` has what each request began with.

    It passes requests below `prefix` on to `upstream` without it, when they carry `key` and `headers`. One that lacks
    them is answered with 401 and, as some real servers do, with what it carried instead. With `redirect` every request
    is redirected there. What `rule` returns of a request's method, path and body is answered: a status, a body and
    headers; None is passed on. From its request number `fail_from` on it takes no key any more.
    """

    upstream: str
    prefix: str = ""
    key: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    redirect: str = ""
    certificate: str = ""
    fail_from: int = 1 << 30
    rule: Callable[[str, str, bytes], tuple[int, bytes, dict[str, str]] | None] = lambda method, path, body: None
    heads: list[str] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.certificate else ''}://{host}:{self.port}{self.prefix}"

    def __enter__(self) -> Gateway:
        self.start(_Handler)
        if self.certificate:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self.certificate)
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        return self


class _Handler(Handler):
    server_of: Gateway

    def do_GET(self) -> None:
        self._one()

    do_POST = do_GET

    def _one(self) -> None:
        gateway = self.server_of
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        gateway.heads.append(f"{self.requestline}\n{self.headers}")
        wanted = {**gateway.headers, **({"Authorization": f"Bearer {gateway.key}"} if gateway.key else {})}
        lacking = any(self.headers.get(name) != value for name, value in wanted.items())
        if (own := gateway.rule(self.command, self.path, body)) is not None:
            self._answer(own[0], own[1], *own[2].items())
        elif gateway.redirect:
            self._answer(307, b"", ("Location", gateway.redirect + self.path))
        elif lacking or len(gateway.heads) > gateway.fail_from:
            carried = " ".join(self.headers.values()).replace('"', "")
            self._answer(401, f'{{"error": {{"message": "not allowed with {carried}"}}}}'.encode())
        elif not self.path.startswith(f"{gateway.prefix}/"):
            self._answer(404, b'{"detail": "Not Found"}')
        else:
            self._pass_on(self.path.removeprefix(gateway.prefix), body)

    def _answer(self, status: int, data: bytes, *headers: tuple[str, str]) -> None:
        self.send(status, data, "application/json", *headers)

    def _pass_on(self, path: str, body: bytes) -> None:
        parts = urlsplit(self.server_of.upstream)
        upstream = http.client.HTTPConnection(parts.hostname or "", parts.port)
        try:
            upstream.request(self.command, path, body, {"Content-Type": "application/json"})
            answer = upstream.getresponse()
            kind = answer.headers.get("Content-Type", "text/plain")
            if not answer.chunked:
                self.send(answer.status, answer.read(), kind)
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while data := answer.read1(65536):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            upstream.close()

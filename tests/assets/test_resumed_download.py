"""One file over HTTP: who gets its credentials, and how much of an answer is taken."""

import contextlib
import hashlib
import socket
import ssl
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loopback import Files

from cm4vllm.assets.downloads import resumed_download
from cm4vllm.assets.downloads.mlcommons import read_manifest
from cm4vllm.assets.downloads.resumed_download import fetch, part_of
from cm4vllm.common.errors import DownloadError

BODY = b"weights " * 4000
DIGEST = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


class Redirecting(Files):
    """/to/<scheme>/<port> redirects there, everything else is the file; `more` bytes are sent after it without end."""

    more = b""

    def answer(self, path):
        _, _, where = path.partition("/to/")
        if where:
            scheme, port = where.split("/")
            self.send(302, Location=f"{scheme}://localhost:{port}/file")
        elif self.more:
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.wfile.write(BODY)
                while True:
                    self.wfile.write(self.more)
                    type(self).sent += len(self.more)
        else:
            self.send(200, BODY)


class BothProtocols(ThreadingHTTPServer):
    """Speaks TLS with those who begin with it, and plain HTTP with others, at one port."""

    daemon_threads = True
    block_on_close = False

    def get_request(self):
        connection, address = super().get_request()
        if connection.recv(1, socket.MSG_PEEK) == b"\x16":
            connection = self.tls.wrap_socket(connection, server_side=True)
        return connection, address


@pytest.fixture
def server(certificate, monkeypatch):
    handler = type("One", (Redirecting,), {"seen": [], "sent": 0})
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("NO_PROXY", "localhost")
    with BothProtocols(("127.0.0.1", 0), handler) as here:
        here.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        here.tls.load_cert_chain(certificate)
        thread = threading.Thread(target=here.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        handler.port = here.server_port
        yield handler
        here.shutdown()
        thread.join()


def fetched(address, path):
    secrets = {"Authorization": "Bearer secret", "cf-access-token": "secret"}
    fetch(address, path, len(BODY), DIGEST, secrets, lambda _: None)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("begin", "to", "told"),
    [("https", "https", True), ("http", "http", True), ("https", "http", False), ("http", "https", False)],
)
def test_credentials_stay_with_the_host_and_the_protocol_they_were_given_for(server, tmp_path, begin, to, told):
    address = f"{begin}://localhost:{server.port}/to/{to}/{server.port}"
    assert fetched(address, tmp_path / "file") == BODY
    (_, first, given), (_, second, passed_on) = server.seen
    assert (first, second) == (f"/to/{to}/{server.port}", "/file")
    assert given["Authorization"] == "Bearer secret"
    assert ("secret" in str(passed_on)) == told


def test_another_port_is_another_host_and_is_asked_for_the_rest_alone(server, tmp_path):
    part_of(tmp_path / "file").write_bytes(BODY[:100])
    other = type("Other", (Redirecting,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), other) as there:
        thread = threading.Thread(target=there.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            address = f"http://localhost:{server.port}/to/http/{there.server_port}"
            assert fetched(address, tmp_path / "file") == BODY
        finally:
            there.shutdown()
            thread.join()
    ((_, _, headers),) = other.seen
    assert "secret" not in str(headers)
    assert headers["Range"] == "bytes=100-"


def test_a_body_longer_than_promised_is_not_taken(server, tmp_path):
    server.more = b"x" * 2**16
    with pytest.raises(DownloadError, match="longer than its publisher says"):
        fetched(f"http://localhost:{server.port}/file", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_list_of_files_without_end_is_not_taken(server, monkeypatch):
    monkeypatch.setattr(resumed_download, "_LONGEST_TEXT", 10**6)
    server.more = b"x" * 2**16
    with pytest.raises(DownloadError, match="cannot be read") as caught:
        read_manifest(f"http://localhost:{server.port}/some.uri")
    assert "longer than 1.0 MB" in caught.value.cause

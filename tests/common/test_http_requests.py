"""The bounded HTTP client against real servers on the loopback interface, most of which misbehave."""

import contextlib
import json
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cm4vllm.common import http_requests as module
from cm4vllm.common.host_addresses import PROXY_VARIABLES, through_proxy, without_user
from cm4vllm.common.http_requests import AnswerError, HttpClient, NoHttpError


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def raw_server(answer, *, tls=None):
    """A server whose connections are given to `answer` after the head of a request was read; gives its URL."""
    heads = []

    def serve(connection):
        with (
            contextlib.suppress(OSError),
            connection,
            tls.wrap_socket(connection, server_side=True) if tls else connection as secured,
        ):
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    if not (data := secured.recv(65536)):
                        return
                    head += data
                heads.append(head.decode())
                if answer(secured, head.decode()) is not True:
                    return

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}", heads
        listener.shutdown(socket.SHUT_RDWR)


def whole(body=b"ok", status="200 OK", *headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def asked(url, total_s=2.0, **more):
    with HttpClient() as client:
        return client.answer("GET", url, headers={}, total_s=total_s, **more)


def bytes_now_and_then(*first):
    def answer(connection, head):
        connection.sendall(b"".join(first))
        while True:
            connection.sendall(b"x")
            time.sleep(0.1)

    return answer


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", AnswerError),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", TimeoutError),
        (b"HTTP/1.1 ", TimeoutError),
    ],
)
def test_one_deadline_holds_over_the_whole_answer(begin, error):
    with raw_server(bytes_now_and_then(begin)) as (url, _):
        began = time.monotonic()
        with pytest.raises(error):
            asked(url, total_s=0.6)
        assert time.monotonic() - began < 20


def test_chunks_without_end_are_held_by_the_deadline_too():
    def answer(connection, head):
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"1\r\nx\r\n")
            time.sleep(0.1)

    with raw_server(answer) as (url, _), pytest.raises(AnswerError, match="no end within 1 s"):
        asked(url, total_s=0.6)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
    ],
)
def test_an_answer_without_end_takes_a_bounded_number_of_bytes(head):
    sent = []

    def answer(connection, _):
        connection.sendall(head)
        while True:
            sent.append(connection.send(b"x" * 65536))

    with raw_server(answer) as (url, _), pytest.raises(AnswerError):
        asked(url, total_s=30, most_bytes=10**6)
    assert sum(sent) < 20 * 10**6


def test_an_answer_of_just_the_bound_is_taken():
    with raw_server(lambda connection, _: connection.sendall(whole(b"x" * 1000))) as (url, _):
        assert len(asked(url, most_bytes=1000).body) == 1000
        with pytest.raises(AnswerError, match="longer than 999 B"):
            asked(url, most_bytes=999)


def test_a_download_may_take_long_and_not_stand_still(monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 100)

    def answer(connection, head):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(10):
            connection.sendall(b"x" * 100)
            time.sleep(0.15)
        if "/stops" in head:
            time.sleep(30)

    def size(url, length):
        with HttpClient() as client, client.opened("GET", url, headers={}, total_s=0.8, renewed=True) as opened:
            return sum(map(len, opened.pieces))

    with raw_server(answer) as (url, _):
        assert size(url, 1000) == 1000
    with (
        raw_server(bytes_now_and_then(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")) as (url, _),
        pytest.raises(AnswerError, match="fewer than 100 B came"),
    ):
        size(url, 1000)


@pytest.mark.parametrize(
    "first", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x15\x03\x03\x00\x02\x02\x28", b"-ERR unknown\r\n", b"\n"]
)
def test_what_is_no_http_is_seen_at_its_first_bytes(first):
    def answer(connection, _):
        connection.sendall(first)
        connection.recv(2**16) and connection.recv(1)  # until the client closes the connection

    began = time.monotonic()
    with raw_server(answer) as (url, _), pytest.raises(NoHttpError, match="it begins with"):
        asked(url, total_s=60)
    assert time.monotonic() - began < 30


def test_an_answer_that_ends_too_early_is_none():
    with (
        raw_server(lambda connection, _: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")) as (
            url,
            _,
        ),
        pytest.raises(AnswerError),
    ):
        asked(url)


def test_a_connection_that_is_closed_without_an_answer_is_an_error_of_the_connection():
    with raw_server(lambda connection, _: None) as (url, _), pytest.raises(ConnectionError):
        asked(url)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
def test_answers_are_asked_for_as_they_are_and_not_unpacked_otherwise(encoding):
    packed = whole(b"\x1f\x8b", "200 OK", f"Content-Encoding: {encoding}")
    refused = pytest.raises(AnswerError, match=f"compressed \\({encoding}\\)")
    with raw_server(lambda connection, _: connection.sendall(packed)) as (url, heads), refused:
        asked(url)
    assert "Accept-Encoding: identity" in heads[0]
    error = whole(b"\x1f\x8b", "404 Not Found", f"Content-Encoding: {encoding}")
    with raw_server(lambda connection, _: connection.sendall(error)) as (url, _):
        assert asked(url)[0::2] == (404, b"")


def redirecting(status, target):
    def answer(connection, head):
        moved = whole(b"", f"{status} moved", f"Location: {target}")
        connection.sendall(moved if " /from" in head else whole(head.split()[1].encode()))
        return True

    return answer


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("target", ["/to/", "to/", "/to/?a=b"])
def test_a_request_without_a_body_follows_a_redirect_on_the_same_server(status, target):
    with raw_server(redirecting(status, target)) as (url, heads), HttpClient() as client:
        answer = client.answer("GET", f"{url}/from", headers={"Authorization": "Bearer k"}, total_s=2)
    assert answer.body.startswith(b"/to/")
    assert [("Bearer k" in head) for head in heads] == [True, True]


@pytest.mark.parametrize("target", ["http://localhost:1/to", "https://127.0.0.1/to", "//elsewhere/to", "ftp://a/b"])
def test_no_redirect_is_followed_to_another_scheme_host_or_port(target):
    with raw_server(redirecting(307, target)) as (url, heads):
        assert _status_or_refusal(f"{url}/from") == 307 or target.startswith("ftp")
    assert len(heads) == 1


def _status_or_refusal(url):
    with contextlib.suppress(AnswerError):
        return asked(url).status


def test_a_request_with_a_body_follows_no_redirect():
    with raw_server(redirecting(307, "/to")) as (url, heads), HttpClient() as client:
        answer = client.answer("POST", f"{url}/from", headers={}, body=b"{}", total_s=2)
    assert (answer.status, len(heads)) == (307, 1)


def test_redirects_without_end_end():
    def answer(connection, head):
        number = int(head.split()[1].rpartition("/")[2])
        connection.sendall(whole(b"", "302 Found", f"Location: /{number + 1}"))
        return True

    with raw_server(answer) as (url, heads), pytest.raises(AnswerError, match="more than 10 redirects"):
        asked(f"{url}/0")
    assert len(heads) == 10


def test_a_connection_is_kept_and_made_again_when_the_server_closed_it():
    def answer(connection, head):
        connection.sendall(whole())
        return "/last" not in head

    with raw_server(answer) as (url, heads), HttpClient() as client:
        for path in ("/a", "/last", "/b"):
            assert client.answer("GET", url + path, headers={}, total_s=2).status == 200
            time.sleep(0.1)
    assert len(heads) == 3


@contextlib.contextmanager
def proxy(status):
    """A proxy that answers every request with a status; gives its address and what it was asked."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            seen.append((self.requestline, dict(self.headers)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_CONNECT = answer

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", seen
        server.shutdown()


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("status", [403, 407, 502])
def test_a_proxy_that_refuses_is_named_without_its_password(name, status, monkeypatch):
    with proxy(status) as (address, seen):
        monkeypatch.setenv(name, f"http://user:word@{address}")
        with HttpClient(proxies=True) as client, pytest.raises(OSError, match=f"{status}") as caught:
            client.answer("GET", "https://hub.invalid/a", headers={}, total_s=2)
    assert f"through the proxy http://{address} (HTTPS_PROXY)" in str(caught.value)
    assert "word" not in str(caught.value)
    assert seen[0][0].startswith("CONNECT hub.invalid:443")
    assert seen[0][1]["Proxy-Authorization"].startswith("Basic ")


def test_a_proxy_that_nothing_listens_at_is_named(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{taken.getsockname()[1]}")
        with HttpClient(proxies=True) as client, pytest.raises(OSError, match="refused through the proxy"):
            client.answer("GET", "https://hub.invalid/a", headers={}, total_s=2)


def test_a_proxy_is_used_only_where_it_is_asked_for_and_not_for_excluded_hosts(monkeypatch):
    with proxy(200) as (address, seen), raw_server(lambda connection, _: connection.sendall(whole())) as (url, _):
        monkeypatch.setenv("http_proxy", f"http://{address}")
        assert asked(url).body == b"ok"
        with HttpClient(proxies=True) as client:
            assert client.answer("GET", url, headers={}, total_s=2).body == b""
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            assert client.answer("GET", url, headers={}, total_s=2).body == b"ok"
    assert len(seen) == 1


def test_a_proxy_of_an_unknown_kind_is_an_error_with_its_name(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with HttpClient(proxies=True) as client, pytest.raises((OSError, AnswerError), match="socks"):
        client.answer("GET", "https://hub.invalid/a", headers={}, total_s=2)


def test_words_for_a_proxy(monkeypatch):
    assert through_proxy("https://a") == ""
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    assert through_proxy("https://a/b") == " through the proxy http://proxy.example:3128 (HTTPS_PROXY)"
    assert through_proxy("http://a/b") == ""
    assert without_user("http://u:p@h/a@b") == "http://h/a@b"


def test_a_unix_socket(tmp_path):
    path = tmp_path / "a.sock"
    with HttpClient(unix_socket=str(path)) as client:
        with pytest.raises(FileNotFoundError):
            client.answer("GET", "http://localhost/v1", headers={}, total_s=2)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()

            def serve():
                for _ in range(2):
                    connection, _ = listener.accept()
                    with connection:
                        if head := connection.recv(1000):
                            connection.sendall(whole(json.dumps(head.decode().split()[1]).encode()))

            thread = threading.Thread(target=serve)
            thread.start()
            assert client.answer("GET", "http://localhost/v1", headers={}, total_s=2).body == b'"/v1"'
            thread.join()


def test_a_certificate_is_checked_and_a_handshake_without_end_is_held(certificate):
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    with raw_server(lambda connection, _: connection.sendall(whole()), tls=server) as (url, _):
        with HttpClient(tls=ssl.create_default_context(cafile=certificate)) as client:
            assert client.answer("GET", url, headers={}, total_s=5).body == b"ok"
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(url, total_s=5)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        asked(f"https://127.0.0.1:{silent.getsockname()[1]}", total_s=0.5)


@pytest.mark.parametrize("url", ["http://", "ftp://a", "http://a:99999/", "http://[::1/", "//a/b"])
def test_what_is_no_address_is_an_error_and_no_request(url):
    with pytest.raises(AnswerError, match="is not the address"):
        asked(url)

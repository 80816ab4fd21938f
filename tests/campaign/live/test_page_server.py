"""The live page: the answers and refusals of its server, and the page in a browser."""

import json
import socket
import urllib.error
import urllib.request
from http.client import HTTPConnection

import pytest
from states import SEARCH, status

from browser import chromium
from cm4vllm.campaign.live import monitor
from cm4vllm.campaign.live.monitor import Page, _without_secrets
from cm4vllm.campaign.live.page_address import Address
from cm4vllm.campaign.live.panels import view_of
from cm4vllm.campaign.live.status import JobState
from cm4vllm.common.errors import PortInUse, UsageError


@pytest.fixture
def page():
    page = Page(Address.parse("0"))
    yield page
    page.close()


def show(page, shown):
    page.show(*_without_secrets(shown))


def get(page, path="", **headers):
    request = urllib.request.Request(page.address.url + path, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers


def test_it_serves_the_view_and_the_status_as_they_are_now(page):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(page, "view.json")
    for shown in (status(), status(state=JobState.DONE)):
        show(page, shown)
        assert json.loads(get(page, "status.json")[0])["state"] == shown.state
        view = json.loads(get(page, "view.json")[0])
        assert view["state"].startswith(shown.state)
        assert view["ended"] == (shown.state is JobState.DONE)


def test_nothing_is_fetched_from_outside_and_no_script_but_its_own_runs(page):
    pages = [get(page, path) for path in ("", "page.js", "page.css")]
    assert not any("//" in text.replace("// ", "") for text, _ in pages)
    assert "innerHTML" not in pages[1][0]
    assert all("default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"] for _, headers in pages)


@pytest.mark.parametrize("path", ["../monitor.py", "files/page.js", "status.jsonx"])
def test_it_serves_no_other_file(page, path):
    show(page, status())
    connection = HTTPConnection("127.0.0.1", page.address.port, timeout=10)
    connection.request("GET", f"/{path}")
    assert connection.getresponse().status == 404
    connection.close()


@pytest.mark.parametrize(
    ("host", "answer"),
    [("localhost", 200), ("[::1]:80", 200), ("localhost.evil.example", 403), ("0.0.0.0", 403), ("", 403)],
)
def test_on_loopback_it_answers_under_the_names_of_loopback_alone(page, host, answer):
    connection = HTTPConnection("127.0.0.1", page.address.port, timeout=10)
    connection.request("GET", "/", headers={"Host": host})
    assert connection.getresponse().status == answer
    connection.close()


def test_loopback_is_what_a_port_alone_means():
    assert Address.parse("8080") == Address("127.0.0.1", 8080)
    assert Address.parse("0.0.0.0:80") == Address("0.0.0.0", 80)
    assert Address.parse("[::1]:80").url == "http://[::1]:80/"
    for text, loopback in (("80", True), ("[::1]:80", True), ("localhost:80", True), ("10.1.2.3:80", False)):
        assert Address.parse(text).is_loopback is loopback
    for wrong in ("http", "-1", "70000", "host:", "²"):
        with pytest.raises(UsageError, match=f"--serve={wrong}"):
            Address.parse(wrong)


def test_a_port_that_is_in_use_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUse, match="cannot be served"):
        Page(Address("127.0.0.1", taken.getsockname()[1]))
    with pytest.raises(UsageError, match="cannot be served"):
        Page(Address("192.0.2.1", 0))


def test_in_a_browser_it_updates_itself_and_logs_no_error(page, tmp_path, monkeypatch):
    show(page, status(run=None, doing="<script>document.title = 1</script>"))
    read = []

    def view(shown, age_s):
        if not read:  # from the second reading on, which in the browser's time may follow at once
            show(page, status(search=SEARCH))
        read.append(shown)
        return view_of(shown, age_s)

    monkeypatch.setattr(monitor, "view_of", view)
    done = chromium(tmp_path, "--window-size=1000,1000", "--virtual-time-budget=4000", "--dump-dom", page.address.url)
    for part in ("running, 6:45", "12,340 of 30,012", "271 passes, 301.2 fails", "<progress", "passes so far"):
        assert part in done.stdout, part
    assert "CONSOLE" not in done.stderr, done.stderr
    assert read[0].run is None

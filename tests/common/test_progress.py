"""The messages on a terminal, tested with a pseudo-terminal."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from cm4vllm.common.progress import Step, warn, warnings


@pytest.fixture
def terminal():
    """Yield a stream that is a terminal, and a function that returns what was written to it until a text is there."""
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as stream:

        def written(expected: str) -> str:
            data, deadline = b"", time.monotonic() + 30
            while expected.encode() not in data and time.monotonic() < deadline:
                if select.select([reader], [], [], 0.3)[0]:
                    data += os.read(reader, 65536)
            return data.decode(errors="replace")

        yield stream, written
    os.close(reader)


def shown_of(terminal, title: str, text: str, expected: str) -> str:
    stream, written = terminal
    step = Step(title, stream)
    try:
        step.update(text)
        return written(expected)  # the live line is written by a thread of its own
    finally:
        step.stop()


def test_brackets_in_a_servers_log_are_text_not_markup(terminal):
    expected = "starting vLLM with /models/a[/bold]: GET [/x] took [red]long"
    text = shown_of(terminal, "starting vLLM with /models/a[/bold]", "GET [/x] took [red]long", expected)
    assert expected in text


def test_escapes_in_a_servers_log_do_not_reach_the_terminal(terminal):
    expected = "loading shard 2\\x07"
    text = shown_of(terminal, "starting", "loading\x1b]0;owned\x07\x1b[2J shard\r2\x07", expected)
    assert "owned" not in text
    assert "\x1b[2J" not in text
    assert expected in text


def test_the_note_is_shown_with_it(terminal):
    stream, written = terminal
    step = Step("running", stream)
    step.note = "[/y]"
    step.update("1 of 2")
    try:
        assert "running: 1 of 2; [/y]" in written("running: 1 of 2; [/y]")
    finally:
        step.stop()


def test_a_terminal_that_has_gone_does_not_end_the_job(tmp_path):
    reader, writer = pty.openpty()
    code = (
        "import os, sys\nfrom cm4vllm.common.progress import say\nfrom cm4vllm.common.secrets.redaction import Vault\n"
        "with Vault().guarded_output():\n    say('before')\n    sys.stdin.readline()\n    say('after')\n"
        f"    open({str(tmp_path / 'done')!r}, 'w').close()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=writer, stderr=writer)
    os.close(writer)
    said = b""
    while b"before" not in said:
        said += os.read(reader, 65536)
    os.close(reader)
    process.communicate(b"\n", timeout=30)
    assert process.returncode == 0
    assert (tmp_path / "done").exists()


def test_the_lines_of_a_warning_are_kept_apart_where_it_is_shown_on_one(capsys):
    warn("not reached\n  cause:  no network\n\n  remedy: give it")
    assert warnings()[-1] == "not reached; cause: no network; remedy: give it"
    assert "WARNING: not reached\n" in capsys.readouterr().out

"""The messages on a terminal, tested with a pseudo-terminal."""

import os
import pty
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cm4vllm.common.errors import ServerDied
from cm4vllm.common.progress import Step, say, say_text, warn, warnings
from cm4vllm.common.repetition import repeated
from cm4vllm.common.terminal_text import columns, first_of, printable, spelled_out, whole_number


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


# --- text of other programs on its way to a terminal


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("plain [bold] text", "plain [bold] text"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;an unfinished one\nnext line", "\nnext line"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("a bare \x1b", "a bare \\x1b"),
        ("bell\x07 and backspace\x08", "bell\\x07 and backspace\\x08"),
        ("over\rwritten", "over\nwritten"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("half a pair \udc80", "half a pair \\udc80"),
        ("tab\there", "tab\there"),
    ],
)
def test_what_a_terminal_would_obey_is_left_out_or_spelled(foreign, shown):
    assert printable(foreign) == shown


@settings(deadline=None)
@given(st.text(alphabet=st.one_of(st.sampled_from("\x1b\x9b\x9d[]0;m\x07\\"), st.characters())))
def test_nothing_that_a_terminal_obeys_is_left_whatever_the_text(text):
    shown = printable(text)
    assert all(char.isprintable() or not char.isascii() or char in "\n\t" for char in shown)
    assert not set(shown) & set(map(chr, [*range(0x80, 0xA0), 0x1B, 0x202E, 0x2066]))
    shown.encode()
    assert printable(shown) == shown


def test_a_name_is_one_line_with_nothing_left_out():
    assert spelled_out("a b") == "a b" and spelled_out("caf\u00e9") == "caf\u00e9"
    assert spelled_out("a\nb\tc\x1b[2J\u2028\udcff") == "a\\nb\\tc\\x1b[2J\\u2028\\xff"


@settings(deadline=None)
@given(st.text())
def test_a_name_stays_one_line_whatever_it_is(text):
    assert len(spelled_out(text).splitlines()) <= 1
    assert spelled_out(spelled_out(text)) == spelled_out(text)
    spelled_out(text).encode()


@pytest.mark.parametrize(
    ("between", "text"), [(", ", "a, b and 2 more"), ("\n", "a\nb\nand 2 more")], ids=["words", "lines"]
)
def test_the_first_of_many_are_named_and_the_others_counted(between, text):
    assert first_of(["a", "b", "c", "d"], 2, between) == text
    assert first_of(["a", "b"], 2, between) == between.join("ab")


def test_what_is_said_and_an_errors_text_are_cleaned(capsys):
    say("server: \x1b]0;title\x07\x1b[31mdead\x07")
    say_text("\x1b[2Jgone")
    assert capsys.readouterr().out.splitlines()[0].endswith("] server: dead\\x07")
    error = ServerDied("\x1b[1mit ended", cause="\x1b[2Jits log\nsecond \x9bmline", remedy="look\x08")
    assert "\x1b" not in str(error)
    assert "\x9b" not in str(error)
    assert "\x08" not in str(error)
    assert str(error).splitlines()[2].strip() == "second line"


def test_columns_are_aligned_and_numbers_to_the_right() -> None:
    rows = [("name", "n", "why"), ("a", "1,000", ""), ("long name", "2", "so")]
    assert columns(rows, numbers=(1,)) == ["name           n  why", "a          1,000", "long name      2  so"]


def test_no_digits_beyond_ascii_are_taken_for_a_number():
    """`²`.isdigit() is true, and int() refuses it; a number from a user or a file is read by whole_number()."""
    sources = Path(__file__).resolve().parents[2] / "src"
    places = [
        f"{path.relative_to(sources)}:{number}"
        for path in sorted(sources.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "isdigit" in line and "isascii" not in line
    ]
    assert places == []
    assert [whole_number(text) for text in ("²", "٣", "5", " 7 ", "1_0", "9" * 5000)] == [None, None, 5, 7, None, None]


# --- calls at intervals: they go on through the block, end with it, and one that hangs does not keep it


def test_a_function_is_called_until_the_block_ends():
    calls = []
    with repeated(lambda: calls.append(threading.current_thread().name), 0.02, "samples"):
        deadline = time.monotonic() + 30
        while len(calls) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    count = len(calls)
    assert count >= 3 and set(calls) == {"samples"}
    time.sleep(0.1)
    assert len(calls) == count


def test_the_calls_end_with_a_block_that_fails():
    calls = []
    with pytest.raises(ValueError), repeated(lambda: calls.append(1), 60, "samples"):
        raise ValueError
    assert calls == []  # the first call comes after the interval


def test_a_call_that_hangs_is_not_waited_for_longer_than_allowed():
    hangs = threading.Event()
    begin = time.monotonic()
    with repeated(lambda: hangs.wait(300), 0.01, "samples", end_s=0.1):
        time.sleep(0.1)
    assert time.monotonic() - begin < 60
    hangs.set()

import json
import os
import pty
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from cm4vllm.common.units import size_text
from cm4vllm.engine.cache import cache_commands
from cm4vllm.engine.cache.cache_commands import age_text, size_of

KEPT = (
    "def preprocess(i): __import__('pathlib').Path('made').write_bytes(bytes(5000)); "
    "return {'return': 0, 'version': '1.2'}\n"
)


@pytest.fixture
def two(home):
    for name in ("one", "two"):
        home.script(f"get,{name}", {"cache": True, "new_env_keys": ["CM_X"], "env": {"CM_X": name}}, customize=KEPT)
        home.run(f"get,{name}")
    return home


def test_show_tells_what_made_an_entry_its_size_and_its_age(two):
    page = two.done("show", "cache", "--tags=get,one", "--env").stdout
    entry = next(path for path in two.entries() if "one" in (path / "_cm.json").read_text())
    for text in (
        "* Tags: get,one",
        f"  Path: {entry}",
        "  Version: 1.2",
        "Made by: get-one",
        "kB",
        "CM_X=one",
        "1 entry, ",
    ):
        assert text in page
    assert "get,two" not in page
    assert "2 entries" in two.done("show", "cache").stdout
    data = json.loads(two.cli("show", "cache", "--tags=get,one", "--out=json").stdout)["entries"]
    assert data[0]["bytes"] == size_of(entry) > 5000


def test_find_prints_paths_alone_where_a_program_reads(two):
    lines = two.done("find", "cache", "--tags=get").stdout.splitlines()
    assert sorted(lines) == [str(path) for path in two.entries()]
    assert "nothing is cached" in two.done("show", "cache", "--tags=none").stdout


def test_remove_by_tags(two):
    done = two.done("rm", "cache", "--tags=get,one", "-f")
    assert done.returncode == 0
    assert done.stdout.startswith("Deleting CM artifact in ")
    assert len(two.entries()) == 1
    again = two.done("rm", "cache", "--tags=get,one", "-f")
    assert again.returncode == 16
    assert "artifact(s) not found" in again.stderr
    assert two.done("rm", "cache", "-f").returncode == 0
    assert two.done("rm", "cache", "-f").returncode == 0
    assert two.entries() == []
    assert two.done("find", "cache").stdout == ""


def test_an_entry_that_is_renewed_hides_no_other_one(two):
    begun = two.work / "begun"
    two.script("make", {"cache": True}, run='[ -z "$CM_WAIT" ] || { touch "$CM_WAIT"; sleep 60; }\n')
    two.run("make")
    process = two.start("run", "script", "--tags=make", "--renew", f"--env.CM_WAIT={begun}")
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.02)
    for _ in ("while it is made", "after a kill"):
        shown = two.done("show", "cache")
        assert "2 entries, " in shown.stdout, shown.stderr
        assert len(two.done("find", "cache").stdout.splitlines()) == 2
        process.kill()
        process.communicate(timeout=30)
    assert two.done("rm", "cache", "--tags=get,two", "-f").returncode == 0
    two.run("make")
    assert "2 entries, " in two.done("show", "cache").stdout


def test_nothing_is_removed_where_nobody_can_be_asked(two):
    done = two.done("rm", "cache", "--tags=get")
    assert done.returncode == 20
    assert "add -f" in done.stderr
    assert len(two.entries()) == 2


@pytest.fixture
def asking(two):
    """Yield the process of `cm rm cache` that asks for a confirmation, and the terminal at which it is answered."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cmind.cli", "rm", "cache", "--tags=get"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=two.work,
        env=two.env,
    )
    yield process, ours
    for handle in (ours, theirs):
        os.close(handle)


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 2), (b"\n", 2), (b"\x04", 2), (b"y\n", 0)])
def test_a_person_is_asked_once(two, asking, answer, left):
    process, terminal = asking
    os.write(terminal, answer)
    output, _ = process.communicate(timeout=60)
    assert output.count("(y/N)") == 1
    assert "Remove 2 entries, " in output
    assert process.returncode == 0
    assert len(two.entries()) == left


def test_ctrl_c_at_the_question_removes_nothing_and_is_no_traceback(two, asking):
    process, _ = asking
    asked = ""
    while "(y/N)" not in asked:
        asked += process.stdout.read(1)
    while psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:
        time.sleep(0.01)  # a signal just before Python reads has no effect until something is typed
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "\nCM error: stopped by Ctrl-C\n")
    assert len(two.entries()) == 2


def test_sizes_and_ages_in_words(monkeypatch):
    assert [size_text(size) for size in (0, 999, 1000, 12_345_678, 2_450_549_198)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "12.3 MB",
        "2.5 GB",
    ]
    now = time.time()
    monkeypatch.setattr(cache_commands, "time", SimpleNamespace(time=lambda: now))
    assert [age_text(now - seconds) for seconds in (5.5, 300, 7300, 200_000)] == ["5 s", "5 min", "2 h", "2 days"]

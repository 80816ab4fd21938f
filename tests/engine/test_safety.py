"""The invariants of every run, also of one that fails: exact values, kept secrets, confined paths."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from cm4vllm.engine.run.shell_environment import process_environment

# --- exact values ----------------------------------------------------------------------------------------------------

NASTY = [
    *(chr(n) for n in range(1, 128)),
    *"äß€漢😀\u2028\u0085\u00a0\ufeff",
    "$(",
    "${",
    "\r\n",
    "$HOME",
    "<<<",
    ">>>",
    "%s",
    "*",
    "~",
    "!",
    "#",
    "&&",
    "\\n",
    "\\$",
]


@pytest.mark.parametrize("seed", range(5))
def test_any_value_reaches_run_sh_exactly(home, seed):
    choice = random.Random(seed)
    env = {f"CM_V{n}": "".join(choice.choices(NASTY, k=choice.randrange(40))) for n in range(60)}
    env |= {f"CM_C{n}": piece for n, piece in enumerate(NASTY)} | {"CM_LONG": "x'\"" * 30000}
    env = {key: value for key, value in env.items() if "<<<" not in value or ">>>" not in value}
    home.script("one", {"new_env_keys": ["CM_*"]}, run="env -0 > seen\n")
    assert home.run("one", env=env)["return"] == 0
    seen = dict(pair.split(b"=", 1) for pair in (home.work / "seen").read_bytes().split(b"\0") if pair)
    assert {key: seen[key.encode()].decode() for key in env} == env


def test_shell_files_find_modules_as_their_authors_mean_it(home):
    """PYTHONSAFEPATH, which is for our own interpreters, is not handed to those of recipes."""
    home.script("one", run='echo "${PYTHONSAFEPATH-not set}" > seen\n')
    assert home.run("one")["return"] == 0
    assert (home.work / "seen").read_text() == "not set\n"


def test_a_value_that_no_process_can_be_given_is_told(home):
    home.script("one", run="true\n")
    assert home.run("one", env={"CM_X": "a\0b"})["return"] == 20
    result = home.run("one", env={"CM_X": "x" * 200000})
    assert result["return"] == 2
    assert "CM_X has 200000 characters" in result["error"]


def test_bytes_that_are_no_text_survive(monkeypatch):
    monkeypatch.setenv("CM_RAW", os.fsdecode(b"\xff\xfe"))
    assert os.fsencode(process_environment({})["CM_RAW"]) == b"\xff\xfe"


# --- what a failing command tells ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("no-such-tool-here", "install no-such-tool-here"),
        ("kill -KILL $$", "lack of memory"),
        ("echo 'No space left on device' >&2; false", "free disk space"),
        ("echo 'fatal: Could not resolve host: x' >&2; false", "network"),
        ("python3 -c 'import no_such_module'", "the package no_such_module is missing"),
        ("exit 41", "read the log"),
    ],
)
def test_failing_command_is_told_whole(home, command, remedy):
    folder = home.script("one", run=f"for n in $(seq 30); do echo line $n; done\n{command}\nexit $?\n")
    error = home.run("one")["error"]
    assert f"command: bash {folder / 'run.sh'}" in error
    assert remedy in error.partition("remedy:")[2]
    assert "line 1\n" not in error
    log = Path(error.partition("log:")[2].split("\n")[0].strip())
    assert log.read_text().startswith("line 1\nline 2\n")
    assert log.is_relative_to(home.path / "logs")


def test_a_log_stays_only_of_what_failed_and_old_ones_go(home):
    home.script("good", run="echo fine\n")
    home.script("bad", run="echo bad; exit 1\n")
    home.run("good")
    assert not list((home.path / "logs").glob("*"))
    for n in range(60):
        (home.path / "logs" / f"19990101-{n:06}-old.log").write_text("old")
    home.run("bad")
    logs = sorted(path.name for path in (home.path / "logs").iterdir())
    assert len(logs) == 51
    assert logs[-1].endswith("bad.log")


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../victim", "{}/victim", "sub/../../victim"])
@pytest.mark.parametrize("key", ["clean_files", "clean_output_files"])
def test_metas_cannot_remove_files_elsewhere(home, key, name):
    victim = home.work.parent / "victim"
    victim.write_text("precious")
    home.script("one", {key: [name.format(home.work.parent)]})
    assert home.run("one")["return"] == 3
    assert victim.read_text() == "precious"


def test_metas_cannot_run_shell_files_elsewhere(home):
    (home.repo / "script").mkdir(exist_ok=True)
    (home.repo / "evil.sh").write_text("touch pwned\n")
    home.script("one", {"script_name": "../../evil"})
    assert home.run("one")["return"] == 3
    assert not (home.work / "pwned").exists()


# --- killed at any moment --------------------------------------------------------------------------------------------


def test_a_home_is_usable_after_the_engine_was_killed_at_a_hundred_random_moments(home):
    home.script(
        "low",
        {"cache": True, "new_env_keys": ["CM_LOW"]},
        run='echo low > made; echo "CM_LOW=$PWD/made" > tmp-run-env.out\n',
    )
    home.script(
        "top",
        {"cache": True, "new_env_keys": ["CM_*"], "deps": [{"tags": "low", "force_env_keys": ["CM_NAME"]}]},
        run='cat "$CM_LOW" > copy; echo "CM_TOP=$PWD/copy" > tmp-run-env.out\n',
    )
    assert home.run("top", name="warm")["return"] == 0
    begin = time.monotonic()
    assert home.run("top", name="timed")["return"] == 0
    longest = time.monotonic() - begin
    moments = random.Random(20)
    unfinished = 0
    for n in range(100):
        child = os.fork()
        if child == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                home.run("top", name=f"n{n}")
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0, longest))
        os.kill(child, 9)
        _, status = os.waitpid(child, 0)
        unfinished += status == 9
        longest *= 1.1 if status == 9 else 0.9  # about half of the runs end first, whatever the machine has to do
        for entry in home.entries():
            meta = json.loads((entry / "_cm.json").read_bytes())
            assert (entry / "cm-cached-state.json").is_file()
            assert (entry / ("made" if "low" in meta["tags"] else "copy")).read_text() == "low\n"
        json.loads((home.path / "index.json").read_bytes())
        if n % 5 == 4:  # the home serves what was begun, and what was never begun
            for name in (f"n{n}", f"after{n}"):
                result = home.run("top", name=name)
                assert result["return"] == 0, result
                assert Path(result["new_env"]["CM_TOP"]).read_text() == "low\n"
    assert unfinished >= 30, "the moments were too late to mean anything"
    for n in range(100):
        assert home.run("top", name=f"n{n}", silent=True)["return"] == 0
    names = [json.loads((entry / "_cm.json").read_bytes())["tags"] for entry in home.entries()]
    assert len(names) == len({tuple(sorted(tags)) for tags in names})
    strays = [
        path
        for path in (home.path / "repos" / "local" / "cache").iterdir()
        if not path.name.startswith(".") and not (path / "_cm.json").exists()
    ]
    assert strays == []

"""The invariants of every run, also of one that fails: exact values, kept secrets, confined paths."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from cm4vllm.common.secrets.redaction import Vault
from cm4vllm.engine.run.shell_environment import process_environment

# --- exact values ----------------------------------------------------------------------------------------------------

NASTY = [
    *(chr(n) for n in range(1, 128)),
    *"äß€漢😀\u2028\u0085\u00a0\ufeff",
    "$(",
    "${",
    "\r\n",
    *"$HOME <<< >>> %s * ~ ! # &&".split(),
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


def test_a_home_is_usable_after_the_engine_was_killed_at_many_random_moments(home):
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
    for n in range(50):
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
    assert unfinished >= 15, "the moments were too late to mean anything"
    for n in range(50):
        assert home.run("top", name=f"n{n}", silent=True)["return"] == 0
    names = [json.loads((entry / "_cm.json").read_bytes())["tags"] for entry in home.entries()]
    assert len(names) == len({tuple(sorted(tags)) for tags in names})
    strays = [
        path
        for path in (home.path / "repos" / "local" / "cache").iterdir()
        if not path.name.startswith(".") and not (path / "_cm.json").exists()
    ]
    assert strays == []


# --- secrets of a run: used as they are given, and kept out of all that a run leaves


TOKEN = "hf_" + "Zq9" * 9 + "\"'$x"
DECLARED = "declared-by-the-meta-77"

SECRETIVE = {
    "cache": True,
    "input_mapping": {"hf_token": "HF_TOKEN", "login": "CM_LOGIN"},
    "secret_env_keys": ["CM_LOGIN"],
    "new_env_keys": ["*"],
    "new_state_keys": ["*"],
    "env": {"CM_URL": "https://user:<<<HF_TOKEN>>>@host/"},
    "print_env_at_the_end": {"CM_URL": "url"},
}
HOOK = """
import subprocess, sys
def preprocess(i):
    env = i["env"]
    i["state"]["seen"] = {"text": "token " + env["HF_TOKEN"], "login": [env["CM_LOGIN"]]}
    print("hook has", env["HF_TOKEN"], env["CM_LOGIN"])
    print("hook tells", env["HF_TOKEN"], file=sys.stderr)
    return {"return": 0}
def postprocess(i):
    if i["env"].get("CM_FAIL") == "hook":
        raise ValueError("refused " + i["env"]["HF_TOKEN"])
    return {"return": 0, "add_extra_cache_tags": ["tag-" + i["env"]["CM_LOGIN"]]}
"""
SHELL = """
echo "shell has $HF_TOKEN and $CM_LOGIN"
tr '\\0' ' ' < /proc/$$/cmdline >> "$CM_CMDLINES"; tr '\\0' ' ' < /proc/$PPID/cmdline >> "$CM_CMDLINES"
test "$HF_TOKEN" = "$CM_EXPECTED" || exit 3
if [ "$CM_FAIL" = run ]; then exit 9; fi
echo made > made
"""


def files_with(folder: Path, secret: str) -> list[Path]:
    escaped = json.dumps(secret)[1:-1]
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(text.encode() in path.read_bytes() for text in {secret, escaped})
    ]


@pytest.mark.parametrize(
    ("flags", "fail", "code"),
    [
        (["--repro", "--save_env", "--dump_version_info", "--debug_script", "--print_env"], "", 0),
        (["--repro", "--dump_version_info", "--debug_script"], "run", 2),
        (["-v"], "hook", 3),
        (["--out=json", "--dirty"], "", 0),
        (["-j"], "run", 2),
        (["-j"], "hook", 3),
        (["--save_to_json=result.json", "--print_readme"], "", 0),
    ],
)
def test_secrets_are_in_nothing_that_a_run_leaves(home, flags, fail, code):
    script = home.script("one", SECRETIVE, run=SHELL, customize=HOOK)
    home.script("outer", {"deps": [{"tags": "one"}], "new_env_keys": ["*"]})
    lines = home.path.parent / "cmdlines"
    done = home.cli(
        "run",
        "script",
        "--tags=outer",
        f"--env.CM_FAIL={fail}",
        f"--env.CM_CMDLINES={lines}",
        *flags,
        HF_TOKEN=TOKEN,
        CM_LOGIN=DECLARED,
        CM_EXPECTED=TOKEN,
        TMPDIR=str(home.path.parent),
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert script.is_dir()
    for secret in (TOKEN, DECLARED):
        assert files_with(home.path.parent, secret) == []
        assert secret not in done.stdout + done.stderr
        assert json.dumps(secret)[1:-1] not in done.stdout + done.stderr
    assert lines.read_text()
    if not code:
        assert "(secret)" in done.stdout + done.stderr


def test_a_script_that_keeps_secrets_is_found_in_the_cache_all_the_same(home):
    home.script("one", SECRETIVE, run=SHELL, customize=HOOK)
    words = ("run", "script", "--tags=one", f"--env.CM_CMDLINES={home.path.parent / 'lines'}")
    given = {"HF_TOKEN": TOKEN, "CM_LOGIN": DECLARED, "CM_EXPECTED": TOKEN}
    assert home.cli(*words, **given).returncode == 0
    done = home.cli(*words, **given)
    assert "from the cache" in done.stdout
    assert len(home.entries()) == 1


def test_a_secret_that_is_typed_is_remarked(home):
    home.script("one")
    done = home.cli("run", "script", "--tags=one", f"--env.HF_TOKEN={TOKEN}")
    assert "--env.HF_TOKEN is visible in the list of processes" in done.stdout
    assert TOKEN not in done.stdout


def test_a_secret_that_is_typed_does_what_the_variable_would(home):
    home.script(
        "one",
        {"new_env_keys": ["CM_SEEN"]},
        customize="""
import os
def preprocess(i):
    i["env"]["CM_SEEN"] = str(len(os.environ["HF_TOKEN"])) + " " + os.environ.get("CM_PLAIN", "")
    return {"return": 0}
""",
    )
    before = dict(os.environ)
    result = home.run("one", env={"HF_TOKEN": "typed-token", "CM_PLAIN": "x"}, cmd=["--env.HF_TOKEN=typed-token"])
    assert result["new_env"] == {"CM_SEEN": "11 "}
    assert dict(os.environ) == before


TYPED = [
    f"--env.HF_TOKEN={TOKEN}",
    f"--const.CM_X_TOKEN={TOKEN}",
    f"--words=--seed 1 --hf-token '{TOKEN}'",
    "--words=--seed 1 --hf-token typed-within-words-88",
    "--url=https://me:typed-within-words-88@host/x",
]


@pytest.mark.parametrize(
    ("typed", "flags"),
    [
        *((typed, ["--repro", "--save_env", "--print_env", "--print_readme"]) for typed in TYPED),
        *zip(TYPED, [["--plan"], ["--out=json"], ["--plan", "-j"], ["--plan"], ["--plan", "-j"]], strict=True),
    ],
)
def test_a_secret_anywhere_on_the_command_line_is_in_nothing_that_a_run_leaves(home, typed, flags):
    home.script(
        "one",
        {"input_mapping": {"words": "CM_WORDS", "url": "CM_URL"}, "new_env_keys": ["*"]},
        run='echo "shell has $CM_WORDS $CM_URL $HF_TOKEN"\n',
    )
    home.script(
        "outer",
        {"deps": [{"tags": "one"}], "input_mapping": {"words": "CM_WORDS", "url": "CM_URL"}, "new_env_keys": ["*"]},
    )
    done = home.cli("run", "script", "--tags=outer", typed, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    for secret in (TOKEN, "typed-within-words-88"):
        assert files_with(home.path.parent, secret) == []
        assert secret not in done.stdout + done.stderr
        assert json.dumps(secret)[1:-1] not in done.stdout + done.stderr
    if "--plan" not in flags and "url" not in typed:
        assert f"{typed.partition('=')[0]} is visible in the list of processes" in done.stdout + done.stderr


def test_no_secret_goes_into_a_dockerfile(home):
    home.script("one")
    done = home.cli("dockerfile", "script", "--tags=one", f"--env.HF_TOKEN={TOKEN}")
    assert done.returncode == 20
    assert "HF_TOKEN=... cm dockerfile script" in done.stdout + done.stderr
    assert files_with(home.path.parent, TOKEN) == []
    assert TOKEN not in done.stdout + done.stderr


def test_short_words_are_no_secrets_and_lines_of_long_ones_are():
    vault = Vault()
    vault.learn({"A_TOKEN": "yes", "KEY": "public-value", "B_PASSWORD": "first-line\nsecond-line"})
    assert vault.clean("yes public-value first-line") == "yes public-value (secret)"
    assert vault.cleaned({"B_PASSWORD": "", "list": ["x second-line"]}) == {"B_PASSWORD": "", "list": ["x (secret)"]}

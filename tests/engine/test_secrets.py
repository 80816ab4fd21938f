"""Secrets of a run: used as they are given, and kept out of all that a run leaves."""

import json
import os
from pathlib import Path

import pytest

from cm4vllm.common.secrets.redaction import Vault

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


@pytest.mark.parametrize(("fail", "code"), [("", 0), ("run", 2), ("hook", 3)])
@pytest.mark.parametrize(
    "flags",
    [
        ["--repro", "--save_env", "--dump_version_info", "--debug_script", "--print_env"],
        ["-v"],
        ["--out=json", "--dirty"],
        ["-j"],
        ["--save_to_json=result.json", "--print_readme"],
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


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize(
    "flags", [["--repro", "--save_env", "--print_env", "--print_readme"], ["--plan"], ["--out=json"], ["--plan", "-j"]]
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

"""Malformed input: each case is an error with a message, none ends in a traceback."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from tests.engine.conftest import Home

from commands import need

ACTIONS = [
    ("run", "script", "--tags=one"),
    ("plan", "script", "--tags=one"),
    ("lint", "script"),
    ("show", "script", "one"),
    ("find", "script", "--tags=one"),
    ("test", "script", "one"),
    ("dockerfile", "script", "--tags=one"),
    ("doctor", "script"),
]


def answered(result):
    """Assert that a result is one of the engine's, not that of an exception, and return its text."""
    assert "this is a bug in cm4vllm" not in str(result.get("error"))
    return str(result.get("error", ""))


def told(done):
    """Assert that a command ended as the engine ends it, and return what it printed."""
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    assert "this is a bug in cm4vllm" not in output, output
    return output


@pytest.mark.parametrize(
    "part",
    [
        {"tags": 5},
        {"tags": ["one", ["x"]]},
        {"env": ["a"]},
        {"env": {5: "x"}},
        {"deps": ["two"]},
        {"deps": [{"tags": "two", "enable_if_env": "X"}]},
        {"variations": {"a": {"default": True, "group": ["g"]}}},
        {"variations": {"a": {"required_disk_space": "much"}}},
        {"versions": {"1": "x"}},
        {"input_mapping": {"a": {"b": "c"}}},
        {"input_description": {"a": 5}},
        {"tests": ["x"]},
        {"tests": {"run_inputs": ["x"]}},
        {"cache": True, "extra_cache_tags_from_env": [{"prefix": "a"}]},
        {"brings": [{"disk_bytes": "much"}]},
    ],
    ids=str,
)
def test_a_part_of_a_meta_that_has_the_wrong_shape_is_named(home, part, capsys):
    home.script("two")
    home.script("one", run="true\n")
    home.act("find", "script")  # cmind indexes while all is well
    home.script("one", part, run="true\n")
    for words in ACTIONS[:6]:
        answered(home.act(*words))
    assert home.act("run", "script", "--tags=one")["return"] in (3, 16)
    home.act("lint", "script")
    assert next(iter(part)) in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    ["", "- a\n", "a: [1, 2\n", "a: &a [*a]\n", "a: " + "[" * 3000 + "]" * 3000, "\0"],
    ids=["empty", "list", "no-yaml", "circle", "deep", "binary"],
)
def test_a_meta_that_is_none_hides_no_other(home, text):
    home.script("two", run="true\n")
    folder = home.script("one")
    home.act("find", "script")  # cmind indexes while all is well
    (folder / "_cm.yaml").write_text(text)
    for words in ACTIONS:
        answered(home.act(*words))
    assert home.act("run", "script", "--tags=two")["return"] == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--tags",), 20, "which script?"),
        (("--tags=one", "--version=.."), 20, "is not a version"),
        (("--tags=one", "--adr.two=x"), 20, "--adr.two.tags=_variation"),
        (("--tags=one,_d.#",), 20, "d.<value>"),
        (("--tags=one", "--save_to_json=/nowhere/x.json"), 41, "its folder does not exist"),
        (("--tags=one", "--repro", "--repro_dir=/proc/x"), 41, "cannot be created"),
    ],
)
def test_odd_flags_are_refused_by_their_name(home, words, code, text):
    home.script("one", {"variations": {"d.#": {}}}, run="true\n")
    done = home.cli("run", "script", *words)
    assert text in told(done)
    assert done.returncode == code


@pytest.mark.parametrize(
    "customize",
    [
        "def preprocess(i): raise BaseException('x')\n",
        "def preprocess(i): raise GeneratorExit\n",
        "\0",
        "def preprocess(i):\n  i['env'][5] = 'x'\n  return {'return': 0}\n",
        "def preprocess(i):\n  i['meta']['post_deps'] = ['x']\n  return {'return': 0}\n",
        "def preprocess(i):\n  return {'return': 0, 'skip': True, 'script': 5}\n",
        "def preprocess(i):\n  return i['automation'].run({'tags': 5})\n",
    ],
)
def test_what_a_hook_does_wrong_is_an_error_of_the_recipe(home, customize):
    home.script("one", customize=customize)
    result = home.act("run", "script", "--tags=one")
    answered(result)
    assert result["return"] in (3, 20)


@pytest.mark.parametrize(
    "run",
    ["mkdir tmp-run-env.out\n", "mkdir tmp-run-state.json\n", "printf 'A\\0B=x\\n\\xff=\\xfe\\n' > tmp-run-env.out\n"],
)
def test_what_a_shell_file_leaves_wrong_is_an_error_of_the_recipe(home, run):
    home.script("one", run=run)
    answered(home.act("run", "script", "--tags=one"))


@pytest.mark.parametrize("state", ["[]", "{}", "{", '{"new_env": 5, "new_state": [], "files": 7, "folder": 5}'])
def test_a_cache_entry_whose_result_is_rubbish_is_made_again(home, state, capsys):
    home.script("one", {"cache": True}, run="true\n")
    home.act("run", "script", "--tags=one")
    (home.entries()[0] / "cm-cached-state.json").write_text(state)
    answered(home.act("plan", "script", "--tags=one"))
    answered(home.act("doctor", "script"))
    assert "is damaged" in capsys.readouterr().out
    assert home.act("run", "script", "--tags=one")["return"] == 0
    assert "making it again" in capsys.readouterr().out


def test_a_cache_entry_whose_meta_is_rubbish_is_no_entry(home):
    home.script("one", {"cache": True}, run="true\n")
    home.act("run", "script", "--tags=one")
    path = home.entries()[0] / "_cm.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "made_at": "long ago", "tags": 5, "version": [1]}))
    for words in (
        ("run", "script", "--tags=one"),
        ("plan", "script", "--tags=one"),
        ("show", "cache"),
        ("doctor", "script"),
    ):
        assert home.act(*words)["return"] == 0


def test_an_index_that_is_none_is_told_by_the_doctor(home, capsys):
    home.script("one", run="true\n")
    home.act("run", "script", "--tags=one")
    index = json.loads((home.path / "index.json").read_text())
    (home.path / "index.json").write_text(json.dumps({**index, "5b4e0237da074764": {"x": 5}}))
    answered(home.act("plan", "script", "--tags=one"))
    home.act("doctor", "script")
    assert "is not an index of CM" in capsys.readouterr().out


PLAIN = [{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "gbk"}]


@pytest.mark.parametrize("locale", PLAIN, ids=str)
def test_pages_are_printed_in_any_locale(home, locale):
    home.script("two", run="true\n")
    home.script(
        "one",
        {
            "input_mapping": {"a": "CM_A"},
            "input_description": {"a": "größe 🜚"},
            "deps": [{"tags": "two"}],
            "warnings": ["größe 🜚"],
        },
        run="true\n",
    )
    for words in (ACTIONS[0], ACTIONS[1], ACTIONS[3]):
        done = home.cli(*words, **locale)
        told(done)
        assert done.returncode in (0, 1), done.stderr


def test_a_full_home_is_an_error_with_its_disk(home, tmp_path):
    mount = shutil.which("mount")
    home.script("one", {"cache": True}, run="head -c 100000 /dev/zero > f\n")
    home.act("find", "script")
    cache = home.path / "repos" / "local" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "none", cache], check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        done = home.cli("run", "script", "--tags=one")
        told(done)
        assert done.returncode in (2, 40)
        assert "No space left on device" in done.stderr or "no space left" in done.stderr
        assert home.entries() == []
    finally:
        subprocess.run(["umount", cache], check=True)


@pytest.fixture
def open_home():
    """Yield a home in a folder that every user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield Home(folder)
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become another user")
@pytest.mark.parametrize("path", ["_cm.yaml", "customize.py", "."])
def test_what_may_not_be_read_is_named(open_home, path):
    home = open_home
    home.script("two", run="true\n")
    folder = home.script("one", customize="def preprocess(i): return {'return': 0}\n")
    home.act("find", "script")
    subprocess.run(["chmod", "-R", "a+rwX", home.path.parent], check=True)
    (folder / path).chmod(0)
    nobody = [need("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "cmind.cli"]
    try:
        if subprocess.run([*nobody, "find", "repo"], env=home.env, capture_output=True, check=False).returncode:
            pytest.skip("another user cannot read this Python")
        for words in ACTIONS[:3]:
            done = subprocess.run(
                [*nobody, *words],
                cwd=home.path,
                env={**home.env, "HOME": str(home.path)},
                text=True,
                capture_output=True,
                check=False,
            )
            told(done)
        doctor = subprocess.run(
            [*nobody, "doctor", "script"], cwd=home.path, env=home.env, text=True, capture_output=True, check=False
        )
        assert "compiler" in doctor.stdout
    finally:
        (folder / path).chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become another user")
def test_a_home_that_may_not_be_written_is_named_with_the_setting_for_another(open_home):
    home = open_home
    home.script("kept", {"cache": True}, customize="def preprocess(i): return {'return': 0}\n")
    home.act("find", "script")
    subprocess.run(["chmod", "-R", "a+rX", home.path.parent], check=True)
    nobody = [need("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m"]
    empty = home.path.parent / "empty"
    empty.mkdir(0o755)
    for cm_home, words in (
        (home.path, ("cmind.cli", "run", "script", "--tags=kept")),
        (home.path, ("cmind.cli", "run", "script", "--tags=kept", "--plan")),
        (empty, ("cm4vllm.engine.tools.register", str(home.engine))),
    ):
        done = subprocess.run(
            [*nobody, *words],
            cwd="/tmp",
            env={**home.env, "CM_REPOS": str(cm_home), "HOME": str(empty)},
            text=True,
            capture_output=True,
            check=False,
        )
        if "No module named" in done.stderr or "error while loading shared libraries" in done.stderr:
            pytest.skip("another user cannot read this Python")
        assert done.returncode == 41, (words, done.stdout + done.stderr)
        assert str(cm_home) in done.stderr and "CM_REPOS" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_metas_of_the_public_format_keep_their_shapes():
    from cm4vllm.engine.format.meta_shapes import wrong_shapes

    meta = yaml.safe_load("""
alias: a
uid: 1234567890123456
tags: a,b
cache: 'yes'
sort: '500'
default_version: 3.1
deps:
versions: {3.8: , '2.1': {env: {A: 1}}}
variations: {x: , y: {base: z, default_variation: {g: v}, warnings: one, env: {A: [1, 2], B: true, C: }}}
new_env_keys: A
env: {A: {b: c}}
input_description: {a: text, b: {desc: x}, c: }
extra_cache_tags_from_env: [{env: CM_A, prefix: p}]
update_meta_if_env: [{enable_if_env: {A: [b]}, env: {C: d}}]
""")
    assert list(wrong_shapes(meta)) == []

"""The command lines that the public tests and workflows type, on scripts of our own. The numbers are theirs."""

import json
import shutil
import subprocess

import pytest

DETECT = 'echo "CM_HOST_OS_TYPE=linux" > tmp-run-env.out; echo "CM_HOST_OS_BITS=64" >> tmp-run-env.out\n'


@pytest.fixture
def detect(home):
    """Return a home with scripts detect,os and detect,cpu, which depends on it."""
    home.script("detect,os", {"new_env_keys": ["CM_HOST_*"]}, run=DETECT)
    home.script("detect,cpu", {"new_env_keys": ["CM_HOST_*"], "deps": [{"tags": "detect,os", "names": ["detect-os"]}]})
    home.act("find", "script")  # cmind announces its first index on standard output
    return home


def test_06_test_script_answers_with_a_return_code(detect):
    from cmind.core import CM

    assert CM(str(detect.path)).access({"action": "test", "automation": "script"})["return"] == 0


def test_18_direct_dependencies_are_printed(detect):
    done = detect.done("run", "script", "--tags=detect,cpu", "--print_deps", "-j")
    result = json.loads(done.stdout)
    assert result["return"] == 0
    assert result["deps"] == ["detect,os"]
    assert result["new_state"]["print_deps"] == ["cm run script --tags=detect,os"]


def test_31_and_42_json_is_valid_and_logging_keeps_out_of_it(detect):
    done = detect.done("run", "script", "--tags=detect,os", "-j", "-s")
    result = json.loads(done.stdout)
    assert (result["return"], result["new_env"]) == (0, {"CM_HOST_OS_TYPE": "linux", "CM_HOST_OS_BITS": "64"})
    assert done.stderr == ""


@pytest.mark.parametrize(
    "flag",
    (
        "--time --space --print_env --dirty --skip_remembered_selections --print_versions --verbose "
        "-v -s --quiet --fake_run --prepare --fake_deps --skip_cache --new --renew "
        "--adr.detect-os.tags=detect,os"
    ).split(),
)
def test_20_to_35_flags_are_accepted(detect, flag):
    assert detect.run("detect,cpu", **parsed(flag))["return"] == 0


def parsed(word):
    name, _, value = word.lstrip("-").partition("=")
    if name.startswith("adr"):
        return {"adr": {"detect-os": {"tags": value}}}
    return {name: value or True}


@pytest.mark.parametrize(
    "words",
    [
        ("find", "script", "--tags=detect,os"),
        ("search", "script", "detect-os"),
        ("list", "script"),
        ("ls", "script", "detect-os"),
        ("show", "script", "--tags=detect,os"),
        ("find", "script", "detect-os,{uid}"),
        ("find", "script", "{uid}"),
    ],
)
def test_39_scripts_are_found_by_tags_alias_and_uid(detect, words):
    uid = "000000000000001a"
    done = detect.done(*(word.format(uid=uid) for word in words))
    assert done.returncode == 0, done.stderr
    assert "detect-os" in done.stdout


def test_40_scripts_are_copied_moved_and_removed(detect):
    assert detect.done("cp", "script", "detect-os", "synthetic:detect-copy").returncode == 0
    assert detect.done("mv", "script", "detect-copy", "detect-moved").returncode == 0
    assert detect.done("run", "script", "detect-moved").returncode == 0
    assert detect.done("rm", "script", "detect-moved", "-f").returncode == 0
    assert detect.done("run", "script", "detect-moved").returncode == 16


def test_43_what_was_deleted_by_hand_is_not_found(detect):
    detect.script("keep", {"cache": True})
    assert detect.run("keep")["return"] == 0
    shutil.rmtree(detect.entries()[0])
    assert not detect.done("find", "cache", "--tags=keep").stdout.strip()
    shutil.rmtree(detect.repo / "script" / "detect-os")
    assert detect.done("run", "script", "--tags=detect,os").returncode == 16


def test_44_the_environment_that_is_saved_is_a_valid_shell_file(home):
    home.script(
        "one",
        {
            "new_env_keys": ["*"],
            "env": {
                "CM_LIST": ["a", "b", "c"],
                "+PATH": ["/x", "/y"],
                "+ CFLAGS": ["-O2", "-g"],
                "CM_HARD": "a 'b' \"c\" $d `e`\nf",
            },
        },
    )
    assert home.done("run", "script", "--tags=one", "--save_env").returncode == 0
    show = '. ./tmp-env.sh; printf "%s\\0" "$CM_LIST" "$PATH" "$CFLAGS" "$CM_HARD"'
    done = subprocess.run(
        ["bash", "-euc", show], cwd=home.work, env={"PATH": "/bin"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\0")[:4] == ["a:b:c", "/x:/y:/bin", "-O2 -g", "a 'b' \"c\" $d `e`\nf"]


def test_45_removals_beside_runs_leave_valid_metas(home):
    home.script("one", {"cache": True, "variations": {"v.#": {}}}, run="echo x > made\n")
    home.act("find", "script")
    runs = [home.start("run", "script", f"--tags=one,_v.{n}") for n in range(4)]
    removals = [home.start("rm", "cache", "--tags=one", "-f") for _ in range(2)]
    for process in runs + removals:
        process.communicate(timeout=60)
    assert [process.returncode for process in runs] == [0] * 4
    for entry in home.entries():
        assert json.loads((entry / "_cm.json").read_bytes())["uid"] == entry.name
    json.loads((home.path / "index.json").read_bytes())
    assert home.run("one,_v.1")["return"] == 0


def test_records_of_a_run(detect):
    done = detect.done(
        "run", "script", "--tags=detect,cpu", "--repro", "--dump_version_info", "--debug_script_tags=detect,os"
    )
    assert done.returncode == 0
    work = detect.work
    names = {path.name for path in (work / "cm-repro").iterdir()}
    assert names == {
        f"cm-run-script-{part}" for part in ("input.json", "info.json", "output.json", "run-state.json", "README-cm.md")
    }
    assert "cm run script --tags=detect,cpu" in (work / "cm-repro" / "cm-run-script-README-cm.md").read_text()
    versions = json.loads((work / "version_info.json").read_bytes())
    assert versions == json.loads((work / "cm-run-script-versions.json").read_bytes())
    assert [next(iter(entry)) for entry in versions] == ["detect,os", "detect,cpu"]
    assert set(versions[0]["detect,os"]) == set(
        "script_uid script_alias script_tags script_variations version parent".split()
    )
    assert versions[0]["detect,os"]["parent"].startswith("detect-cpu,")
    subprocess.run(["bash", "tmp-run-without-cm.sh"], cwd=work, check=True)
    assert "CM_HOST_OS_TYPE=linux" in (work / "tmp-run-env.out").read_text()

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.engine.waiting import wait_for, wait_for_output

ROOT = Path(__file__).resolve().parents[3]

COUNT = 'echo run >> "$CM_LOG"; echo "CM_PATH=$PWD/made" > tmp-run-env.out; echo hello > made\n'


@pytest.fixture
def made(home):
    """Return a function that runs the cached script and returns its result, with the number of real runs so far."""

    def run(tags="make", **given):
        given["env"] = {"CM_LOG": str(home.work / "log"), **given.get("env", {})}
        result = home.run(tags, **given)
        log = home.work / "log"
        return result, len(log.read_text().split()) if log.exists() else 0

    return run


META = {"cache": True, "new_env_keys": ["CM_PATH"]}


def test_entry_is_an_artifact_of_cmind(home, made):
    home.script("make", META, run=COUNT)
    made(extra_cache_tags="test-extra,ci")
    assert home.done("find", "cache", "--tags=make,test-extra,ci").stdout.strip() == str(home.entries()[0])
    shown = home.done("show", "cache", "--tags=make", "--env").stdout
    assert "* Tags: make,test-extra,ci,script-artifact-" in shown
    assert f"Path: {home.entries()[0]}" in shown
    assert "CM_PATH=" in shown
    assert home.done("rm", "cache", "--tags=make", "-f").returncode == 0
    assert home.entries() == []
    assert home.done("rm", "cache", "--tags=make", "-f").returncode == 16
    assert made()[1] == 2


def test_entry_is_found_without_cminds_index_and_after_reindexing(home, made):
    home.script("make", META, run=COUNT)
    made()
    (home.path / "index.json").unlink()
    assert made()[1] == 1
    home.done("reindex", "repo")
    assert home.done("find", "cache", "--tags=make").stdout.strip() == str(home.entries()[0])


def test_default_and_explicit_variation_share_an_entry_and_others_do_not(home, made):
    home.script("make", {**META, "variations": {"a": {"group": "g", "default": True}, "b": {"group": "g"}}}, run=COUNT)
    assert made("make,_b")[1] == 1
    assert made("make")[1] == 2  # an entry of _b is not what the default means
    assert made("make,_a")[1] == 2
    assert made("make,_b")[1] == 2


def test_declared_inputs_are_part_of_the_key_and_others_are_not(home, made):
    home.script("make", {**META, "input_mapping": {"model": "CM_MODEL"}, "default_env": {"CM_SIZE": 1}}, run=COUNT)
    assert made(model="a")[1] == 1
    assert made(model="b")[1] == 2
    assert made(model="a", env={"CM_UNDECLARED": "x"})[1] == 2
    assert made(model="a", env={"CM_SIZE": "2"})[1] == 3
    assert made(model="a", env={"CM_SIZE": "1"})[1] == 3


def test_flags_of_the_parent_that_a_script_does_not_declare_do_not_matter(home, made):
    home.script("make", META, run=COUNT)
    home.script("one", {"input_mapping": {"who": "CM_WHO"}, "deps": [{"tags": "make"}]})
    made("one", who="a")
    assert made("one", who="b")[1] == 1


def test_secrets_are_neither_in_the_key_nor_in_the_entry(home, made):
    home.script("make", {**META, "input_mapping": {"hf_token": "CM_HF_TOKEN"}, "new_env_keys": ["CM_*"]}, run=COUNT)
    assert made(hf_token="abc-first")[1] == 1
    assert made(hf_token="abc-second")[1] == 1
    for path in home.entries()[0].rglob("*"):
        assert "abc-first" not in path.read_text()


def test_extra_tags_and_name_make_entries_of_their_own(home, made):
    home.script("make", META, run=COUNT)
    made()
    assert made(extra_cache_tags="<<<CM_X>>>-tag", env={"CM_X": "x"})[1] == 2
    assert made(name="Mine")[1] == 3
    assert home.done("find", "cache", "--tags=x-tag").stdout.strip()
    assert home.done("find", "cache", "--tags=name-mine").stdout.strip()


def test_failed_renewal_keeps_the_old_entry(home, made):
    home.script("make", META, run=COUNT + 'test -z "$CM_FAIL"')
    first, _ = made()
    assert made(renew=True, env={"CM_FAIL": "1"})[0]["return"] == 2
    again, runs = made()
    assert runs == 2
    assert again["new_env"] == first["new_env"]
    assert Path(again["new_env"]["CM_PATH"]).exists()


def test_the_cache_is_used_as_flags_say(home, made):
    home.script("make", META, run=COUNT)
    first, _ = made()
    second, runs = made(new=True)
    assert (runs, len(home.entries()), second["new_env"] != first["new_env"]) == (2, 2, True)
    assert made()[0]["new_env"] == second["new_env"]
    renewed, runs = made(renew=True)
    assert (runs, len(home.entries()), renewed["new_env"]) == (3, 2, second["new_env"])


def test_failed_run_leaves_no_entry(home, made):
    home.script("make", META, run=COUNT + "exit 7\n")
    assert made()[0]["return"] == 2
    cache = home.path / "repos" / "local" / "cache"
    assert [path.name for path in cache.iterdir()] == [".locks"]


def test_logs_of_a_failed_entry_outlive_it(home, made):
    home.script(
        "make",
        META,
        customize="""
from pathlib import Path
from cm4vllm.common.errors import InstallError

def preprocess(i):
    log = Path.cwd() / "proof.log"
    log.write_text("why")
    raise InstallError("it does not run", remedy=f"the whole log: {log}")
""",
    )
    error = made()[0]["error"]
    told = Path(error.partition("the whole log: ")[2].split()[0])
    assert told.read_text() == "why"
    assert told.parent == home.path / "logs" and told.name.endswith("-make-proof.log")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_killed_run_leaves_no_entry_and_the_next_one_makes_it(home, made, signum):
    home.script("make", META, run=COUNT + 'if [ -n "$CM_WAIT" ]; then sleep 60; fi\n')
    process = home.start("run", "script", "--tags=make", f"--env.CM_LOG={home.work / 'log'}", "--env.CM_WAIT=1")
    wait_for(home.work / "log")
    process.send_signal(signum)
    process.communicate(timeout=30)
    assert home.entries() == []
    assert made()[0]["return"] == 0
    assert len(home.entries()) == 1
    assert [path.name for path in home.entries()[0].parent.iterdir() if not path.name.startswith(".")] == [
        home.entries()[0].name
    ]


@pytest.mark.parametrize("further", [False, True], ids=["the-only-entry", "after-one-that-was-removed"])
def test_killed_renewal_is_undone_by_the_next_run(home, made, further):
    home.script("make", META, run=COUNT + 'if [ -n "$CM_WAIT" ]; then touch "$CM_WAIT"; sleep 60; fi\n')
    first, count = made()
    if further:
        removed = home.entries()[0].name
        first, count = made(new=True)
        assert home.done("rm", "cache", removed, "-f").returncode == 0
    process = home.start(
        "run",
        "script",
        "--tags=make",
        "--renew",
        f"--env.CM_LOG={home.work / 'log'}",
        f"--env.CM_WAIT={home.work / 'waits'}",
    )
    wait_for(home.work / "waits")
    process.kill()
    process.communicate(timeout=30)
    again, runs = made()
    assert runs == count + 1
    assert again["new_env"] == first["new_env"]


def test_two_simultaneous_runs_make_it_once(home):
    home.script("make", META, run=COUNT + 'for n in $(seq 600); do [ -e "$CM_LOG.go" ] && break; sleep 0.1; done\n')
    home.act("find", "script")  # cmind's own index is there
    runs = [home.start("run", "script", "--tags=make", f"--env.CM_LOG={home.work / 'log'}") for _ in range(3)]
    wait_for_output(runs, b"waiting for it")
    (home.work / "log.go").touch()
    for process in runs:
        process.communicate(timeout=60)
    assert [process.returncode for process in runs] == [0, 0, 0]
    assert (home.work / "log").read_text().split() == ["run"]
    assert len(home.entries()) == 1
    json.loads((home.path / "index.json").read_bytes())


@pytest.mark.parametrize("name", ["made", "cm-cached-state.json", "."])
def test_entry_whose_files_vanished_is_made_again(home, made, name):
    home.script("make", META, run=COUNT)
    made()
    path = home.entries()[0] / name
    if path.is_file():
        path.unlink()
    else:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    result, runs = made()
    assert result["return"] == 0
    assert runs == 2
    assert len(home.entries()) == 1
    assert Path(result["new_env"]["CM_PATH"]).exists()


def test_entry_that_names_a_path_elsewhere_is_made_again_when_that_vanished(home, made):
    home.script(
        "make", META, run='echo run >> "$CM_LOG"; touch "$CM_LOG.out"; echo "CM_PATH=$CM_LOG.out" > tmp-run-env.out\n'
    )
    made()
    assert made()[1] == 1
    (home.work / "log.out").unlink()
    assert made()[1] == 2


def test_entry_is_made_again_when_the_file_it_was_made_from_changed(home, made):
    source = home.work / "source"
    source.write_text("one")
    home.script("make", META, run=COUNT + f'echo "CM_GET_DEPENDENT_CACHED_PATH={source}" >> tmp-run-env.out\n')
    assert made()[1] == 1
    source.touch()
    assert made()[1] == 1
    source.write_text("two")
    assert made()[1] == 2
    assert len(home.entries()) == 1


def test_entries_follow_a_moved_home(home, made):
    home.script("make", META, run=COUNT)
    made()
    home.path.rename(home.path.with_name("moved"))
    home.path = home.path.with_name("moved")
    (home.path / "index.json").unlink()
    result, runs = made()
    assert runs == 1
    assert result["new_env"]["CM_PATH"] == str(home.entries()[0] / "made")


def test_hit_runs_only_dynamic_dependencies_and_no_hook(home, made):
    home.script("dyn", {"new_env_keys": ["CM_DYN"], "env": {"CM_DYN": "1"}}, run='echo dyn >> "$CM_LOG.d"')
    home.script("static", run='echo static >> "$CM_LOG.d"')
    home.script(
        "make",
        {**META, "deps": [{"tags": "static"}, {"tags": "dyn", "dynamic": True}]},
        run=COUNT,
        customize="""
def preprocess(i):
    with open(i["env"]["CM_LOG"] + ".d", "a") as file:
        print("hook", file=file)
    return {"return": 0}
""",
    )
    made()
    made()
    assert (home.work / "log.d").read_text().split() == ["static", "dyn", "hook", "dyn"]


def test_versions_choose_among_entries(home, made):
    home.script(
        "make",
        {**META, "default_version": "2.0"},
        run=COUNT,
        customize="def postprocess(i): return {'return': 0, 'version': i['env']['CM_VERSION']}\n",
    )
    assert made()[0]["version"] == "2.0"
    assert made(version="1.5")[0]["version"] == "1.5"
    assert made(version="1.5")[1] == 2
    assert made(version_min="1.0", version_max="1.9")[0]["version"] == "1.5"
    assert made(version_min="1.8")[0]["version"] == "2.0"
    assert made()[0]["version"] == "2.0"
    assert made()[1] == 2
    assert home.done("find", "cache", "--tags=make,version-1.5").stdout.strip()
    renewed, runs = made(renew=True)
    assert runs == 3
    assert renewed["version"] == "2.0"
    assert home.done("find", "cache", "--tags=make,version-2.0").stdout.strip()


def test_state_comes_back_from_the_cache(home, made):
    home.script(
        "make",
        {**META, "new_state_keys": ["facts"]},
        run=COUNT,
        customize="def preprocess(i): i['state']['facts'] = {'n': [1]}; return {'return': 0}\n",
    )
    made()
    assert made()[0]["new_state"] == {"facts": {"n": [1]}}


def test_cleanup_of_a_cached_script_that_failed_is_called(home, made):
    home.script(
        "make",
        META,
        customize="""
def preprocess(i): return {"return": 5, "error": "no"}
def cleanup(i):
    import pathlib
    pathlib.Path(i["env"]["CM_LOG"]).write_text("cleaned")
    return {"return": 0}
""",
    )
    assert made()[0]["return"] == 5
    assert (home.work / "log").read_text() == "cleaned"


def test_a_home_that_cannot_be_written_is_told(home, made):
    (home.path / "repos" / "local").mkdir(parents=True)
    (home.path / "repos" / "local" / "cmr.yaml").write_text('alias: local\nuid: "9a3280b14a4285c9"\n')
    (home.path / "repos" / "local" / "cache").write_text("a file, not a folder")
    home.script("make", META, run=COUNT)
    result, _ = made()
    assert result["return"] == 41


# --- entries of the cache that were altered, and recipes that were edited: made again, by their content


MAKE = 'echo run >> "$CM_LOG"; mkdir -p d; echo one > d/file; echo two > top; echo "CM_DIR=$PWD/d" > tmp-run-env.out\n'


@pytest.mark.parametrize(
    "alter",
    [
        lambda entry: (entry / "top").write_text("2wo\n"),
        lambda entry: (entry / "d" / "file").write_text("0ne\n"),
        lambda entry: (entry / "d" / "file").unlink(),
        lambda entry: (entry / "top").write_text(""),
    ],
)
def test_an_altered_entry_is_found_out_and_made_again(home, made, alter):
    home.script("make", {"cache": True, "new_env_keys": ["CM_DIR"]}, run=MAKE)
    assert made()[1] == 1
    assert made()[1] == 1
    alter(home.entries()[0])
    assert made()[1] == 2
    assert made()[1] == 2
    assert (home.entries()[0] / "d" / "file").read_text() == "one\n"


def test_touched_and_added_files_alter_nothing(home, made):
    home.script("make", {"cache": True, "new_env_keys": ["CM_DIR"]}, run=MAKE)
    made()
    os.utime(home.entries()[0] / "top", (1, 1))
    (home.entries()[0] / "d" / "added").write_text("new")
    assert made()[1] == 1


def test_an_edited_recipe_makes_an_entry_of_its_own_and_texts_for_people_do_not(home, made):
    folder = home.script("make", {"cache": True, "new_env_keys": ["CM_DIR"]}, run=MAKE)
    assert made()[1] == 1
    (folder / "README.md").write_text("more words")
    text = (folder / "_cm.yaml").read_text()
    (folder / "_cm.yaml").write_text(text + "variations: {unused: {env: {CM_Z: z}}}\ntags_help: words\n")
    assert made()[1] == 1
    (folder / "run.sh").write_text(MAKE + "# another way\n")
    assert made()[1] == 2
    (folder / "run.sh").write_text(MAKE)
    assert made()[1] == 2
    (folder / "_cm.yaml").write_text(text + "env: {CM_NEW: '1'}\n")
    assert made()[1] == 3


def test_state_that_cannot_be_kept_is_told_and_leaves_no_entry(home):
    home.script(
        "one",
        {"cache": True, "new_state_keys": ["s"]},
        customize="def preprocess(i): i['state']['s'] = {1, 2}; return {'return': 0}\n",
    )
    assert home.run("one")["return"] == 3
    assert home.entries() == []


def test_an_entry_is_not_used_once_the_code_or_the_data_that_it_was_made_from_changed(home, tmp_path):
    package = tmp_path / "package" / "cm4vllm"
    # With its bytecode, but for what another process is just writing.
    shutil.copytree(ROOT / "src" / "cm4vllm", package, ignore=shutil.ignore_patterns("*.pyc.*"))
    module, data = package / "common" / "units.py", package / "common" / "data.yaml"
    right = module.read_text()
    home.script(
        "one",
        {"cache": True, "new_env_keys": ["CM_MADE"], "made_by": ["cm4vllm.common.units", "common/data.yaml"]},
        customize="from cm4vllm.common import units\n\n\ndef postprocess(i):\n"
        "    i['env']['CM_MADE'] = units.MADE\n    return {'return': 0}\n",
    )

    def made_entry(text, preset="preset: A"):
        module.write_text(f"{right}\n{text}\n")
        data.write_text(f"{preset}\n", encoding="utf-8")
        done = home.cli("run", "script", "--tags=one", "-j", PYTHONPATH=str(package.parent))
        result = json.loads(done.stdout[done.stdout.index("{") :])  # cmind says first that it indexes a new home
        return result["new_env"]["CM_MADE"], len(home.entries())

    assert made_entry("MADE = 'wrong'") == ("wrong", 1)
    assert made_entry("MADE = 'right'") == ("right", 2)
    assert made_entry("# why\n\nMADE = 'right'", "# why\npreset: A") == ("right", 2)
    assert made_entry("MADE = 'wrong'") == ("wrong", 2)
    assert made_entry("MADE = 'right'", "preset: B") == ("right", 3)

"""`--adr` reaches what carries a name: a dependency at any depth, and a recipe that another one's code runs."""

import pytest

GROUPED = {
    "new_env_keys": ["CM_SEEN"],
    "input_mapping": {"speed": "CM_SPEED"},
    "variations": {
        "a": {"group": "g", "default": True},
        "b": {"group": "g"},
        "v.#": {"group": "g"},
        "w.#": {"group": "g"},
        "free": {},
    },
}
SEE = """
def preprocess(i):
    env = i["env"]
    seen = [*sorted(i["variation_tags"]), env.get("CM_SPEED", ""), env.get("CM_PART", ""), env.get("CM_VERSION", "")]
    env["CM_SEEN"] = ",".join(filter(None, seen))
    return {"return": 0}
"""
RUNNER = """
def plan(i):
    return {"return": 0, "steps": [{"name": "s", "tags": "dep,_a", "names": ["d"], "env": {"CM_PART": "own"}}]}


def preprocess(i):
    adr = i["input"].get("adr")
    done = i["automation"].run({"tags": "dep,_a", "names": ["d"], "env": {"CM_PART": "own"}, "adr": adr, "quiet": True})
    if done["return"]:
        return done
    i["env"]["CM_SEEN"] = done["new_env"]["CM_SEEN"]
    return {"return": 0}
"""


@pytest.fixture(params=["a dependency", "a recipe that code runs"])
def top(request, home):
    """Write a script that reaches another one, named d, in one of the two ways; return which."""
    home.script("dep", GROUPED, customize=SEE)
    if request.param == "a dependency":
        deps = [{"tags": "dep,_a", "names": ["d"], "env": {"CM_PART": "own"}}]
        home.script("top", {"deps": deps, "new_env_keys": ["CM_SEEN"]})
    else:
        home.script("top", {"new_env_keys": ["CM_SEEN"]}, customize=RUNNER)
    return request.param


def test_an_amendment_reaches_dependencies_and_recipes_that_code_runs_alike(home, top):
    expected = {
        "_b": "b,own",  # replaces the variation of its group
        "_v.1/x": "v.1/x,own",
        "_free": "a,free,own",
        "_a": "a,own",
    }
    for tags, seen in expected.items():
        plan = home.run("top", plan=True, adr={"d": {"tags": tags}})
        result = home.run("top", adr={"d": {"tags": tags}})
        assert result["return"] == plan["return"] == 0, tags
        assert result["new_env"]["CM_SEEN"] == seen, tags
        (child,) = plan["plan"]["children"]
        assert sorted(child["variations"]) == sorted(word for word in seen.split(",") if word != "own"), tags
        assert child["why"]["names"] == ["d"]
        assert child["tags"] == {"_free": "dep,_a,_free"}.get(tags, f"dep,{tags}")  # without the replaced variation
    more = {"d": {"speed": "9", "env": {"CM_PART": "other"}, "version": "1.2"}}
    assert home.run("top", adr=more)["new_env"]["CM_SEEN"] == "a,9,other,1.2"
    assert home.run("top", plan=True, adr=more)["plan"]["children"][0]["version_asked"] == "==1.2"


def test_two_variations_of_one_group_in_one_amendment_are_refused(home, top):
    result = home.run("top", adr={"d": {"tags": "_b,_v.1"}})
    assert (result["return"], "exclude each other" in result["error"]) == (20, True)
    assert home.run("top", plan=True, adr={"d": {"tags": "_b,_v.1"}})["return"] == 20


def test_what_is_said_on_the_command_line_replaces_what_a_meta_says(home):
    home.script("dep", GROUPED, customize=SEE)
    deps = [{"tags": "dep,_a", "names": ["d"]}]
    home.script("top", {"deps": deps, "new_env_keys": ["CM_SEEN"], "variations": {"x": {"adr": {"d": {"tags": "_b"}}}}})
    assert home.run("top,_x")["new_env"]["CM_SEEN"] == "b"
    assert home.run("top,_x", adr={"d": {"tags": "_w.2"}})["new_env"]["CM_SEEN"] == "w.2"
    assert home.run("top,_x", adr={"d": {"tags": "_w.2"}})["deps"] == ["dep,_w.2"]


def test_a_name_that_nothing_has_is_a_warning_in_plan_and_run(home):
    home.script("deep")
    home.script("dep", {"variations": {"x": {"deps": [{"tags": "deep", "names": ["compiler"]}]}}})
    home.script("top", {"deps": [{"tags": "dep", "names": ["d"]}]})
    warning = "WARNING: --adr.compilr has no effect: no dependency of top has that name; did you mean 'compiler'?"
    for flags in ((), ("--plan",)):
        wrong = home.cli("run", "script", "--tags=top", "--adr.compilr.tags=_x", *flags)
        assert (wrong.returncode, wrong.stdout.count(warning) + wrong.stderr.count(warning)) == (0, 1), wrong
        right = home.cli("run", "script", "--tags=top", "--adr.compiler.tags=deep", "--adr.d.tags=dep", *flags)
        assert "WARNING" not in right.stdout + right.stderr


@pytest.mark.parametrize(
    "code", [RUNNER, RUNNER.replace('i["automation"].run(', '(lambda f: f)(i["automation"].run)(')]
)
def test_of_a_script_whose_code_runs_others_no_name_is_known(home, code):
    home.script("dep", GROUPED, customize=SEE)
    home.script("top", {"new_env_keys": ["CM_SEEN"]}, customize=code)
    done = home.cli("run", "script", "--tags=top", "--adr.other.tags=_x")
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False)


def test_code_can_ask_what_an_amendment_reaches(home):
    home.script("deep")
    home.script("dep", {"input_mapping": {"speed": "CM_SPEED"}, "deps": [{"tags": "deep", "names": ["d", "e"]}]})
    asked = 'i["automation"].reach({"tags": "dep,_any"})'
    home.script(
        "top",
        customize=f"def preprocess(i):\n    print({asked})\n    return {{'return': 0}}\n\n\n"
        f"def plan(i):\n    print({asked})\n    return {{'return': 0}}\n",
    )
    for flags in ((), ("--plan",)):
        done = home.cli("run", "script", "--tags=top", *flags)
        assert str({"return": 0, "inputs": {"speed": "CM_SPEED"}, "names": ["d", "e"]}) in done.stdout


READS = 'def preprocess(i):\n    print(i["env"].get("CM_KNOWN_KEY", ""))\n    return {"return": 0}\n'


@pytest.mark.parametrize("key", ["CM_KNOWN_KYE", "LLAMA2_CHECKPOINT_PATH", "CUDA_VISIBLE_DEVICES"])
def test_an_environment_key_that_nothing_reads_is_a_warning_in_plan_and_run(home, key):
    home.script("dep", customize=READS)
    home.script("top", {"deps": [{"tags": "dep"}], "input_mapping": {"known": "CM_KNOWN_KEY"}})
    for flags in ((), ("--plan",)):
        wrong = home.cli("run", "script", "--tags=top", f"--env.{key}=x", *flags)
        said = f"WARNING: --env.{key} has no effect: nothing below top reads it"
        assert (wrong.returncode, (wrong.stdout + wrong.stderr).count(said)) == (0, 1), wrong
        right = home.cli("run", "script", "--tags=top", "--env.CM_KNOWN_KEY=x", "--env.HF_TOKEN=y", *flags)
        assert "WARNING" not in right.stdout + right.stderr


def test_a_shell_file_and_the_programs_that_it_starts_may_read_every_key(home):
    home.script("dep", run="env > /dev/null\n")
    home.script("top", {"deps": [{"tags": "dep"}]})
    done = home.cli("run", "script", "--tags=top", "--env.ANY_KEY=x")
    assert "WARNING" not in done.stdout + done.stderr


READS_SIZE = READS.replace("CM_KNOWN_KEY", "CM_SIZE")


def other_repository(home, name, tags, text, *, own=()):
    """Register a second repository with a script whose file `name` has this text; and write `own` scripts here."""
    repo = home.path.parent / "other"
    folder = repo / "script" / "theirs"
    folder.mkdir(parents=True)
    (repo / "cmr.yaml").write_text('alias: other\nuid: "00000000000000f3"\n')
    written = home.script(tags)
    (folder / "_cm.yaml").write_text((written / "_cm.yaml").read_text().replace("00000001a", "00000009b"))
    (folder / name).write_text(text)
    if tags not in own:
        (written / "_cm.yaml").unlink()
    home.register(home.engine, home.repo, repo)


@pytest.mark.parametrize("name", ["customize.py", "run.sh"])
@pytest.mark.parametrize("between", [(), ("middle",)])
def test_a_key_that_a_dependency_in_another_repository_reads_has_an_effect(home, name, between):
    other_repository(home, name, "dep", READS_SIZE if name == "customize.py" else 'echo "$CM_SIZE"\n')
    for tags in between:
        home.script(tags, {"deps": [{"tags": "dep"}]})
    home.script("top", {"deps": [{"tags": between[0] if between else "dep"}]})
    for flags in ((), ("--plan",)):
        done = home.cli("run", "script", "--tags=top", "--env.CM_SIZE=x", *flags)
        assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False), done


def test_what_a_script_of_another_repository_reads_has_none_where_the_own_one_is_meant(home):
    other_repository(home, "customize.py", "dep", READS_SIZE, own=("dep",))
    home.script("top", {"deps": [{"tags": "dep"}]})
    done = home.cli("run", "script", "--tags=top", "--env.CM_SIZE=x")
    assert "WARNING: --env.CM_SIZE has no effect" in done.stdout + done.stderr

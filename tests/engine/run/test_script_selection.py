import pytest


def test_unknown_tags_name_the_nearest_script(home):
    home.script("detect,os")
    done = home.done("run", "script", "--tags=detect,oss")
    assert done.returncode == 16
    assert "no scripts were found" in done.stderr
    assert "did you mean detect,os (detect-os)?" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_variation_names_the_nearest(home):
    home.script("one", {"variations": {"offline": {}, "server": {}}})
    result = home.run("one,_sever")
    assert result["return"] == 20
    assert "'sever'" in result["error"]
    assert "did you mean 'server'?" in result["error"]


def test_unknown_flag_of_a_strict_script_names_the_nearest(home):
    home.script("one", {"strict_input": True, "input_mapping": {"scenario": "CM_S"}})
    result = home.run("one", scenaro="Offline")
    assert result["return"] == 20
    assert "did you mean 'scenario'?" in result["error"]
    assert home.run("one", scenario="Offline", quiet=True, verbose=False, adr={}, j=False)["return"] == 0


@pytest.mark.parametrize("dash", ["\N{EN DASH}", "\N{EM DASH}", "\N{EN DASH}-", "\N{MINUS SIGN}\N{MINUS SIGN}"])
def test_a_flag_that_begins_with_a_dash_is_named_with_its_hyphens(home, dash):
    home.script("one")
    done = home.done("run", "script", "--tags=one", f"{dash}input=a,b")
    assert done.returncode == 20
    assert "remedy: type --input=a,b\n" in done.stderr


def test_more_words_than_the_name_of_a_script_are_refused(home):
    home.script("one")
    for words in (["one", "two"], ["one here", "two"], ["one", "--quiet", "two"]):
        done = home.done("run", "script", *words)
        assert done.returncode == 20
        assert "'two': a command runs one script" in done.stderr


def test_unknown_flag_of_a_lenient_script_is_warned_of_where_a_person_typed_it(home):
    home.script("dep")
    home.script("one", {"input_mapping": {"scenario": "CM_S"}, "deps": [{"tags": "dep", "colour": "red"}]})
    done = home.done("run", "script", "--tags=one", "--scenaro=Offline", "--pln")
    assert done.returncode == 0
    warned = [line.partition("] ")[2] for line in done.stdout.splitlines() if "WARNING" in line]
    assert warned[-2:] == [
        "WARNING: one has no input --scenaro; did you mean 'scenario'?",
        "WARNING: one has no input --pln; did you mean 'plan'?",
    ]
    assert "colour" not in done.stdout


@pytest.mark.parametrize(
    ("tags", "cause", "remedy"),
    [
        ("detect,oss", "no script has the tag 'oss'", "did you mean detect,os (detect-os)?"),
        ("detect,os,cpu", "no script has all tags; without 'cpu', detect-os matches", "(detect-cpu) or"),
        ("detect,os,-host", "-host excludes detect-os", "did you mean detect,cpu (detect-cpu)?"),
        ("nothing", "no script has the tag 'nothing'", "cm find script"),
    ],
)
def test_tags_that_match_nothing_name_the_tag_that_prevents_the_match(home, tags, cause, remedy):
    home.script("detect,os", {"tags": ["detect", "os", "host"], "tags_help": "detect,os"})
    home.script("detect,cpu")
    error = home.run(tags)["error"]
    assert cause in error
    assert remedy in error


def test_variations_that_no_one_script_has_together(home):
    home.script("same,a", {"variations": {"x": {}, "y": {}}})
    home.script("same,b", {"variations": {"z": {}}})
    error = home.run("same,_x,_y,_z")["error"]
    assert "same-a has no variation 'z'" in error
    assert "_z is one of same-b, which does not have the other" in error


def test_dependency_with_a_mistyped_key_of_a_strict_script_fails(home):
    home.script("dep", {"strict_input": True})
    home.script("one", {"deps": [{"tags": "dep", "update_tags_from_env_with_prefixx": {"_": ["A"]}}]})
    assert home.run("one")["return"] == 20


def test_variations_choose_among_scripts_of_the_same_tags(home):
    home.script("same,a", {"variations": {"x": {}}, "env": {"CM_X": "a"}, "new_env_keys": ["CM_X"]})
    home.script("same,b", {"variations": {"y.#": {}}, "env": {"CM_X": "b"}, "new_env_keys": ["CM_X"]})
    assert home.run("same,_y.1")["new_env"]["CM_X"] == "b"


@pytest.mark.parametrize("tags", ["one,-one", "one,_a,-_a"])
def test_asked_for_and_excluded_contradict(home, tags):
    home.script("one", {"variations": {"a": {}}})
    assert home.run(tags)["return"] == 20


def test_by_name_and_by_words(home):
    home.script("detect,os")
    assert home.done("run", "script", "detect-os").returncode == 0
    assert home.done("run", "script", "synthetic:detect-os").returncode == 0
    assert home.done("run", "script", "detect os").returncode == 0
    assert home.done("run", "script", "detect-as").returncode == 16


def test_no_tags_at_all(home):
    assert home.run("")["return"] == 20


def test_a_script_added_after_indexing_is_found(home):
    home.script("first")
    assert home.run("first")["return"] == 0
    home.script("second")
    assert home.run("second")["return"] == 0


def test_a_removed_script_is_not_found(home):
    folder = home.script("first")
    assert home.run("first")["return"] == 0
    (folder / "_cm.yaml").unlink()
    assert home.run("first")["return"] == 16


def test_a_broken_meta_does_not_hide_other_scripts_and_tells_file_and_line(home):
    home.script("good")
    home.run("good")
    folder = home.script("broken")
    (folder / "_cm.yaml").write_text("alias: broken\ntags: [a\n")
    assert home.run("good")["return"] == 0
    assert home.run("nothing,else")["return"] == 16
    (home.repo / "script" / "good" / "_cm.yaml").write_text("tags: [good\nx: y: z\n")
    result = home.run("good")
    assert result["return"] == 3
    assert "_cm.yaml" in result["error"]
    assert "line" in result["error"]


def test_without_the_index(home):
    home.script("one")
    assert home.cli("run", "script", "--tags=one", CM_INDEX="no").returncode == 0


def test_help_and_show(home):
    home.script(
        "one",
        {
            "variations": {"fast": {"group": "speed", "default": True}},
            "input_mapping": {"who": "CM_WHO"},
            "input_description": {"who": {"desc": "name to greet", "default": "world"}},
        },
    )
    general = home.done("run", "script", "--help")
    assert general.returncode == 0
    assert "cm run script --tags=" in general.stdout
    for words in (("run", "script", "--tags=one", "--help"), ("show", "script", "--tags=one")):
        page = home.done(*words)
        assert page.returncode == 0
        for text in ("one", "--who", "name to greet (default: world)", "speed:  _fast (default)"):
            assert text in page.stdout
    assert home.done("help", "script").returncode == 0


def test_test_action_runs_the_inputs_of_the_meta(home):
    home.script(
        "one", {"tests": {"run_inputs": [{"env": {"CM_X": "1"}}, {"env": {"CM_X": "2"}}]}}, run='echo "ran $CM_X"'
    )
    done = home.done("test", "script", "--tags=one")
    assert done.returncode == 0
    assert "ran 1" in done.stdout
    assert "ran 2" in done.stdout


def test_scripts_of_the_same_tags_are_taken_from_the_repository_that_asks(home):
    for name in ("a_first", "z_last"):
        folder = home.repo.with_name(name)
        folder.mkdir()
        (folder / "cmr.yaml").write_text(f'alias: {name}\nuid: "00000000000000{name[0]}"\n'.replace("z", "b"))
        home.repo = folder
        home.script("dep", {"env": {"CM_X": name}, "new_env_keys": ["CM_X"], "sort": -1 if name == "a_first" else 0})
        home.script(f"one,{name}", {"deps": [{"tags": "dep"}], "new_env_keys": ["CM_X"]})
    home.register(home.engine, home.repo.with_name("a_first"), home.repo)
    assert home.run("one,a_first")["new_env"]["CM_X"] == "a_first"
    assert home.run("one,z_last")["new_env"]["CM_X"] == "z_last"
    assert home.run("dep")["new_env"]["CM_X"] == "a_first"


def test_tags_that_two_scripts_share_are_refused_and_both_are_named(home):
    for name in ("first", "second"):
        script = {"shared_tags": ["run", "both"], "tags_help": f"both,{name}", "name": f"the {name} of two"}
        home.script(f"run,both,{name}", {**script, "variations": {"fast": {}}})
    refused = home.run("both,_fast")
    assert refused["return"] == 20
    assert "--tags=both" in refused["error"] and "may mean both,first or both,second" in refused["error"]
    assert "both,second: the second of two" in refused["error"]
    assert "cm run script --tags=both,first,_fast or cm run script --tags=both,second,_fast" in refused["error"]
    assert home.run("both,first")["return"] == 0
    assert home.run("run,second,_fast")["return"] == 0

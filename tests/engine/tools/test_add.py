import pytest

from cm4vllm.engine.tools.add import TEMPLATES


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_new_script_lints_clean_and_runs(home, kind):
    done = home.cli("add", "script", "synthetic:my-recipe.2", "--tags=my,recipe", f"--template={kind}")
    assert done.returncode == 0, done.stderr
    folder = home.repo / "script" / "my-recipe.2"
    assert str(folder / "_cm.yaml") in done.stdout
    assert home.cli("lint", "script", "my-recipe.2").stdout.splitlines()[-1] == "1 scripts, all clean"
    assert home.run("my,recipe", text="a b")["new_env"] == {"CM_MY_RECIPE_2_RESULT": "a b"}
    assert home.run("my,recipe", txt="a b")["return"] == 20
    assert home.cli("test", "script", "my-recipe.2").returncode == 0
    typed = next(line for line in done.stdout.splitlines() if line.startswith("cm run"))
    assert home.cli(*typed.split()[1:]).returncode == 0
    assert "my-recipe.2" in home.cli("find", "script", "--tags=my,recipe").stdout


def test_where_a_new_script_goes(home):
    assert home.cli("add", "script", "here", cwd=home.repo).returncode == 0
    assert (home.repo / "script" / "here" / "README.md").is_file()
    assert home.cli("add", "script", "else-where").returncode == 0
    assert (home.path / "repos" / "local" / "script" / "else-where" / "_cm.yaml").is_file()
    assert home.run("else,where")["return"] == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 20, "needs a name"),
        (["Bad Name"], 20, "cannot be the name of a script"),
        (["nowhere:x"], 16, "no repository 'nowhere'"),
        (["x", "--template=pyton"], 20, "did you mean 'python'?"),
        (["x", "--tags=_a"], 20, "cannot be a tag"),
        (["one"], 20, "a script 'one' exists already"),
        (["x", "--tags=one"], 20, "already matches one"),
    ],
)
def test_what_cannot_be_added_is_told(home, words, code, text):
    home.script("one")
    done = home.cli("add", "script", *words)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr

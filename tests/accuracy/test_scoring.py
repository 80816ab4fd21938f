"""A whole accuracy run scored: accuracy.txt, accuracy.json, and what is refused."""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.accuracy import scorer_needs
from cm4vllm.accuracy.graders.catalogue import GraderRecord
from cm4vllm.accuracy.scorer_needs import ScoreInputs, ready_graders, score_needs
from cm4vllm.accuracy.scoring import require_scorable, score_run
from cm4vllm.assets.tokenizer_file import Detokenizer
from cm4vllm.common.errors import CmError, DatasetError, InstallError, ModelError, RunFailed, UsageError
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.accuracy import AccuracyRecord
from cm4vllm.records.run import RunRecord
from cm4vllm.rules import Mode, Scenario, terms

OUTPUTS = ["the ship from Riga landed . ", "the ship sailed on Monday .", "ten tons of salt"]
#: As the checker searches accuracy.txt (submission_checker/constants.py, ACC_PATTERN).
PATTERNS = {
    "rouge1": r".*'rouge1':\s+'?([\d.]+)'?.*",
    "rouge2": r".*'rouge2':\s+'?([\d.]+)'?.*",
    "rougeL": r".*'rougeL':\s+'?([\d.]+)'?.*",
    "rougeLsum": r".*'rougeLsum':\s+'?([\d.]+)'?.*",
    "gen_len": r".*'gen_len':\s([\d.]+).*",
    "tokens_per_sample": r".*'tokens_per_sample':\s([\d.]+).*",
}


def test_the_scores_of_a_run(accuracy_run):
    folder = accuracy_run.write(OUTPUTS, [(2, "ten tons of salt"), (0, "the ship from Oslo landed ."), (1, "silk")])
    record = score_run(folder)
    # rouge1 of the three pairs: 1, 4/5, 0 (punctuation is no word)
    assert record.values["rouge1"] == pytest.approx(100 * (1 + 4 / 5 + 0) / 3, abs=1e-4)
    assert record.values["gen_num"] == record.samples == record.samples_expected == 3
    assert record.values["gen_len"] == len("ten tons of salt") + len("the ship from Oslo landed .") + len("silk")
    assert record.values["gen_tok_len"] == record.tokens == 5 + 7 + 2
    assert record.values["tokens_per_sample"] == round(14 / 3, 1)
    assert record.notice == REHEARSAL_NOTICE
    assert record.log_sha256 == hashlib.sha256((folder / "mlperf_log_accuracy.json").read_bytes()).hexdigest()
    assert read_record(folder / "accuracy.json", AccuracyRecord) == record


def test_accuracy_txt_is_what_the_checker_reads_beside_the_targets_of_the_benchmark(accuracy_run):
    folder = accuracy_run.write(OUTPUTS, [(i, text) for i, text in enumerate(OUTPUTS)])
    record = score_run(folder)
    text = (folder / "accuracy.txt").read_text()
    assert "np." not in text
    for label, pattern in PATTERNS.items():
        values = [m[1] for line in text.splitlines() if (m := re.match(pattern, line))]
        assert [float(value) for value in values] == [record.values[label]]
    assert "hash=" not in text
    scores = {score.label: score for score in record.scores}
    assert scores["rouge1"].lower == pytest.approx(38.391408)
    assert scores["rouge1"].met
    assert scores["gen_len"].upper == 8984408.4
    assert scores["gen_len"].met is None  # a total, and three samples of 13,368


def test_the_first_answer_to_a_sample_counts_and_an_empty_one_scores_zero(accuracy_run):
    answers = [(0, OUTPUTS[0]), (1, OUTPUTS[1]), (2, OUTPUTS[2]), (0, "silk")]
    record = score_run(accuracy_run.write(OUTPUTS, answers))
    assert record.values["rouge1"] == 100.0
    assert record.samples == 3
    folder = accuracy_run.write(["salt", "silk", "salt"], [(0, ""), (1, "silk"), (2, "")])
    assert score_run(folder).values["rouge1"] == 33.3333


def changed_log(run, folder):
    with (folder / "mlperf_log_accuracy.json").open("a") as file:
        file.write("\n")


def of_performance(run, folder):
    run.change(terms=terms("v6.1", "llama3.1-8b", Scenario.OFFLINE, Mode.PERFORMANCE))


@pytest.mark.parametrize(
    ("given", "change", "error", "words"),
    [
        ({"answers": [(0, "salt"), (2, "salt")]}, None, RunFailed, "does not cover the dataset; .*2 of 3"),
        ({"dtype": np.int64}, None, RunFailed, "not 32-bit"),
        ({}, changed_log, RunFailed, "not the log that the run wrote"),
        ({}, of_performance, RunFailed, "no accuracy run"),
        ({"tokenizer_sha256": "0" * 64}, None, ModelError, "tokenizer"),
        (
            {},
            lambda run, folder: (folder / "dataset.json").write_text('[{"output": "x"}]'),
            DatasetError,
            "dataset.json has changed since its record was made",
        ),
        ({}, lambda run, folder: (folder / "run.json").unlink(), CmError, "run.json"),
    ],
)
def test_what_is_no_whole_accuracy_run_is_refused(accuracy_run, given, change, error, words):
    folder = accuracy_run.write(OUTPUTS, **{"answers": list(enumerate(OUTPUTS)), **given})
    if change:
        change(accuracy_run, folder)
    message, _, cause = words.partition("; ")
    with pytest.raises(error, match=message) as failure:
        score_run(folder)
    assert re.search(cause, failure.value.cause)
    assert not (folder / "accuracy.txt").exists()


def test_what_scoring_would_lack_is_reported_before_the_run(accuracy_run, tmp_path, monkeypatch):
    import nltk.data

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "none")])
    folder = accuracy_run.write(["salt"], [(0, "salt")], sentences="punkt_tab")
    with pytest.raises(InstallError, match="punkt_tab"):
        require_scorable(read_record(folder / "run.json", RunRecord).settings)
    accuracy_run.write(["salt"], [(0, "salt")], tokenizer_sha256="0" * 64)
    with pytest.raises(ModelError, match="tokenizer"):
        require_scorable(read_record(folder / "run.json", RunRecord).settings)


@pytest.mark.parametrize(
    ("round_name", "benchmark", "script", "more"),
    [
        ("v6.1", "llama3.1-8b", "language/llama3.1-8b/evaluation.py", []),
        ("v5.1", "llama2-70b-99", "language/llama2-70b/evaluate-accuracy.py", ["--checkpoint-path=x"]),
    ],
)
def test_a_run_has_the_scores_that_its_reference_script_prints(
    accuracy_run, printed_by, model_folder, round_name, benchmark, script, more
):
    import pandas

    draw = random.Random(3)
    words = "the ship from Riga Oslo landed . sailed late ten tons of salt ! silk timber on Monday".split()
    outputs = [" ".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(80)]
    answers = [(index, " ".join(draw.choices(words, k=draw.randint(0, 40)))) for index in draw.sample(range(80), 80)]
    folder = accuracy_run.write(outputs, [*answers, *answers[:5]])
    accuracy_run.change(terms=terms(round_name, benchmark, Scenario.OFFLINE, Mode.ACCURACY))
    record = score_run(folder)
    pandas.DataFrame({"output": outputs}).to_pickle(folder / "dataset.pkl")
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    decode = SimpleNamespace(eos_token="", batch_decode=lambda ids, **how: tokenizer.decode_batch(ids, **how))
    files = [
        f"--dataset-file={folder / 'dataset.pkl'}",
        f"--mlperf-accuracy-file={folder / 'mlperf_log_accuracy.json'}",
    ]
    printed = printed_by(
        "b66003e1",
        script,
        [*files, "--dtype=int32", *more],
        pd=pandas,
        Dataset=lambda **_: SimpleNamespace(targets=outputs),
        AutoTokenizer=SimpleNamespace(from_pretrained=lambda *_, **__: decode),
        Pool=lambda count: contextlib.nullcontext(SimpleNamespace(map=lambda call, chunks: list(map(call, chunks)))),
        cpu_count=lambda: 3,
    )
    assert {label: float(value) for label, value in printed.items()} == {
        label: record.values[label] for label in printed
    }
    assert {"rouge1", "rouge2", "rougeL", "rougeLsum", "gen_len", "gen_num"} <= printed.keys()


# --- the dependencies by which a run is scored alone: those that its scorer uses, on this machine


def inputs_of(folder, **more):
    return ScoreInputs(result_dir=str(folder), **more)


def test_rouge_with_a_trained_model_needs_sentences_and_no_grader(accuracy_run):
    assert score_needs(inputs_of(accuracy_run.write(["salt"], [(0, "salt")]))) == {}
    folder = accuracy_run.write(["salt"], [(0, "salt")], sentences="punkt_tab")
    assert score_needs(inputs_of(folder)) == {"CM_MLPERF_SCORES_NEED_SENTENCES": "yes"}


def test_a_scorer_with_graders_needs_those_that_can_run_and_are_not_given(accuracy_run, monkeypatch):
    folder = accuracy_run.write(["salt"], [(0, "salt")])
    accuracy_run.change(terms=terms("v6.1", "deepseek-r1", Scenario.OFFLINE, Mode.ACCURACY))
    asked = []

    def can_run(scorer, problems):
        asked.append(problems)
        return ("math", "livecodebench") if problems else ("math",)

    monkeypatch.setattr(scorer_needs, "graders_of", can_run)
    assert score_needs(inputs_of(folder)) == {"CM_MLPERF_SCORES_NEED_GRADER_MATH": "yes"}
    assert len(score_needs(inputs_of(folder, problems="/tests"))) == 2
    assert score_needs(inputs_of(folder, graders="/math/grader.json")) == {}
    assert asked == ["", "/tests"]


def test_the_graders_are_those_given_or_made_ready(tmp_path):
    for name in ("math", "mbxp"):
        (tmp_path / name).mkdir()
        record = GraderRecord(name=name, script="", official="", python="", commits={}, packages="")
        write_record(tmp_path / name / "grader.json", record)
    made = {"CM_MLPERF_SCORES_NEED_GRADER_MATH": "yes", "CM_MLPERF_GRADER_MATH": f"{tmp_path}/math/grader.json"}
    assert [grader.name for grader in ready_graders(made)] == ["math"]
    assert [grader.name for grader in ready_graders({"CM_MLPERF_GRADERS": f"{tmp_path}/mbxp/grader.json"})] == ["mbxp"]
    assert ready_graders({"CM_MLPERF_GRADER_MATH": f"{tmp_path}/math/grader.json"}) == []  # that of an earlier step


def test_a_folder_without_a_run_is_refused_scorer_needs(tmp_path):
    with pytest.raises(UsageError, match="holds no run") as refused:
        score_needs(inputs_of(tmp_path))
    assert "--result_dir=FOLDER" in refused.value.remedy


# --- texts out of token ids


@pytest.fixture
def folder(model_folder, tmp_path):
    shutil.copy(model_folder / "tokenizer.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("asked", "text"), [(True, "salt, silk."), (False, "salt , silk ."), (None, "salt , silk .")])
def test_spaces_are_mended_when_the_tokenizer_asks_for_it(folder, asked, text):
    if asked is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"clean_up_tokenization_spaces": asked}))
    assert Detokenizer(folder).decode([[12, 19, 13, 18]]) == [text]


def test_a_broken_tokenizer_is_named(folder):
    assert Detokenizer(folder).decode([[99, 12, 99]]) == ["salt"]  # special tokens are left out
    for name in ("tokenizer_config.json", "tokenizer.json"):
        (folder / name).write_text("[")
        with pytest.raises(ModelError, match=name):
            Detokenizer(folder)


# --- the recipes of this room, through the `cm` command


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
        words = [CM, "run", "script", f"--tags={tags}", "--quiet", *flags]
        done = subprocess.run(words, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


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
    for words, *flags in (("--result_dir=...", "--plan"), ("holds no run", f"--result_dir={tmp_path}")):
        code, output = cm("process,mlperf,accuracy", *flags)
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
    assert read_record(folder / "accuracy.json", AccuracyRecord).scorer.endswith(", rouge-score 0.1.2")
    code, output = cm("process,mlperf,accuracy", f"--result_dir={folder}", "--env.CM_MLPERF_RESULTS_DIR=/results")
    assert code == 0 and "ROUGE1" not in output, "the main job shows the scores of all runs together"

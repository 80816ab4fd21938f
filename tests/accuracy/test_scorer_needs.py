"""The dependencies by which a run is scored alone: those that its scorer uses, on this machine."""

import pytest

from cm4vllm.accuracy import scorer_needs
from cm4vllm.accuracy.graders.records import GraderRecord
from cm4vllm.accuracy.scorer_needs import ScoreInputs, ready_graders, score_needs
from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import write_record
from cm4vllm.rules import Mode, Scenario, terms


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


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no run") as refused:
        score_needs(inputs_of(tmp_path))
    assert "--result_dir=FOLDER" in refused.value.remedy

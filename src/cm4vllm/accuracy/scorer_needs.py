"""The dependencies of the scores of a run: the sentence model, normaliser and graders that its scorer uses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.accuracy.graders.records import GraderRecord
from cm4vllm.accuracy.scoring import graders_of, scorer_of
from cm4vllm.accuracy.sentences import TRAINED
from cm4vllm.common.records import read_record
from cm4vllm.records.run import RUN_FILE, RunRecord, require_run

#: The key of the folder of the run.
FOLDER = "CM_MLPERF_ACCURACY_RESULTS_DIR"
_GIVEN = "CM_MLPERF_GRADERS"
#: The key that switches on the sentence model.
SENTENCES = "CM_MLPERF_SCORES_NEED_SENTENCES"
_SPEECH = "CM_MLPERF_SCORES_NEED_SPEECH_PACKAGES"
_GRADER = "CM_MLPERF_SCORES_NEED_GRADER_"


def accuracy_folder(env: Mapping[str, Any]) -> Path:
    """Return the folder of the run that is scored. Raises UsageError where it holds no run."""
    folder = Path(env[FOLDER]).absolute()
    require_run(
        folder,
        "--tags=process,mlperf,accuracy --result_dir=FOLDER, that of a run with --mode=accuracy of "
        "app,mlperf,inference,vllm",
    )
    return folder


def score_needs(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment keys that switch on the dependencies by which a run is scored, read from its record.

    Only graders that can run on this machine are asked for; what others judge has no score.
    """
    settings = read_record(accuracy_folder(env) / RUN_FILE, RunRecord).settings
    scorer = scorer_of(settings.terms)
    needs = {SENTENCES: "yes"} if scorer.rouge and settings.dataset.sentences == TRAINED else {}
    if scorer.normalises:
        needs[_SPEECH] = "yes"
    if not env.get(_GIVEN):
        names = graders_of(scorer, str(env.get("CM_LIVECODEBENCH_DIR") or ""))
        needs |= {f"{_GRADER}{name.upper()}": "yes" for name in names}
    return needs


def ready_graders(env: Mapping[str, Any]) -> list[GraderRecord]:
    """Return the graders that are given and the graders that the dependencies made ready."""
    files = str(env.get(_GIVEN) or "").split(",")
    needed = (key.removeprefix(_GRADER) for key in env if key.startswith(_GRADER))
    files += [str(env.get(f"CM_MLPERF_GRADER_{name}") or "") for name in needed]
    return [read_record(Path(file), GraderRecord) for file in files if file]

"""The dependencies of the scores of a run: the sentence model, normaliser and graders that its scorer uses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cm4vllm.accuracy.graders.catalogue import GraderRecord
from cm4vllm.accuracy.scoring import graders_of, scorer_of
from cm4vllm.accuracy.sentences import TRAINED
from cm4vllm.common import input_types
from cm4vllm.common.records import read_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.records.run import RUN_FILE, RunRecord, require_run

#: The key that switches on the sentence model.
SENTENCES = "CM_MLPERF_SCORES_NEED_SENTENCES"
_GRADER = "CM_MLPERF_SCORES_NEED_GRADER_"


class ScoreInputs(Settings, frozen=True, kw_only=True):
    """The folder of the run that is scored, and what it is scored with; `results_dir` is that of a job."""

    result_dir: input_types.ScoredDir = ""
    results_dir: input_types.ResultsDir = ""
    graders: Annotated[str, Key("CM_MLPERF_GRADERS")] = ""
    problems: input_types.ProblemsDir = ""
    nltk_data: Annotated[str | None, Key("CM_NLTK_DATA")] = None
    speech_packages: input_types.SpeechPackages = ""

    @property
    def is_prepared_by_job(self) -> bool:
        """Return True if a job has made ready what its runs need, or has not made the run yet."""
        return bool(self.results_dir) or not self.result_dir

    @property
    def folder(self) -> Path:
        """The folder of the run. Raises UsageError where it holds no run."""
        folder = Path(self.result_dir).absolute()
        require_run(
            folder,
            "--tags=process,mlperf,accuracy --result_dir=FOLDER, that of a run with --mode=accuracy of "
            "app,mlperf,inference,vllm",
        )
        return folder


def score_needs(inputs: ScoreInputs) -> dict[str, str]:
    """Return the environment keys that switch on the dependencies by which a run is scored, read from its record.

    Only graders that can run on this machine are asked for; what others judge has no score.
    """
    settings = read_record(inputs.folder / RUN_FILE, RunRecord).settings
    scorer = scorer_of(settings.terms)
    needs = {SENTENCES: "yes"} if scorer.rouge and settings.dataset.sentences == TRAINED else {}
    if scorer.normalises:
        needs["CM_MLPERF_SCORES_NEED_SPEECH_PACKAGES"] = "yes"
    if not inputs.graders:
        needs |= {f"{_GRADER}{name.upper()}": "yes" for name in graders_of(scorer, inputs.problems)}
    return needs


def ready_graders(env: Mapping[str, Any]) -> list[GraderRecord]:
    """Return the graders that are given and the graders that the dependencies made ready, under keys of their names."""
    files = ScoreInputs.of(env).graders.split(",")
    needed = (key.removeprefix(_GRADER) for key in env if key.startswith(_GRADER))
    files += [str(env.get(f"CM_MLPERF_GRADER_{name}") or "") for name in needed]
    return [read_record(Path(file), GraderRecord) for file in files if file]

"""Scores an accuracy run."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.scorer_needs import ScoreInputs, score_needs

    inputs = ScoreInputs.of(i["env"])
    if not inputs.is_prepared_by_job:
        i["env"].update(score_needs(inputs))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.scorer_needs import ScoreInputs, ready_graders
    from cm4vllm.accuracy.scoring import score_run
    from cm4vllm.common.progress import say_text
    from cm4vllm.records.accuracy import ACCURACY_FILE
    from cm4vllm.report.final_table import score_table

    env = i["env"]
    inputs = ScoreInputs.of(env)
    folder = inputs.folder
    graders = ready_graders(env)
    score_run(folder, nltk_data=inputs.nltk_data, graders=graders, speech_packages=inputs.speech_packages)
    if not inputs.results_dir:
        say_text(score_table(folder))
    env["CM_MLPERF_ACCURACY_RECORD"] = str(folder / ACCURACY_FILE)
    return {"return": 0}

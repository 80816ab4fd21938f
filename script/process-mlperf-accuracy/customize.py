"""Scores an accuracy run."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.scorer_needs import FOLDER, score_needs

    env = i["env"]
    if env.get(FOLDER) and not env.get("CM_MLPERF_RESULTS_DIR"):  # a job has made ready what its runs need
        env.update(score_needs(env))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.scorer_needs import accuracy_folder, ready_graders
    from cm4vllm.accuracy.scoring import score_run
    from cm4vllm.common.progress import say_text
    from cm4vllm.records.accuracy import ACCURACY_FILE
    from cm4vllm.report.run_table import score_table

    env = i["env"]
    folder = accuracy_folder(env)
    score_run(
        folder,
        nltk_data=env.get("CM_NLTK_DATA"),
        graders=ready_graders(env),
        speech_packages=env.get("CM_SPEECH_PACKAGES", ""),
    )
    if not env.get("CM_MLPERF_RESULTS_DIR"):
        say_text(score_table(folder))
    env["CM_MLPERF_ACCURACY_RECORD"] = str(folder / ACCURACY_FILE)
    return {"return": 0}

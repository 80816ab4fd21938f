"""Scores an accuracy run."""


def preprocess(i):
    from pathlib import Path

    from cm4vllm.accuracy.records import ACCURACY_FILE
    from cm4vllm.accuracy.scoring import score_run
    from cm4vllm.common.errors import UsageError

    env = i["env"]
    if not env.get("CM_MLPERF_ACCURACY_RESULTS_DIR"):
        raise UsageError("no accuracy run is named", remedy="--result_dir=FOLDER of an accuracy run")
    folder = Path(env["CM_MLPERF_ACCURACY_RESULTS_DIR"]).absolute()
    score_run(folder, nltk_data=env.get("CM_NLTK_DATA"))
    env["CM_MLPERF_ACCURACY_RECORD"] = str(folder / ACCURACY_FILE)
    return {"return": 0}

"""Scores an accuracy run."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from cm4vllm.accuracy.graders.records import GraderRecord
    from cm4vllm.accuracy.records import ACCURACY_FILE
    from cm4vllm.accuracy.scoring import score_run
    from cm4vllm.common.errors import UsageError
    from cm4vllm.common.records import read_record

    env = i["env"]
    if not env.get("CM_MLPERF_ACCURACY_RESULTS_DIR"):
        raise UsageError("no accuracy run is named", remedy="--result_dir=FOLDER of an accuracy run")
    folder = Path(env["CM_MLPERF_ACCURACY_RESULTS_DIR"]).absolute()
    graders = [read_record(Path(file), GraderRecord) for file in env.get("CM_MLPERF_GRADERS", "").split(",") if file]
    score_run(folder, nltk_data=env.get("CM_NLTK_DATA"), graders=graders)
    env["CM_MLPERF_ACCURACY_RECORD"] = str(folder / ACCURACY_FILE)
    return {"return": 0}

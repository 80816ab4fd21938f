"""Compares a model's files with the digests that are published for a benchmark's model."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.model_identity import identified
    from cm4vllm.assets.models import MODEL_FILE, model_env
    from cm4vllm.common.errors import UsageError
    from cm4vllm.common.records import read_record, write_record
    from cm4vllm.records.assets import ModelRecord

    env = i["env"]
    if not env.get("CM_ML_MODEL_RECORD"):
        raise UsageError("no model is named", remedy="--model_record=model.json of get,ml-model")
    proved = env.get("CM_ML_MODEL_IDENTITY_RECORD")
    record = identified(
        read_record(Path(env["CM_ML_MODEL_RECORD"]), ModelRecord),
        env["CM_MLPERF_MODEL"],
        read_record(Path(proved), ModelRecord) if proved else None,
    )
    path = Path.cwd() / MODEL_FILE
    write_record(path, record)
    env.update({"CM_ML_MODEL_IDENTITY_RECORD": str(path), **model_env(record, Path.cwd())})
    return {"return": 0}

"""Quantises a model and describes the resulting checkpoint."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.quantization import QuantizationSettings, require_scheme
    from cm4vllm.common.settings import read_settings

    require_scheme(read_settings(QuantizationSettings, i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import MODEL_FILE, tokenizer_sha256
    from cm4vllm.assets.quantization import QuantizationSettings, quantize
    from cm4vllm.common.settings import read_settings

    env = i["env"]
    record = quantize(read_settings(QuantizationSettings, env), Path.cwd())
    env["CM_ML_MODEL_NAME"] = record.name
    env["CM_ML_MODEL_PATH"] = record.path
    env["CM_ML_MODEL_RECORD"] = str(Path.cwd() / MODEL_FILE)
    env["CM_ML_MODEL_SHA256"] = record.sha256
    env["CM_ML_MODEL_TOKENIZER_SHA256"] = tokenizer_sha256(record)
    return {"return": 0}

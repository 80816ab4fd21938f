"""Compares a model's files with the digests that are published for a benchmark's model."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.model_identity import IdentityInputs, identify
    from cm4vllm.assets.models import model_exports

    exports = model_exports(identify(IdentityInputs.of(i["env"]), Path.cwd()), Path.cwd())
    i["env"].update(exports.env(), CM_ML_MODEL_IDENTITY_RECORD=exports.record)
    return {"return": 0}

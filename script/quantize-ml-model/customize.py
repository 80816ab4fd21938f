"""Quantises a model and describes the resulting checkpoint."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.quantization import QuantizationSettings, require_scheme
    from cm4vllm.common.settings import read_settings

    require_scheme(read_settings(QuantizationSettings, i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import model_env
    from cm4vllm.assets.quantization import QuantizationSettings, quantize
    from cm4vllm.common.settings import read_settings

    record = quantize(read_settings(QuantizationSettings, i["env"]), Path.cwd())
    i["env"].update(model_env(record, Path.cwd()))
    return {"return": 0}

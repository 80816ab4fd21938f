"""Quantises a model and describes the resulting checkpoint."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.quantization import Calibrated, QuantizationSettings

    i["env"].update(Calibrated(calibrated=QuantizationSettings.of(i["env"]).calibrated).env())
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import model_exports
    from cm4vllm.assets.quantization import QuantizationSettings, quantize

    i["env"].update(model_exports(quantize(QuantizationSettings.of(i["env"]), Path.cwd()), Path.cwd()).env())
    return {"return": 0}

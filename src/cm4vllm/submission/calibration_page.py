"""calibration.md: how the model was quantised, from the record that the quantisation left."""

from __future__ import annotations

from cm4vllm.assets.records import ModelRecord, QuantizationRecord
from cm4vllm.submission.measurements_json import without_folder

__all__ = ["CALIBRATION_TITLE", "calibration_page"]

CALIBRATION_TITLE = "# Calibration and quantisation"


def calibration_page(model: ModelRecord, notice: str = "") -> str:
    """Return one model's part of the page: the quantisation made here, or the known facts of an earlier one."""
    lines = [f"> **{notice}**", ""] if notice else []
    made, source = model.quantization, without_folder(model.source, model.path)
    if made is not None:
        lines += _made(made)
    elif model.weight_data_types in ("fp32", "fp16", "bf16"):
        lines += [
            f"Nothing was quantised and nothing calibrated: the weights are served as they were received, in "
            f"{model.weight_data_types} ({source})."
        ]
    else:
        lines += [
            f"The weights came quantised, to {model.weight_data_types or 'a type that their files do not tell'} "
            f"({source}); how they were calibrated is for their publisher to say. Nothing further was "
            "quantised here."
        ]
    return "\n".join(lines) + "\n"


def _made(made: QuantizationRecord) -> list[str]:
    tools = ", ".join(f"{name} {version}" for name, version in made.tools.items())
    lines = [
        f"Made from {made.base_model} (sha256 of all its files {made.base_sha256}; starting weights "
        f"{made.starting_weights}) with {tools}.",
        "",
        "| what | how |",
        "|---|---|",
        f"| weights | {made.weights} |",
        f"| activations | {made.activations} |",
        f"| keys and values | {made.kv_cache} |",
        f"| formula | `{made.formula}` |",
    ]
    if made.layers:
        lines.append(f"| layers | {made.layers} linear layers: {', '.join(made.layer_kinds)} |")
        lines.append(f"| left as they are | {', '.join(made.ignored)}, embeddings, norms |")
    if made.calibration_samples:
        lines += [
            "",
            f"Calibrated on the first {made.calibration_samples} samples ({made.calibration_tokens} tokens, "
            f"none cut or padded) of {made.calibration_dataset}, sha256 {made.calibration_sha256}.",
        ]
    else:
        lines += [
            "",
            "No calibration samples: the scales of the weights come from the weights alone, those of the "
            "activations are computed at run time.",
        ]
    return lines

"""measurements.json: what was done to the model, as the checkers ask for it."""

from pathlib import Path

from cm4vllm.common.errors import SubmissionError
from cm4vllm.records.run import RunRecord


def measurements(run: RunRecord) -> dict[str, str]:
    """Return measurements.json of one run: the checkers' five keys, none empty, and the digests behind them.

    Keys: tools/submission/submission_checker/constants.py, SYSTEM_IMP_REQUIRED_FILES. Raises SubmissionError where the
    model's record does not tell the type of its weights.
    """
    settings, model = run.settings, run.settings.model
    if not model.weight_data_types:
        raise SubmissionError(
            f"the record of the model {model.name} does not state the type of its weights",
            remedy="give the model's own folder or hub id with --vllm_model_name, so that its checkpoint can be read",
        )
    own = model.name != settings.benchmark
    content = {
        "input_data_types": "int32",  # token ids, as LoadGen is handed them
        "retraining": f"not the benchmark's weights: {without_folder(model.source, model.path)}" if own else "no",
        "starting_weights_filename": (
            model.quantization.starting_weights if model.quantization else _weights(model.name, model.path)
        ),
        "weight_data_types": model.weight_data_types,
        "weight_transformations": model.weight_transformations or "none",
        "model_sha256": model.sha256,
        "dataset_sha256": settings.dataset.source_sha256 or settings.dataset.sha256,
    }
    if run.notice:
        content["notice"] = run.notice
    return content


def _weights(name: str, path: str) -> str:
    """Name the checkpoint's files, without the folders of the machine that they lie in."""
    kinds = ("*.safetensors", "*.bin", "*.gguf")
    files = sorted(file.name for kind in kinds for file in Path(path).glob(kind)) if path else []
    if not files:
        return name
    return f"{name}/{files[0]}" + (f" to {files[-1]} ({len(files)} files)" if len(files) > 1 else "")


def without_folder(source: str, path: str) -> str:
    """Return where the model comes from, without the folders of the machine."""
    return source.replace(path, Path(path).name) if path else source

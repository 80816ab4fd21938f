"""Quantised models: calibrated on the benchmark's calibration set, and described as a submission needs it."""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from cm4vllm.assets.models import MODEL_FILE, check_unchanged
from cm4vllm.assets.samples.published_formats import rows_of
from cm4vllm.common import input_types
from cm4vllm.common.errors import DatasetError, ModelError, UsageError, nearest
from cm4vllm.common.files import require_space, sha256_of_tree, write_text
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import die_with_parent, exit_in_words, safe_environment
from cm4vllm.common.progress import Step, step
from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.records.assets import DatasetRecord, ModelRecord, QuantizationRecord
from cm4vllm.records.weights.checkpoint import fingerprint, read_checkpoint, unset_scales, weights_in_words

_SCHEMES = Path(__file__).with_name("quantization_schemes.yaml")
_COMPRESSION = Path(__file__).with_name("compression.py")
_PROGRESS = re.compile(r"(\((\d+)/(\d+)\): Calibrating|Calibrating weights|Compressing model):\s+(\d+)%")
#: The name of fp8 keys and values, which go with any scheme.
KV_FP8 = "kv-fp8"
#: The quantisation of keys and values, in the words of calibration.md, and its method.
_KV_CACHE = "fp8 (E4M3), symmetric, one static scale per tensor, from the largest value met on the calibration samples"


class Scheme(Record, frozen=True, kw_only=True):
    """A quantisation scheme, as described in quantization_schemes.yaml."""

    preset: str
    algorithm: Literal["round-to-nearest", "gptq"]
    weights: str
    activations: str
    formula: str
    calibrated: bool


@cache
def schemes() -> dict[str, Scheme]:
    """Return the quantisation schemes by name, the default first."""
    return msgspec.yaml.decode(_SCHEMES.read_bytes(), type=dict[str, Scheme])


class Calibrated(Settings, frozen=True, kw_only=True):
    """The need for a calibration set, as the recipe's dependencies ask before they get one."""

    calibrated: Annotated[bool, Key("CM_ML_MODEL_QUANTIZATION_CALIBRATED")]


class QuantizationSettings(Settings, frozen=True, kw_only=True):
    """Scheme and model; `python` is a Python that has llm-compressor, `samples` the number of first samples used."""

    scheme: Annotated[str, Key("CM_ML_MODEL_QUANTIZATION_SCHEME")] = "fp8-dynamic"
    kv_fp8: Annotated[bool, Key("CM_ML_MODEL_QUANTIZATION_KV_CACHE")] = False
    python: Annotated[str, Key("CM_LLM_COMPRESSOR_PYTHON_BIN_WITH_PATH")] = ""
    model_record: input_types.ModelRecordPath = ""
    calibration_record: Annotated[str, Key("CM_CALIBRATION_DATASET_RECORD")] = ""
    samples: input_types.CalibrationSamples = 512

    @property
    def calibrated(self) -> bool:
        """Return True if scales are computed from a calibration set. Raises UsageError for an unknown scheme."""
        require_scheme(self)
        return schemes()[self.scheme].calibrated or self.kv_fp8


def quantize(settings: QuantizationSettings, folder: Path) -> ModelRecord:
    """Quantise a model into `folder`, write its record there and return it.

    Raises UsageError, ModelError where the model cannot be quantised so, DatasetError, DiskFull.
    """
    require_scheme(settings)
    scheme = schemes()[settings.scheme]
    base = _usable_base(Path(settings.model_record))
    name = "-".join([base.name, *([settings.scheme] if scheme.preset else []), *([KV_FP8] if settings.kv_fp8 else [])])
    dataset = read_record(Path(settings.calibration_record), DatasetRecord) if settings.calibrated else None
    samples = _samples(dataset, settings.samples) if dataset else []
    require_space(
        folder,
        sum(path.stat().st_size for path in Path(base.path).glob("*.safetensors")) + 256 * 2**20,
        f"the model {name}",
    )
    facts = _compress(settings, Path(base.path), folder / name, samples)
    checkpoint = read_checkpoint(folder / name)
    quantization = _quantization(settings, base, facts, dataset, samples)
    record = ModelRecord(
        name=name,
        path=str(folder / name),
        source=f"{base.name} quantised here by llm-compressor; {base.source}",
        sha256=sha256_of_tree(folder / name),
        parameters=base.parameters,
        architecture=checkpoint.architecture,
        weight_data_types=checkpoint.weight_data_types,
        weight_transformations=_transformations(quantization),
        min_tokens=base.min_tokens,
        quantization=quantization,
        recipe=base.recipe | {"scheme": settings.scheme, "files": fingerprint(folder / name)},
    )
    write_record(folder / MODEL_FILE, record)
    return record


def _quantization(
    settings: QuantizationSettings,
    base: ModelRecord,
    facts: Mapping[str, Any],
    dataset: DatasetRecord | None,
    samples: Sequence[Sequence[int]],
) -> QuantizationRecord:
    """Return the record of how a model was quantised. `facts` are those that llm-compressor reported."""
    scheme = schemes()[settings.scheme]
    return QuantizationRecord(
        scheme=settings.scheme,
        weights=scheme.weights,
        activations=scheme.activations,
        kv_cache=_KV_CACHE if settings.kv_fp8 else "not quantised",
        formula=scheme.formula or "x_q = round_to_E4M3(clip(x / s, -448, 448)), s = max(abs(x)) / 448",
        layers=len(facts["layers"]),
        layer_kinds=sorted({layer.rpartition(".")[2] for layer in facts["layers"]}),
        ignored=facts["ignored"],
        base_model=base.name,
        base_sha256=base.sha256,
        starting_weights=weights_in_words(base.name, base.path),
        tools=facts["tools"],
        calibration_dataset=dataset.name if dataset else "",
        calibration_sha256=dataset.sha256 if dataset else "",
        calibration_samples=len(samples),
        calibration_tokens=sum(map(len, samples)),
    )


def _usable_base(record: Path) -> ModelRecord:
    """Return the model to quantise; raise ModelError where it has no weights, or is quantised already."""
    base = read_record(record, ModelRecord)
    check_unchanged(base)
    if base.is_dummy:
        raise ModelError(
            f"{base.name} has no weights to quantise",
            cause="vLLM makes random ones when it starts",
            remedy="have vLLM quantise those: --quantization=fp8 of run,vllm-server",
        )
    if read_checkpoint(Path(base.path)).quantised:
        raise ModelError(
            f"{base.name} is quantised already",
            cause=f"its weights are {base.weight_data_types}",
            remedy="give the model that it was made from",
        )
    return base


def require_scheme(settings: QuantizationSettings) -> None:
    """Raise UsageError for a scheme that does not exist, nothing to quantise, and an unusable number of samples."""
    if settings.scheme not in schemes():
        raise UsageError(
            f"unknown quantisation scheme {settings.scheme!r}",
            remedy=nearest(settings.scheme, schemes(), f"the schemes are {', '.join(schemes())}"),
        )
    if not schemes()[settings.scheme].preset and not settings.kv_fp8:
        raise UsageError(
            f"the scheme {settings.scheme} alone quantises nothing",
            remedy=f"add {KV_FP8}, or take another scheme: fp8-dynamic",
        )


def _samples(dataset: DatasetRecord, count: int) -> list[list[int]]:
    samples = [row["tok_input"] for row in rows_of(Path(dataset.path))[:count] if row.get("tok_input")]
    if not samples:
        raise DatasetError(
            f"the calibration set {dataset.name} holds no tokens", remedy="give one whose rows have tok_input"
        )
    return samples


def _compress(settings: QuantizationSettings, model: Path, folder: Path, samples: list[list[int]]) -> dict[str, Any]:
    scheme = schemes()[settings.scheme]
    method = settings.scheme + (" with fp8 keys and values" if settings.kv_fp8 else "")
    with (
        step(f"quantising {model.name}: {method}") as progress,
        staged_folder(folder) as staging,
        scratch_folder() as scratch,
    ):
        words = [
            settings.python,
            "-P",
            str(_COMPRESSION),
            f"--model={model}",
            f"--output={staging}",
            f"--preset={scheme.preset}",
            f"--algorithm={scheme.algorithm}",
            *(["--kv-fp8"] if settings.kv_fp8 else []),
        ]
        if samples:
            write_text(scratch / "samples.json", json.dumps(samples))
            words.append(f"--samples={scratch / 'samples.json'}")
        status, lines = _run_worker(words, progress)
        printed = next((line for line in reversed(lines) if line.startswith('{"layers"')), "")
        if status or not printed:
            raise ModelError(
                f"{model.name} cannot be quantised to {method}",
                cause="\n".join([exit_in_words(status), *lines[-6:]]),
                remedy="another scheme may support this architecture: fp8-dynamic has the fewest requirements",
            )
        if unset := unset_scales(staging):
            raise ModelError(
                f"{model.name} was not quantised well to {method}",
                cause=f"scales that calibration has not set: {len(unset)}, the first {unset[0]}",
                remedy="take another scheme, or give other samples with --calibration_path",
            )
    return dict(json.loads(printed))


def _run_worker(words: Sequence[str], progress: Step) -> tuple[int, list[str]]:
    """Run a program in another environment's Python, and return its exit status and its last lines.

    The step shows the progress that it prints. The program ends with this process.
    """
    lines: list[str] = []
    # No PYTHONPATH: that environment has its own packages, and ours may not come before them.
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    with subprocess.Popen(
        words,
        env=safe_environment(env),
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    ) as process:
        try:
            for line in process.stdout or ():
                lines = [*lines[-40:], line.rstrip()]
                if match := _PROGRESS.search(line):
                    progress.update(match.expand(r"\1 \4 %"))
        except BaseException:
            process.kill()
            raise
    return process.returncode, lines


def _transformations(made: QuantizationRecord) -> str:
    parts = {"weights": made.weights, "activations": made.activations, "KV cache": made.kv_cache}
    return f"quantization ({'; '.join(f'{part}: {how}' for part, how in parts.items() if how != 'not quantised')})"

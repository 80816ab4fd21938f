"""Facts read from a model folder: architecture, vocabulary, parameters, data type of the weights."""

import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.errors import ModelError
from cm4vllm.common.files import beginning_of
from cm4vllm.records.weights.config_json import json_object, section, text_config, whole_number, words
from cm4vllm.records.weights.model_size import read_architecture

#: The ends of the names of files that are read of a model, and of files of llama.cpp.
GGUF = ".gguf"
_READ = (".json", ".safetensors", ".model", ".txt", ".jinja", ".tiktoken", GGUF)
_NEEDED = (
    "give the folder that holds config.json, tokenizer.json and *.safetensors: --tags=...,_path.<folder>; "
    "or the model's hub id, owner/name"
)
#: The key of config.json that says that a folder has no weights, and is served with random ones.
DUMMY_MARK = "cm4vllm_dummy"
#: safetensors' names of data types, in the words of MLPerf's measurements.json.
_DATA_TYPES = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "I8": "int8",
    "U8": "uint8",
    "I32": "int32",
    "I64": "int64",
}
_TORCH_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
#: Tensors of these types are packed or are indices, not parameters.
_NOT_PARAMETERS = ("I32", "I64", "U8", "BOOL")
#: Bytes of one value; types of less than a byte are not judged.
_VALUE_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
#: The ends of the names of packed weights (GPTQ and AWQ, compressed-tensors, MXFP4, bitsandbytes and ModelOpt).
_PACKED = (".qweight", ".weight_packed", "_blocks", ".weight")
_BITS = {"I32": 32, "U8": 8}
#: The ends of the names of tensors beside quantised weights: scales, and the order of groups.
_BESIDE_WEIGHTS = ("_scale", "_scales", ".scales", "_scale_inv", "_zero_point", "_scale_2", "g_idx")
#: A header longer than this is none: safetensors itself allows 100 MB.
_LONGEST_HEADER = 100_000_000
#: The ends of the names of scales that calibration sets, and the packing of their values.
_STATIC_SCALES = (".k_scale", ".v_scale", ".input_scale")
_FLOATS = {"F32": "<f", "F16": "<e", "BF16": "<f"}
_SMALLEST_SCALE, _GREATEST_SCALE = 1e-12, 1e4


#: The remedy for a pointer that git leaves in the place of a large file where git-lfs has not fetched it.
FETCH = "fetch the files themselves (`git lfs pull` in their folder), or download them again"
_FIRST_LINE = b"version https://git-lfs.github.com/spec/v1"


@dataclass(frozen=True)
class Checkpoint:
    """A model folder as its files describe it. `parameters` is None for packed weights, which do not tell it.

    `stand_in` says that the weights are those of the tiny model, or were made from them, `dummy` that there are none.
    """

    architecture: str
    vocabulary: int | None
    max_positions: int | None
    parameters: int | None
    weight_data_types: str
    quantised: bool = False
    stand_in: bool = False
    dummy: bool = False


@dataclass(frozen=True)
class Weights:
    """Facts from the headers of safetensors files; the bytes of the tensors are not read.

    `parameters` counts packed weights, too; it is None where config.json does not state their number of bits.
    `data_type` is that of quantised weights, otherwise that of most parameters; empty for one that has no name here.
    """

    files: tuple[Path, ...]
    parameters: int | None
    data_type: str


def read_weights(folder: Path) -> Weights:
    """Read the headers of the weights in `folder`, and of its config.json how they are quantised, where it has one.

    Raises ModelError where the folder has no safetensors, a file that its index names is missing, or one is not whole.
    """
    files = _weight_files(folder)
    count, packed = Counter[str](), 0
    for path in files:
        for name, (data_type, shape, _) in _header(path).items():
            if data_type in _BITS and name.endswith(_PACKED):
                packed += math.prod(shape) * _BITS[data_type]
            elif data_type not in _NOT_PARAMETERS and not name.endswith(_BESIDE_WEIGHTS):
                count[data_type] += math.prod(shape)
    quantised = quantised_to(folder)
    bits = int("".join(re.findall("[0-9]", quantised))[:9] or 0)
    known = not packed or bool(bits)
    return Weights(
        files=tuple(files),
        parameters=count.total() + (packed // bits if packed and bits else 0) if known else None,
        data_type=quantised or (_DATA_TYPES.get(count.most_common(1)[0][0], "") if count else ""),
    )


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read config.json and the headers of the weights in `folder`.

    Raises ModelError when the folder, its config.json, tokenizer.json or weights are missing or unreadable.
    """
    _require_folder(folder)
    config = json_object(folder / "config.json")
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(
            f"{folder} has no tokenizer.json",
            cause="prompts are sent and scored as tokens",
            remedy="save the model's fast tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
        )
    if config.get(DUMMY_MARK):
        return _without_weights(config)
    real = Counter[str]()
    for path in _weight_files(folder):
        for data_type, shape, _ in _header(path).values():
            if data_type not in _NOT_PARAMETERS:
                real[data_type] += math.prod(shape)
    quantised = _quantised_type(section(config, "quantization_config"))
    packed = bool(quantised) and quantised in ("int4", "fp4", "int3", "int2")
    return Checkpoint(
        architecture=", ".join(words(config, "architectures")) or str(config.get("model_type", ""))[:80],
        vocabulary=whole_number(text_config(config), "vocab_size", 1),
        max_positions=whole_number(text_config(config), "max_position_embeddings", 1),
        parameters=None if packed else sum(real.values()),
        quantised=bool(config.get("quantization_config")),
        stand_in=bool(config.get("cm4vllm_stand_in")),
        weight_data_types=quantised or (_DATA_TYPES.get(real.most_common(1)[0][0], "") if real else ""),
    )


def is_pointer(path: Path) -> bool:
    """Return True if a file is a pointer of git-lfs, by its first line (git-lfs, docs/spec.md)."""
    try:
        return beginning_of(path, len(_FIRST_LINE)) == _FIRST_LINE
    except OSError:
        return False


def _require_folder(folder: Path) -> None:
    """Raise ModelError for what is no folder of a model, by what it is."""
    if folder.is_file():
        raise ModelError(f"{folder} is a file, and a model is a folder", cause=_kind(folder), remedy=_NEEDED)
    if not folder.is_dir():
        raise ModelError(f"no model in {folder}", cause="the folder does not exist", remedy=_NEEDED)
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _READ)
    if pointers := [path.name for path in files if is_pointer(path)]:
        raise ModelError(
            f"{folder} has pointers of git-lfs in the place of files",
            cause=f"{len(pointers)} files: {', '.join(pointers[:3])}",
            remedy=FETCH,
        )
    if (folder / "config.json").is_file():
        return
    if quantised := [path for path in files if path.suffix.lower() == GGUF]:
        names = ", ".join(path.name for path in quantised[:3])
        raise ModelError(f"{folder} has GGUF files alone: {names}", cause=_kind(quantised[0]), remedy=_NEEDED)
    if inside := sorted(path.parent.name for path in folder.glob("*/config.json")):
        raise ModelError(
            f"{folder} has no config.json",
            cause=f"its folders have one: {', '.join(inside[:3])}",
            remedy=f"give one of them: {folder / inside[0]}",
        )


def _kind(file: Path) -> str:
    """Return what a file is that was given for a model."""
    if file.suffix.lower() == GGUF:
        return "a GGUF file has no config.json, tokenizer.json or safetensors, from which results are described"
    return f"it ends in {file.suffix or file.name}"


def _without_weights(config: Mapping[str, Any]) -> Checkpoint:
    """Return the description of random weights, which have no files, by their configuration alone."""
    sizes, quantised = read_architecture(config), _quantised_type(section(config, "quantization_config"))
    return Checkpoint(
        architecture=", ".join(words(config, "architectures")),
        vocabulary=sizes.vocabulary,
        max_positions=sizes.max_positions,
        parameters=sizes.parameters,
        quantised=bool(quantised),
        dummy=True,
        weight_data_types=quantised or _TORCH_TYPES.get(str(config.get("torch_dtype")), ""),
    )


def quantised_to(folder: Path) -> str:
    """Return the data type of the quantised weights in `folder` ("fp8", "int4"), empty where nothing is quantised.

    Only config.json is read; a folder without one has nothing quantised. Raises ModelError where it is unreadable.
    """
    return _quantised_type(_quantisation(folder))


def quantisation_method(folder: Path) -> str:
    """Return the program's name that quantised the weights ("gptq", "bitsandbytes"), as quantised_to reads it."""
    config = _quantisation(folder)
    packed = config.get("load_in_8bit") or config.get("load_in_4bit")
    return str(config.get("quant_method") or ("bitsandbytes" if packed else ""))


def _quantisation(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    return section(json_object(path), "quantization_config") if path.is_file() else {}


def unset_scales(folder: Path) -> list[str]:
    """Return the names of static scales that no calibration can have set: they hold what was in memory before.

    These are scales of keys, values and activations; they are positive, and the greatest value met over 448 (FP8).
    Raises ModelError for a file of weights that is not whole.
    """
    return [
        name
        for path in sorted(folder.glob("*.safetensors"))
        for name, values in _scales(path)
        if not all(_SMALLEST_SCALE < value < _GREATEST_SCALE for value in values)
    ]


def _scales(path: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield each static scale of a safetensors file: the tensor's name and its values."""
    header = _header(path)
    with path.open("rb") as file:
        for name, (data_type, _, place) in header.items():
            if name.endswith(_STATIC_SCALES) and data_type in _FLOATS:
                file.seek(place.start)
                values = file.read(place.stop - place.start)
                if data_type == "BF16":  # the upper half of a float of four bytes
                    values = b"".join(b"\0\0" + values[at : at + 2] for at in range(0, len(values), 2))
                kind = _FLOATS[data_type]
                if len(values) % struct.calcsize(kind):
                    raise ModelError(
                        f"{path} is not a complete safetensors file",
                        cause=f"{name} ends within a value",
                        remedy="copy or download the model again",
                    )
                yield name, [value for (value,) in struct.iter_unpack(kind, values)]


def fingerprint(folder: Path) -> str:
    """Return the names, sizes and times of a folder's files: cheap to compare before each use.

    The inode's time is one of them: who changes a file can restore its size and time, as rsync does, and not that one.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    states = [(path.relative_to(folder).as_posix(), path.stat()) for path in files]
    return ";".join(f"{name}:{state.st_size}:{state.st_mtime_ns}:{state.st_ctime_ns}" for name, state in states)


def _weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights, all that the index names among them. Raises ModelError."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        others = [path.name for path in sorted(folder.glob("*.bin")) + sorted(folder.glob("*.gguf"))]
        raise ModelError(
            f"{folder} has no weights",
            cause=f"only {', '.join(others)}" if others else "no *.safetensors",
            remedy="save the model as safetensors: model.save_pretrained(folder)",
        )
    _check_shards(folder)
    return weights


def _check_shards(folder: Path) -> None:
    """Raise ModelError if a file that the index of the weights names is missing."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    named = {str(name) for name in section(json_object(index), "weight_map").values()}
    missing = sorted(name for name in named if "\0" in name or not (folder / name).is_file())
    if missing:
        raise ModelError(
            f"weights are missing in {folder}",
            cause=f"{len(missing)} of {len(named)} files that its index names: {', '.join(missing[:3])}",
            remedy="copy or download the model again",
        )


def _header(path: Path) -> dict[str, tuple[str, list[int], slice]]:
    """Return data type, shape and bytes of each tensor from the header: eight bytes of its length, then JSON."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(_LONGEST_HEADER, size):
                raise ValueError("its header is longer than the file")
            header = json_of(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length
        tensors = {}
        for name, tensor in header.items():
            (first, last), shape = tensor["data_offsets"], tensor["shape"]
            if not all(type(number) is int and number >= 0 for number in (first, last - first, *shape)):
                raise ValueError(f"the tensor {name} has an impossible offset or shape")
            wanted = math.prod(shape) * _VALUE_BYTES.get(str(tensor["dtype"]), 0)
            if str(tensor["dtype"]) in _VALUE_BYTES and wanted != last - first:
                raise ValueError(f"the tensor {name} has {last - first} bytes, its shape and type make {wanted}")
            first, last = 8 + length + first, 8 + length + last
            tensors[str(name)] = str(tensor["dtype"]), list(shape), slice(first, last)
            end = max(end, last)
        if size != end:
            raise ValueError(f"{size} bytes, where its header promises {end}")
        return tensors
    except PermissionError as error:
        raise ModelError(
            f"{path} cannot be read",
            cause=str(error.strerror),
            remedy="give the user of this command permission to read the model's folder and its files",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise ModelError(
            f"{path} is not a complete safetensors file", cause=str(error), remedy="copy or download the model again"
        ) from error


def _quantised_type(config: Mapping[str, Any]) -> str:
    """Return the data type of quantised weights, empty where nothing is quantised.

    Reads what compressed-tensors, GPTQ, AWQ, FP8 and bitsandbytes checkpoints write.
    """
    method = str(config.get("quant_method", ""))
    if method == "compressed-tensors":
        groups = section(config, "config_groups")
        for weights in (section(section(groups, name), "weights") for name in groups):
            if bits := whole_number(weights, "num_bits"):
                return f"{'fp' if weights.get('type') == 'float' else 'int'}{bits}"
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if config.get("load_in_8bit"):
        return "int8"
    if config.get("load_in_4bit"):
        return "fp4" if config.get("bnb_4bit_quant_type") in ("nf4", "fp4") else "int4"
    if method == "mxfp4":
        return "fp4"
    bits = whole_number(config, "bits") or whole_number(config, "w_bit")
    return f"int{bits}" if bits else ""


def weights_in_words(name: str, path: str) -> str:
    """Return the first and last of a checkpoint's files below the model's `name`, that alone where `path` has none."""
    kinds = ("*.safetensors", "*.bin", "*.gguf")
    files = sorted(file.name for kind in kinds for file in Path(path).glob(kind)) if path else []
    last = f" to {files[-1]} ({len(files)} files)" if len(files) > 1 else ""
    return f"{name}/{files[0]}{last}" if files else name

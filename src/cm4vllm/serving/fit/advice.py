"""The recipe `advise,vllm-fit`, and the part of the host's memory that a server on the CPU backend gets."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from cm4vllm.common import input_types
from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.progress import say, say_text
from cm4vllm.common.records import read_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.gpus.gpu import detect_gpus, gpus_to_plan, least_memory
from cm4vllm.hardware.memory import free_memory
from cm4vllm.hardware.named_machine import NamedMachine, named_machine
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.weights.checkpoint import read_checkpoint
from cm4vllm.records.weights.config_json import json_object, section
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import catalogue
from cm4vllm.serving.clusters.launchers import node_count
from cm4vllm.serving.fit.layout import GIB, UTILISATION, Asked, advise, table
from cm4vllm.serving.options.arguments import ServerSettings, least_kv_cache_gib

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_METHODS = {"fp8": "fp8", "mxfp4": "mxfp4", "gptq": "int4", "awq": "int4"}
#: Tokens of a request, and of a step, where the inputs do not set them.
_MODEL_LEN, _BATCHED_TOKENS = 2048, 2048


class AdviceSettings(Settings, frozen=True, kw_only=True):
    """The model and the machine. `model` is a name of the catalogue, a folder or a config.json.

    `gpus` None takes those that NVML finds, and 0 the CPU backend; `gpu_memory_gib` is that of each. With several
    `nodes`, a number or names, each has as many. `machine` names another machine, with its GPUs and nodes.
    """

    model: Annotated[str, Key("CM_VLLM_FIT_MODEL")] = ""
    model_record: input_types.ModelRecordPath = ""
    precision: Annotated[str, Key("CM_VLLM_FIT_PRECISION")] = ""
    gpus: Annotated[int | None, Key("CM_VLLM_FIT_GPUS")] = None
    gpu_memory_gib: input_types.GpuMemory = None
    machine: input_types.Machine = ""
    device: input_types.Device = ""
    nodes: input_types.Nodes = ""
    utilisation: input_types.GpuMemoryUtilization = None
    tp_size: input_types.TpSize = None
    pp_size: input_types.PpSize = None
    kv_cache_dtype: input_types.KvCacheDtype = ""
    kv_cache_gib: input_types.KvCacheSpace = None
    max_model_len: input_types.MaxModelLen = None
    max_num_seqs: input_types.MaxNumSeqs = None
    max_num_batched_tokens: input_types.MaxNumBatchedTokens = None


class AdviceExports(Settings, frozen=True, kw_only=True):
    """The exports of advise,vllm-fit."""

    tensor_parallel: Annotated[int, Key("CM_VLLM_FIT_TENSOR_PARALLEL")]
    pipeline_parallel: Annotated[int, Key("CM_VLLM_FIT_PIPELINE_PARALLEL")]
    data_parallel: Annotated[int, Key("CM_VLLM_FIT_DATA_PARALLEL")]
    kv_tokens: Annotated[int, Key("CM_VLLM_FIT_KV_CACHE_TOKENS")]
    max_num_seqs: Annotated[int, Key("CM_VLLM_FIT_MAX_NUM_SEQS")]


def advice(settings: AdviceSettings) -> AdviceExports:
    """Print how a model is best served on a machine and return it. Raises ModelError where it does not fit."""
    machine = None
    if settings.machine:
        machine = named_machine(settings.machine, gpu_memory_gib=settings.gpu_memory_gib, device=settings.device)
    asked = asked_of(settings, machine)
    fit = advise(asked)
    say_text(table(asked, fit))
    return msgspec.convert(fit, AdviceExports, from_attributes=True)


def with_host_memory(
    server: ServerSettings, model: ModelRecord | None, *, servers: int, sequences: int, longest: int
) -> ServerSettings:
    """Return the settings of a server with a KV cache for `sequences` of `longest` tokens where none is given.

    On the CPU backend the workers have half of the host's free memory for it at most, and each a power of two of GiB,
    so that it is the same where a little more or less is free. Each of several `servers` alike may have its part of the
    memory. `longest` is 0 where it is not known: the context counts. Raises ModelError with the sums for what the free
    memory cannot hold.
    """
    asked = _on_host(server, model, servers)
    if model is None or asked is None:
        return server
    least = advise(asked)
    if server.kv_cache_gib is None:
        free = (asked.memory_bytes - least.used_bytes + asked.kv_cache_bytes) / 2 / GIB / server.workers
        needed = sequences * (longest or asked.max_model_len) * least.kv_bytes_per_token / GIB
        gib = min(1 << max(0, math.ceil(math.log2(max(needed, 1)))), 1 << int(math.log2(max(free, 1))))
        server = replace(server, kv_cache_gib=gib)
        asked = dataclasses.replace(asked, kv_cache_bytes=gib * GIB)
    fit = advise(asked)
    each = f", its part of {servers}" if servers > 1 else ""
    say(
        f"fit: {fit.used_bytes / GIB:.1f} GiB of the {asked.memory_bytes / GIB:.1f} that are free{each}; the KV cache "
        f"holds {fit.kv_tokens:,} tokens, {fit.kv_tokens // asked.max_model_len:,} requests of {asked.max_model_len:,}"
    )
    return server


def _on_host(server: ServerSettings, model: ModelRecord | None, servers: int) -> Asked | None:
    """Return the inputs of the advice on a server on the CPU backend; None where its sizes are not known."""
    if server.device != "cpu" or model is None or not (Path(model.path) / "config.json").is_file():
        return None
    config, size = json_object(Path(model.path) / "config.json"), _size(Path(model.path))
    try:
        architecture = read_architecture(config)
    except ModelError:
        return None  # an architecture that we cannot size may well be one that vLLM can serve
    if (longest := server.max_model_len or architecture.max_positions) is None:
        return None  # vLLM asks for a length, too
    return Asked(
        name=model.name,
        architecture=architecture,
        gpus=0,
        precision=(model.weight_data_types or "bf16") if size else _stated_precision(config),
        memory_bytes=free_memory() // max(1, servers),
        weight_bytes=size,
        max_model_len=longest,
        kv_dtype=_kv_dtype(server, config),
        kv_cache_bytes=least_kv_cache_gib(server.kv_cache_gib) * GIB,
        max_num_seqs=server.max_num_seqs or 0,
    )


def asked_of(settings: AdviceSettings, machine: NamedMachine | None = None) -> Asked:
    """Return the inputs of the advisor, for this machine or a named one. Raises UsageError, ModelError."""
    longest = settings.max_model_len or _MODEL_LEN
    config, folder, name, precision = _model(settings)
    architecture = read_architecture(config)
    gpus, memory = _machine(settings) if machine is None else _of_named(machine)
    nodes = machine.nodes if machine is not None and not settings.nodes else node_count(settings.nodes)
    if nodes > 1 and not gpus:
        raise UsageError(
            f"--nodes={settings.nodes} has no GPUs",
            cause="the advice on the CPU backend is on one machine",
            remedy="describe each node: --gpus=N of advise,vllm-fit and --gpu_memory=<GiB> of advise,vllm-fit",
        )
    return Asked(
        name=name,
        architecture=architecture,
        precision=settings.precision or precision,
        gpus=gpus * nodes,
        nodes=nodes,
        memory_bytes=memory,
        max_model_len=min(longest, architecture.max_positions or longest),
        weight_bytes=_size(folder) if folder and not settings.precision else 0,
        kv_dtype=settings.kv_cache_dtype or "bf16",
        utilisation=UTILISATION if settings.utilisation is None else settings.utilisation,
        kv_cache_bytes=least_kv_cache_gib(settings.kv_cache_gib) * GIB if gpus == 0 else 0,
        max_num_seqs=settings.max_num_seqs or 0,
        max_num_batched_tokens=settings.max_num_batched_tokens or _BATCHED_TOKENS,
        tensor_parallel=settings.tp_size or 0,
        pipeline_parallel=settings.pp_size or 0,
    )


def _model(settings: AdviceSettings) -> tuple[dict[str, Any], Path | None, str, str]:
    """Return the configuration, the folder if there is one, the name and the precision of the model asked for."""
    if settings.model in catalogue().models:
        return catalogue().config(settings.model), None, settings.model, catalogue().model(settings.model).precision
    if settings.model:
        path = Path(settings.model).expanduser()
        if path.is_dir():
            return json_object(path / "config.json"), path, path.name, read_checkpoint(path).weight_data_types
        if path.is_file():
            return (config := json_object(path)), None, path.parent.name or path.name, _stated_precision(config)
        catalogue().model(settings.model)  # raises, with the nearest name
    if not settings.model_record:
        raise UsageError(
            "no model to advise on", remedy="give --vllm_model_name: a name of the catalogue, a folder or a config.json"
        )
    record = read_record(Path(settings.model_record), ModelRecord)
    return json_object(Path(record.path) / "config.json"), Path(record.path), record.name, record.weight_data_types


def _of_named(machine: NamedMachine) -> tuple[int, float]:
    """Return the GPUs of each node and the bytes of each, or 0 and the bytes of the host."""
    memory = machine.gpu_memory_bytes if machine.gpus else float(machine.memory_bytes or 0)
    if not memory:
        raise UsageError(
            f"the memory of {machine.title} is not known",
            remedy="give its machine.json, which cm run script --tags=get,sut,description writes there",
        )
    return len(machine.gpus), memory


def _machine(settings: AdviceSettings) -> tuple[int, float]:
    """Return the GPUs that are detected and the bytes of each, or 0 and the free bytes of the host."""
    if settings.gpus == 0:
        return 0, float(free_memory())
    if settings.gpu_memory_gib is not None:
        return settings.gpus or 1, settings.gpu_memory_gib * GIB
    gpus = gpus_to_plan(detect_gpus(), os.environ)
    if settings.gpus is not None and len(gpus) < settings.gpus:
        raise UsageError(
            f"--gpus={settings.gpus} of advise,vllm-fit: this machine has {len(gpus)}",
            remedy="give the memory of each too, with --gpu_memory=<GiB> of advise,vllm-fit",
        )
    if not (chosen := gpus[: settings.gpus]):
        return 0, float(free_memory())
    memory, whose = least_memory(chosen)
    if not memory:
        raise UsageError(
            f"the memory of the {chosen[0].gpu.name} is {whose}",
            remedy="give it with --gpu_memory=<GiB> of advise,vllm-fit",
        )
    if whose:
        say(f"note: the driver does not state the GPU's memory: {memory / GIB:.1f} GiB, {whose}")
    return len(chosen), memory


def _stated_precision(config: dict[str, Any]) -> str:
    """Return the precision that a config.json states; for quantised weights, the precision of their method."""
    method = str(section(config, "quantization_config").get("quant_method", ""))
    return (_METHODS if method else _DTYPES).get(method or _dtype(config), "bf16")


def _dtype(config: dict[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "")


def _kv_dtype(server: ServerSettings, config: dict[str, Any]) -> str:
    # vLLM's `auto` computes fp32 checkpoints in half precision.
    computed = _DTYPES.get(server.dtype or _dtype(config).replace("float32", "bfloat16"), "bf16")
    return "fp8" if server.kv_cache_dtype.startswith("fp8") else computed


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))

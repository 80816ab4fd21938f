"""The fit of a model on a machine, and its best layout there: arithmetic before anything is loaded.

    memory of a GPU x utilisation = weights / (TP x PP) + working memory + KV cache

Weights and KV cache are exact up to vLLM's padding; working memory is an estimate, whose terms are named below.
On the CPU backend the KV cache has the size that is set (VLLM_CPU_KVCACHE_SPACE), and weights lie beside it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.records.vllm.options import spelling
from cm4vllm.records.weights.model_size import Architecture

GIB = 2**30
#: vLLM's own default of --gpu-memory-utilization.
UTILISATION = 0.9
#: CUDA context, NCCL's buffers and captured graphs. An assumption: it was not measured here.
FIXED_BYTES = 1.5 * GIB
#: Memory of vLLM's three processes on the CPU with the tiny model, without its 1 GiB of KV cache: 0.57 GB the API,
#: 0.54 GB the engine, 0.7 GB the worker.
CPU_FIXED_BYTES = 1.8e9
#: A smaller group of GPUs is preferred (more replicas) once its cache holds this many requests of full length.
ENOUGH_REQUESTS = 64
#: The published serve lines of v4.1 ask for this many sequences; vLLM takes no more than fit.
MOST_SEQUENCES = 1024
#: vLLM pages the KV cache in blocks of this many tokens.
BLOCK_TOKENS = 16
_KV_BYTES = {"fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The model to serve and the machine. `gpus` 0 is the CPU backend; its `memory_bytes` are the host's free bytes.

    `weight_bytes` are the checkpoint's own if it exists, 0 to compute them. `tensor_parallel` and
    `pipeline_parallel` 0 are chosen. `max_num_seqs` 0 is chosen. `gpus` are those of all `nodes`, equally many of each.
    """

    name: str
    architecture: Architecture
    precision: str
    gpus: int
    memory_bytes: float
    max_model_len: int
    weight_bytes: float = 0
    kv_dtype: str = "bf16"
    utilisation: float = UTILISATION
    kv_cache_bytes: float = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 2048
    tensor_parallel: int = 0
    pipeline_parallel: int = 0
    nodes: int = 1

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes

    @property
    def budget_bytes(self) -> float:
        """The bytes of a GPU that vLLM may use, or the free ones of the host."""
        return self.memory_bytes * (self.utilisation if self.gpus else 1)

    def engines(self, group: int) -> int:
        """Return how many engines of `group` GPUs there are: whole ones on each node, or each over several nodes."""
        return self.nodes * (self.gpus_per_node // group) or max(1, self.gpus // group)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A layout that fits: bytes are per GPU (of the host on the CPU backend), tokens per replica."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    weight_bytes: float
    working_bytes: float
    kv_bytes: float
    kv_bytes_per_token: float
    kv_tokens: int
    max_num_seqs: int

    @property
    def group(self) -> int:
        """The number of GPUs of one engine."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def used_bytes(self) -> float:
        return self.weight_bytes + self.working_bytes + self.kv_bytes


def kv_cache_tokens(
    architecture: Architecture, kv_dtype: str, kv_bytes: float, tensor_parallel: int = 1, pipeline_parallel: int = 1
) -> int:
    """Return how many tokens a KV cache of `kv_bytes` on each GPU holds. Raises UsageError for an unknown type."""
    per_token = _per_token(architecture, kv_dtype, tensor_parallel, pipeline_parallel)
    return int(kv_bytes // (per_token * BLOCK_TOKENS)) * BLOCK_TOKENS


def advise(asked: Asked) -> Fit:
    """Return the layout to serve with. Raises ModelError with the arithmetic when there is none, UsageError."""
    if asked.gpus == 0:
        return _on_cpu(asked)
    if (needed := (asked.tensor_parallel or 1) * (asked.pipeline_parallel or 1)) > asked.gpus:
        raise UsageError(
            f"an engine of {needed} workers needs {needed} GPUs, and there are {asked.gpus}",
            remedy="give smaller sizes (--tp_size, --pp_size)",
        )
    layouts = [_on_gpus(asked, tensor, pipeline) for tensor, pipeline in _layouts(asked)]
    fits = _preferred_layouts(asked, [fit for fit in layouts if fit.kv_tokens >= asked.max_model_len])
    if not fits:
        raise ModelError(
            f"{asked.name} does not fit {asked.gpus} x {asked.memory_bytes / GIB:.1f} GiB"
            + (f" on {asked.nodes} nodes" if asked.nodes > 1 else ""),
            cause=_arithmetic(asked, layouts[-1])
            if layouts
            else f"{asked.architecture.heads} attention heads cannot be shared by {asked.tensor_parallel} GPUs",
            remedy=_smaller(asked),
        )
    enough = [fit for fit in fits if fit.kv_tokens >= ENOUGH_REQUESTS * asked.max_model_len]
    return enough[0] if enough else max(fits, key=lambda fit: fit.kv_tokens * fit.data_parallel)


def _preferred_layouts(asked: Asked, fits: list[Fit]) -> list[Fit]:
    """Return those of the layouts whose GPUs wait least for each other.

    An engine is within a node where it fits. Tensor parallelism, which exchanges data in each layer, does what stages
    do with less waiting within a node; between nodes, stages exchange less.
    """
    if within := [fit for fit in fits if fit.group <= asked.gpus_per_node]:
        return [fit for fit in within if fit.pipeline_parallel == 1] or within
    return [fit for fit in fits if fit.tensor_parallel <= asked.gpus_per_node] or fits


def table(asked: Asked, fit: Fit) -> str:
    """Return the advice as people read it."""
    model, where = asked.architecture, "the host" if asked.gpus == 0 else "each GPU"
    active = f", {model.active_parameters / 1e9:.2f} B a token" if model.experts else ""
    kinds = "latent attention" if model.latent else f"{model.heads} heads, {model.kv_heads} of them KV"
    rows = [
        ("model", f"{asked.name}: {model.parameters / 1e9:.2f} B parameters{active}; {model.layers} layers, {kinds}"),
        (
            "layout",
            f"tensor {fit.tensor_parallel} x pipeline {fit.pipeline_parallel} x data {fit.data_parallel}"
            if asked.gpus
            else "CPU backend, one worker",
        ),
        *([("nodes", _nodes(asked, fit))] if asked.nodes > 1 else []),
        (
            f"weights on {where}",
            f"{fit.weight_bytes / GIB:9.2f} GiB   {asked.precision}{'' if asked.weight_bytes else ', computed'}",
        ),
        ("working memory", f"{fit.working_bytes / GIB:9.2f} GiB   estimated"),
        ("KV cache", f"{fit.kv_bytes / GIB:9.2f} GiB   {asked.kv_dtype}, {fit.kv_bytes_per_token:,.0f} bytes a token"),
        (f"of {where}", f"{fit.used_bytes / GIB:9.2f} GiB   of {asked.budget_bytes / GIB:.2f}"),
        (
            "tokens in the cache",
            f"{fit.kv_tokens:,} of each replica: {fit.kv_tokens / asked.max_model_len:,.1f} "
            f"requests of {asked.max_model_len:,}",
        ),
        ("serve with", serve_words(asked, fit)),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def _nodes(asked: Asked, fit: Fit) -> str:
    where = "within a node" if fit.group <= asked.gpus_per_node else f"over {fit.group // asked.gpus_per_node} nodes"
    return f"{asked.nodes} of {asked.gpus_per_node} GPUs, each engine {where}"


def serve_words(asked: Asked, fit: Fit) -> str:
    """Return the flags to serve with; those of sizes of one are left out."""
    flags = {
        "--max-model-len": asked.max_model_len,
        f"--{spelling('max-num-seqs')}": fit.max_num_seqs,
        "--tensor-parallel-size": fit.tensor_parallel if fit.tensor_parallel > 1 else None,
        "--pipeline-parallel-size": fit.pipeline_parallel if fit.pipeline_parallel > 1 else None,
        "--data-parallel-size": fit.data_parallel if fit.data_parallel > 1 else None,
        "--gpu-memory-utilization": asked.utilisation if asked.gpus else None,
        "--kv-cache-dtype": "fp8" if asked.kv_dtype == "fp8" else None,
    }
    return " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)


def _layouts(asked: Asked) -> Iterator[tuple[int, int]]:
    """Yield tensor and pipeline sizes, the smallest groups first; heads and layers divide evenly among GPUs.

    A group that does not fit into a node is on all GPUs of several nodes.
    """
    model, each = asked.architecture, asked.gpus_per_node
    for size in range(1, asked.gpus + 1):
        if size > each and (size % each or asked.gpus % size):
            continue
        for pipeline in (number for number in range(1, size + 1) if size % number == 0):
            tensor = size // pipeline
            sizes_asked = asked.tensor_parallel in (0, tensor) and asked.pipeline_parallel in (0, pipeline)
            even = model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0
            if sizes_asked and model.heads % tensor == 0 and even and model.layers >= pipeline:
                yield tensor, pipeline


def _on_gpus(asked: Asked, tensor: int, pipeline: int) -> Fit:
    weights, working = _weights(asked) / (tensor * pipeline), FIXED_BYTES + _activations(asked, tensor)
    kv_bytes = asked.kv_cache_bytes or max(0.0, asked.budget_bytes - weights - working)
    return _fit(asked, weights, working, kv_bytes, tensor, pipeline)


def _on_cpu(asked: Asked) -> Fit:
    fit = _fit(asked, _weights(asked), CPU_FIXED_BYTES, asked.kv_cache_bytes, 1, 1)
    if fit.used_bytes > asked.memory_bytes or fit.kv_tokens < asked.max_model_len:
        raise ModelError(
            f"{asked.name} does not fit this machine's memory", cause=_arithmetic(asked, fit), remedy=_smaller(asked)
        )
    return fit


def _fit(asked: Asked, weights: float, working: float, kv_bytes: float, tensor: int, pipeline: int) -> Fit:
    tokens = kv_cache_tokens(asked.architecture, asked.kv_dtype, kv_bytes, tensor, pipeline)
    return Fit(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=asked.engines(tensor * pipeline) if asked.gpus else 1,
        weight_bytes=weights,
        working_bytes=working,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=_per_token(asked.architecture, asked.kv_dtype, tensor, pipeline),
        kv_tokens=tokens,
        max_num_seqs=asked.max_num_seqs or min(MOST_SEQUENCES, max(1, tokens // asked.max_model_len)),
    )


def _per_token(architecture: Architecture, kv_dtype: str, tensor: int, pipeline: int) -> float:
    if kv_dtype not in _KV_BYTES:
        raise UsageError(f"unknown type of the KV cache {kv_dtype!r}", remedy=f"known: {', '.join(_KV_BYTES)}")
    stage = math.ceil(architecture.layers / pipeline) / architecture.layers
    return architecture.kv_bytes_per_token(_KV_BYTES[kv_dtype], tensor) * stage


def _weights(asked: Asked) -> float:
    return asked.weight_bytes or asked.architecture.weight_bytes(asked.precision)


def _activations(asked: Asked, tensor: int) -> float:
    """Estimate the largest step: hidden states and one layer's widest product in 2 bytes, logits in 4 bytes twice."""
    model = asked.architecture
    widest = 4 * model.hidden + 8 * model.hidden / tensor
    return asked.max_num_batched_tokens * widest * 2 + (asked.max_num_seqs or 256) * model.vocabulary * 8 / tensor


def _arithmetic(asked: Asked, fit: Fit) -> str:
    needed = asked.max_model_len * fit.kv_bytes_per_token
    left = asked.budget_bytes - fit.weight_bytes - fit.working_bytes
    place = f"a GPU of {fit.group} x {asked.utilisation} utilisation" if asked.gpus else "the host free"
    lines = [
        f"{asked.memory_bytes / GIB:.2f} GiB of {place} = {asked.budget_bytes / GIB:.2f} GiB",
        f"- weights {fit.weight_bytes / GIB:.2f} GiB ({asked.architecture.parameters / 1e9:.2f} B parameters, "
        f"{asked.precision}) - working memory {fit.working_bytes / GIB:.2f} GiB (estimated) = {left / GIB:.2f} GiB",
        f"one request of {asked.max_model_len:,} tokens needs {needed / GIB:.2f} GiB of KV cache "
        f"({fit.kv_bytes_per_token:,.0f} bytes a token, {asked.kv_dtype})",
        "" if asked.gpus else f"the KV cache is given {asked.kv_cache_bytes / GIB:.2f} GiB",
    ]
    return "\n".join(filter(None, lines))


def _smaller(asked: Asked) -> str:
    ways = (
        "more or larger GPUs" if asked.gpus else "more memory, or --kv_cache_space to suit it",
        "a quantised model (fp8 halves bf16's weights, W4A16 quarters them)",
        "--kv_cache_dtype=fp8" if asked.kv_dtype != "fp8" else "",
        "a lower --max_model_len",
    )
    return ", ".join(filter(None, ways))

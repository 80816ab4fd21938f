"""The layout of a published run beside what the fit advisor says of the same model and GPUs, and why they differ."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cm4vllm.common.errors import ModelError
from cm4vllm.records.known_hardware import accelerator
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import catalogue
from cm4vllm.serving.fit.layout import ENOUGH_REQUESTS, GIB, UTILISATION, Asked, Fit, advise

LAYOUTS_DIFFER = (
    f"why the layouts differ: the advisor takes the smallest group of GPUs whose KV cache holds {ENOUGH_REQUESTS} "
    "requests of full length, and makes replicas of that group, because the GPUs of one group wait for each other. A "
    "larger group leaves each GPU more memory for the cache, and shortens the time of a token"
)
SEQUENCES_DIFFER = (
    "why the sequences differ: the advisor counts requests of full length, which always fit. --max-num-seqs is an "
    "upper limit: shorter requests leave room for more, and vLLM preempts those for which the cache has no room"
)

#: A quantisation that the server makes when it starts, in place of the checkpoint's own precision.
_AT_START = ("fp8",)

Settings = Mapping[str, bool | int | float | str]


def fit_lines(settings: Settings, gpu: str, gpus: int) -> Iterator[str]:
    """Yield the advisor's layout for a published run, the run's own layout, and the reason of their difference.

    `settings` are those of the published run, as fields of the campaign's and the server's settings. Nothing is given
    for a run on processors.
    """
    if not gpus:
        return
    asked = _asked(settings, gpu, gpus)
    if isinstance(asked, str):
        yield f"no advice on the layout: {asked}"
        return
    try:
        advised = advise(asked)
    except ModelError as error:
        yield f"by the fit advisor's calculation it does not fit: {error.what}"
        return
    yield (
        f"fit advisor, for {gpus} x {asked.memory_bytes / GIB:g} GiB and requests of up to "
        f"{asked.max_model_len:,} tokens: {_layout(advised)}, {advised.max_num_seqs:,} sequences each"
    )
    yield from _beside(settings, asked, advised)


def _asked(settings: Settings, gpu: str, gpus: int) -> Asked | str:
    """Return the question to the advisor; in words the facts that it lacks."""
    name = str(settings.get("vllm_model_name", ""))
    model_key = next((key for key, model in catalogue().models.items() if name in (key, model.hub)), "")
    if not model_key:
        return f"the architecture of {name} is not in the catalogue"
    known = accelerator(gpu)
    if known is None or not known.memory_gb:
        return f"the memory of {gpu} is not in the table of known accelerators"
    architecture = read_architecture(catalogue().config(model_key))
    quantised = str(settings.get("quantization", ""))
    longest = architecture.max_positions or 0
    return Asked(
        name=model_key,
        architecture=architecture,
        gpus=gpus,
        memory_bytes=known.memory_gb[0] * GIB,
        precision=quantised if quantised in _AT_START else catalogue().model(model_key).precision,
        max_model_len=min(int(settings.get("max_model_len", longest)), longest),
        kv_dtype="fp8" if str(settings.get("kv_cache_dtype", "")).startswith("fp8") else "bf16",
        utilisation=float(settings.get("gpu_memory_utilization", UTILISATION)),
        max_num_batched_tokens=int(settings.get("max_num_batched_tokens", 2048)),
    )


def _beside(settings: Settings, asked: Asked, advised: Fit) -> Iterator[str]:
    """Yield the capacity of the published layout, and explain each difference."""
    layout = [key for key in ("tp_size", "pp_size", "dp_size", "replicas") if key in settings]
    sequences = int(settings.get("max_num_seqs", 0))
    if not layout and asked.gpus > 1:
        yield "the layout of the published run is not known"
        return
    tensor, pipeline = int(settings.get("tp_size", 1)), int(settings.get("pp_size", 1))
    try:
        own = advise(replace(asked, tensor_parallel=tensor, pipeline_parallel=pipeline))
    except ModelError as error:
        yield f"by the advisor's calculation the published layout does not fit: {error.what}"
        return
    limit = f", at most {sequences:,} sequences each" if sequences else ", vLLM's own number of sequences"
    yield (
        f"published: {_layout(own)}{limit}; by the advisor's calculation the KV cache of each replica holds "
        f"{own.kv_tokens:,} tokens: {own.kv_tokens // asked.max_model_len:,} requests of full length"
        + (f", or {sequences:,} requests of {own.kv_tokens // sequences:,} tokens" if sequences else "")
    )
    if (own.tensor_parallel, own.pipeline_parallel) != (advised.tensor_parallel, advised.pipeline_parallel):
        yield LAYOUTS_DIFFER
    if sequences and sequences != own.max_num_seqs:
        yield SEQUENCES_DIFFER


def _layout(fit: Fit) -> str:
    parts = {"tensor": fit.tensor_parallel, "pipeline": fit.pipeline_parallel, "data": fit.data_parallel}
    return " x ".join(f"{name} {size}" for name, size in parts.items() if size > 1) or "one GPU"

"""The fit of a job's model on the machine that serves it: refused before anything is downloaded where it cannot fit."""

import dataclasses
from collections.abc import Iterator

from msgspec.structs import replace

from cm4vllm.assets.dummy import known_model
from cm4vllm.assets.model_sizes import catalogue_name
from cm4vllm.assets.quantization import schemes
from cm4vllm.campaign.settings import Job
from cm4vllm.common.errors import ModelError
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.records.weights.model_size import BYTES
from cm4vllm.rules import Mode
from cm4vllm.serving.fit.advice import AdviceSettings, asked_of
from cm4vllm.serving.fit.layout import GIB, Asked, Fit, advise, serve_words
from cm4vllm.serving.launch_settings import chosen_server
from cm4vllm.serving.options.presets import preset_for, preset_named

#: vLLM is given a context of so many tokens at least.
_LEAST_CONTEXT = 2048
#: The option of a preset that gives the size of a group of GPUs.
_TENSOR = "tensor-parallel-size"


def require_fit(job: Job) -> tuple[str, ...]:
    """Refuse a model that cannot be served as the job asks for it; return notes on the fit on a named machine.

    Nothing is said of a server that runs already, of other nodes than those of a named machine, and of a model whose
    sizes are not known. Raises ModelError with the arithmetic, UsageError.
    """
    asked = _asked(job)
    if asked is None:
        return (_not_known(job),) if job.machine is not None else ()
    if job.machine is None:
        _require(asked)
        return ()
    return tuple(_notes(asked, advise(asked), given=bool(asked.tensor_parallel or asked.pipeline_parallel)))


def _asked(job: Job) -> Asked | None:
    """Return the advisor's question; None also for an architecture that it cannot size, which vLLM may well serve."""
    if (question := _question(job)) is None:
        return None
    try:
        return asked_of(question, job.machine)
    except ModelError:
        return None


def _question(job: Job) -> AdviceSettings | None:
    """Return what the fit advisor is asked; None where it knows nothing of the model, or of the machines."""
    settings, launch = job.settings, job.settings.launch
    model = _model_of(job)
    if not model or settings.api_server or settings.rehearse or settings.dummy_layers:
        return None
    if job.machine is None and (launch.nodes or launch.container or launch.server.ray_address):
        return None
    if job.machine is not None and not (job.machine.gpus or job.machine.memory_bytes):
        return None
    server = chosen_server(launch)
    question = replace(
        settings.view(AdviceSettings),
        model=model,
        precision=_precision(job),
        max_model_len=server.max_model_len or _context(job),
        kv_cache_dtype=server.kv_cache_dtype,
        utilisation=server.gpu_memory_utilization,
        tp_size=server.tp_size,
        pp_size=server.pp_size,
    )
    if job.machine is not None:
        sizes = bool(server.tp_size or server.pp_size)  # one that is given makes the other 1, as for vLLM
        return replace(question, tp_size=server.tp_size or 1, pp_size=server.pp_size or 1) if sizes else question
    gpus = [] if settings.device == "cpu" else detect_gpus()
    if not gpus:
        return replace(question, gpus=0)
    tensor = server.tp_size or _preset_size(job, gpus[0].name, len(gpus)) or 1
    return replace(question, tp_size=tensor, pp_size=server.pp_size or 1)


def _model_of(job: Job) -> str:
    """Return the model as the fit advisor takes it: a name of the catalogue or a folder; empty for another one."""
    kind, location = job.sources.kind, job.sources.location
    if kind == "dummy":
        return known_model(location)
    return location if kind == "path" else catalogue_name(kind, location)


def _precision(job: Job) -> str:
    """Return the data type that the job's weights have when they are served; empty for that of the checkpoint."""
    at_start = chosen_server(job.settings.launch).quantization
    if at_start in BYTES:
        return at_start
    chosen = [name.removeprefix("_scheme.") for name in job.quantisation.split(",") if name.startswith("_scheme.")]
    words = [schemes()[name].weights.split()[0].rstrip(",") for name in chosen]
    return next((word for word in words if word in BYTES), "")


def _context(job: Job) -> int:
    """Return the least tokens of a context that any run of the job needs."""
    longest = max(job.terms(scenario, mode).generation.max_tokens for scenario in job.scenarios for mode in Mode)
    return max(_LEAST_CONTEXT, longest + 1)


def _preset_size(job: Job, gpu: str, count: int) -> int:
    launch = job.settings.launch
    name = job.settings.vllm_model_name
    preset = preset_named(launch.preset) if launch.preset else preset_for(job.settings.device, name, gpu, count)
    return int(preset.options.get(_TENSOR, 0)) if preset is not None else 0


def _require(asked: Asked) -> None:
    """Raise ModelError where the model does not fit; it names the sizes with which more GPUs hold it."""
    try:
        advise(asked)
    except ModelError as error:
        try:
            fit = advise(_with_any_layout(asked))
        except ModelError:
            raise error from None
        raise ModelError(
            error.what, cause=error.cause, remedy=f"spread it over the GPUs: {_flags(fit)}; or {error.remedy}"
        ) from error


def _with_any_layout(asked: Asked) -> Asked:
    return dataclasses.replace(asked, tensor_parallel=0, pipeline_parallel=0)


def _flags(fit: Fit) -> str:
    sizes = {"tp_size": fit.tensor_parallel, "pp_size": fit.pipeline_parallel, "dp_size": fit.data_parallel}
    return " ".join(f"--{flag}={size}" for flag, size in sizes.items() if size > 1)


def _notes(asked: Asked, fit: Fit, *, given: bool) -> Iterator[str]:
    whose = "as given" if given else "the layout that the fit advisor takes"
    flags = _flags(fit)
    yield (
        f"fit: {asked.name} in {asked.precision}: of the {asked.budget_bytes / GIB:.1f} GiB of "
        f"{'each GPU' if asked.gpus else 'the host'}, weights take {fit.weight_bytes / GIB:.1f} and the KV cache "
        f"{fit.kv_bytes / GIB:.1f}; that of each replica holds {fit.kv_tokens:,} tokens, "
        f"{fit.kv_tokens // asked.max_model_len:,} requests of {asked.max_model_len:,}; {whose}"
        f"{f': {flags}' if flags else ''}"
    )
    yield f"options by that: {serve_words(asked, fit)}"


def _not_known(job: Job) -> str:
    if job.settings.api_server:
        return "fit: not judged: the server at --api_server runs already"
    name = job.settings.vllm_model_name or job.sources.location or f"_{job.sources.kind}"
    if job.machine is not None and not (job.machine.gpus or job.machine.memory_bytes):
        return f"fit: not known: the memory of {job.machine.title} is not"
    return f"fit: not known: the catalogue does not have the sizes of {name}; advise,vllm-fit takes its config.json"

"""The arguments and the environment of a vLLM server, from typed settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from cm4vllm.common import input_types
from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.secrets.command_lines import given_words, refuse_secrets
from cm4vllm.common.settings import Key, Settings, env_keys
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.gpus.gpu import server_variables
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.server import Api
from cm4vllm.records.vllm.given_options import given_options
from cm4vllm.records.vllm.options import spelling, split_options
from cm4vllm.records.weights.checkpoint import quantised_to, read_checkpoint
from cm4vllm.serving.options.fixed_options import refuse_fixed
from cm4vllm.serving.options.presets import Preset, option_words

#: A local server of a benchmark run answers on this machine alone.
LOOPBACK = "127.0.0.1"
#: The option of vLLM that holds a secret, and the variable that vLLM's hub client reads instead.
_TOKEN_OPTION, _TOKEN_VARIABLE = "--hf-token", "HF_TOKEN"

#: Declares what torchvision of the package index expects of a GPU's build, for vLLM's CPU build.
_VISION_PLUGIN = Path(__file__).with_name("vision_plugin")

#: The variable by which vLLM's CPU backend binds its workers' threads to cores, or does not.
_BINDING = "VLLM_CPU_OMP_THREADS_BIND"

#: Options of vLLM by name, without dashes.
_Options = dict[str, bool | int | float | str]


class ServerSettings(Settings, frozen=True, kw_only=True):
    """Settings of a server's start. `port` 0 takes a free port; `extra` are more words for `vllm serve`, as in a shell.

    What is not set is left to the preset, and to vLLM where the preset does not set it. `kv_cache_gib` and
    `cpu_binding` are settings of the CPU backend, `threads` the number that its worker computes with where vLLM binds
    none. `gpus` are those that it alone uses, as CUDA_VISIBLE_DEVICES names them; all that are visible otherwise. With
    `ray_address` its workers are placed by the Ray cluster there. `api` is how it is asked. `load_format` dummy fills
    the weights with random numbers. `required` are options that the rules of the benchmark ask for, and
    `speech_packages` and `vision_packages` the folders of what vLLM's CPU build reads audio and pictures with. With
    `container`, an image, it has the packages of that.
    """

    device: input_types.VllmDevice = "cpu"
    model: input_types.VllmModelName = ""
    name: Annotated[str, Key("CM_VLLM_SERVER_SERVED_MODEL_NAME")] = ""
    host: Annotated[str, Key("CM_VLLM_SERVER_HOST")] = LOOPBACK
    port: input_types.ServerPort = 0
    dtype: Annotated[str, Key("CM_VLLM_SERVER_DTYPE")] = ""
    load_format: str = ""
    max_model_len: input_types.MaxModelLen = None
    max_num_seqs: input_types.MaxNumSeqs = None
    max_num_batched_tokens: input_types.MaxNumBatchedTokens = None
    kv_cache_dtype: input_types.KvCacheDtype = ""
    quantization: Annotated[str, Key("CM_VLLM_SERVER_QUANTIZATION")] = ""
    distributed_executor_backend: Annotated[str, Key("CM_VLLM_SERVER_DIST_EXEC_BACKEND")] = ""
    tp_size: input_types.TpSize = None
    pp_size: input_types.PpSize = None
    dp_size: input_types.DpSize = None
    ray_address: input_types.RayAddress = ""
    gpus: str = ""
    threads: int = 0
    api: Api = Api.COMPLETIONS
    seed: Annotated[int | None, Key("CM_VLLM_SERVER_SEED")] = None
    gpu_memory_utilization: input_types.GpuMemoryUtilization = None
    enable_chunked_prefill: Annotated[bool | None, Key("CM_VLLM_SERVER_ENABLE_CHUNKED_PREFILL")] = None
    enforce_eager: Annotated[bool | None, Key("CM_VLLM_SERVER_ENFORCE_EAGER")] = None
    trust_remote_code: Annotated[bool, Key("CM_VLLM_SERVER_TRUST_REMOTE_CODE")] = False
    uvicorn_log_level: Annotated[str, Key("CM_VLLM_SERVER_UVICORN_LOG_LEVEL")] = ""
    kv_cache_gib: input_types.KvCacheSpace = None
    cpu_binding: Annotated[str, Key("CM_VLLM_SERVER_CPU_OMP_THREADS_BIND")] = "auto"
    extra: input_types.ExtraArgs = ""
    speech_packages: input_types.SpeechPackages = ""
    vision_packages: input_types.VisionPackages = ""
    container: input_types.ContainerImage = ""
    required: dict[str, str] = {}

    @property
    def workers(self) -> int:
        """The number of its workers, each of which takes a GPU, or a group of cores of its own."""
        return (self.tp_size or 1) * (self.pp_size or 1) * (self.dp_size or 1)


#: The options of vLLM that a setting sets, each with the setting.
_OPTION_FIELDS: Mapping[str, str] = {
    "dtype": "dtype",
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "gpu-memory-utilization": "gpu_memory_utilization",
    "kv-cache-dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "tensor-parallel-size": "tp_size",
    "pipeline-parallel-size": "pp_size",
    "data-parallel-size": "dp_size",
    "distributed-executor-backend": "distributed_executor_backend",
    "seed": "seed",
    "uvicorn-log-level": "uvicorn_log_level",
    "enforce-eager": "enforce_eager",
    "enable-chunked-prefill": "enable_chunked_prefill",
    "trust-remote-code": "trust_remote_code",
}


def with_extra_options(settings: ServerSettings) -> ServerSettings:
    """Return the settings with each option in --extra_args as the setting of its own, which it replaces.

    Raises UsageError.
    """
    said = given_options(given_words("--extra_args", settings.extra))
    fields = {field: said[option] for option, field in _OPTION_FIELDS.items() if option in said}
    keys = env_keys(ServerSettings)
    read = ServerSettings.of({keys[field]: value for field, value in fields.items()})
    return replace(settings, **{field: getattr(read, field) for field in fields})


#: The least context that is asked for, so that the server is of use beyond one dataset.
_LEAST_MODEL_LEN = 2048


def fit_to_model(asked: ServerSettings, model: ModelRecord | None, longest: int) -> ServerSettings:
    """Return the settings completed by what is known of the model: where it lies, its name, type and context.

    `longest` is the number of tokens of the longest prompt with its answer, 0 where no dataset is known. A model whose
    context is much longer than that is served with less, because vLLM keeps memory for one request of full length.
    Raises ModelError when the context is too short.
    """
    if model is None or not model.path or asked.model not in ("", model.name, model.path):
        return asked
    checkpoint = read_checkpoint(Path(model.path))
    given = with_extra_options(asked).max_model_len
    require_context(checkpoint.max_positions if given is None else given, longest, model.name)
    known: dict[str, str | int] = {"name": model.name}
    if checkpoint.weight_data_types == "fp32":
        # vLLM's `auto` lowers fp32 weights to half precision; what was described is what is served.
        known["dtype"] = "float32"
    if model.quantization is not None and model.quantization.kv_cache != "not quantised":
        known["kv_cache_dtype"] = "fp8"
    needed = max(_LEAST_MODEL_LEN, 1 << (longest - 1).bit_length()) if longest else 0
    if needed and checkpoint.max_positions is not None and checkpoint.max_positions > needed:
        known["max_model_len"] = needed
    missing = {field: value for field, value in known.items() if getattr(asked, field) in (None, "")}
    return replace(asked, model=model.path, **missing)


def require_context(context: int | None, longest: int, model: str) -> None:
    """Refuse a dataset whose longest prompt with its answer has more tokens than the context; None is not known.

    `model` is the name of the model, empty where it is not known. Raises ModelError.
    """
    if context is not None and context < longest:
        raise ModelError(
            f"the dataset does not fit the {f'model {model}' if model else 'context'}",
            cause=f"the context is {context} tokens, prompt and answer need {longest}",
            remedy="serve a longer context by --max_model_len where the model has one, use a model with a longer "
            "context, or give a dataset with shorter prompts",
        )


def server_argv(
    python: Path, settings: ServerSettings, port: int | str = "{port}", preset: Preset | None = None
) -> list[str]:
    """Return the words that start the server with the environment of `python`; no secret is among them.

    Raises UsageError for words that cannot be given.
    """
    for flag, value in (("--vllm_model_name", settings.model), ("--served_model_name", settings.name)):
        if value.startswith("-"):
            raise UsageError(
                f"{value!r} is not the name of a model",
                cause="vLLM would take it for an option",
                remedy=f"give {flag} a hub id or a folder, as ./{value}",
            )
    extra, _ = _extra(settings.extra)
    options = _options_not_in({**(preset.options if preset else {}), **_set_options(settings)}, extra)
    return [
        *(str(python), "-P", "-m", "vllm.entrypoints.cli.main", "serve", settings.model),
        *("--served-model-name", settings.name, "--host", settings.host, "--port", str(port)),
        *("--no-enable-prefix-caching", "--generation-config", "vllm", "--disable-uvicorn-access-log"),
        *(word for name, value in settings.required.items() for word in (f"--{spelling(name)}", value)),
        *(part for word in option_words(options) for part in word.split("=", 1)),
        *extra,
    ]


def preset_options(preset: Preset, settings: ServerSettings) -> _Options:
    """Return the options that the server gets from the preset: those that the settings do not give."""
    free = {name: value for name, value in preset.options.items() if name not in _set_options(settings)}
    return _options_not_in(free, _extra(settings.extra)[0])


def _options_not_in(options: _Options, words: list[str]) -> _Options:
    """Return the options that are not among `words`."""
    said = given_options(words)
    return {name: value for name, value in options.items() if name.removeprefix("no-") not in said}


def _set_options(settings: ServerSettings) -> _Options:
    """Return the options that the settings set, by name; a preset's option that is switched off is False."""
    valued: dict[str, bool | int | float | str | None] = {
        **{option: getattr(settings, field) for option, field in _OPTION_FIELDS.items()},
        "load-format": settings.load_format,
        "distributed-executor-backend": "ray" if settings.ray_address else settings.distributed_executor_backend,
        "enable-chunked-prefill": settings.enable_chunked_prefill,
        "no-enable-chunked-prefill": True if settings.enable_chunked_prefill is False else None,
        "trust-remote-code": settings.trust_remote_code or None,
        "enable-scale-out": settings.api is Api.GENERATE or None,
    }
    return {name: value for name, value in valued.items() if value not in ("", None)}


def least_kv_cache_gib(given: int | None) -> int:
    """Return the GiB of the CPU backend's KV cache, the least where none are given."""
    return 1 if given is None else given


def secret_env(settings: ServerSettings) -> dict[str, str]:
    """Return what the server's environment has of the further words: a token there stands in no list of processes."""
    return _extra(settings.extra)[1]


def _extra(text: str) -> tuple[list[str], dict[str, str]]:
    """Return the further words, and the environment in which the value of --hf-token goes to the server."""
    words, given = split_options(given_words("--extra_args", text))
    secrets: dict[str, str] = {}
    for option in given:
        if len(option.name) < len("--hf-t") or not _TOKEN_OPTION.startswith(option.name):
            words += option.words
        elif any(option.values):
            secrets[_TOKEN_VARIABLE] = option.values[0]
    refuse_fixed(words)
    refuse_secrets(
        "--extra_args",
        words,
        cause="every user of the machine can read the server's command line",
        remedy="set it as an environment variable, which the server inherits",
    )
    return words, secrets


def niceness(settings: ServerSettings) -> int:
    """Return the niceness that the server has above its client's while the latency of its answers is measured.

    It is 10 where both compute on the same processors. vLLM's processes and threads keep all cores busy, also while
    they wait for each other: on two cores, a client that needs 4 % of a core waited for up to 2 s.
    """
    return 10 if settings.device == "cpu" else 0


def server_env(settings: ServerSettings) -> dict[str, str]:
    """Return what the server's environment has in addition to the present one; nothing of it is secret."""
    is_local = Path(settings.model).is_dir()
    local = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if is_local else {}
    if settings.container and not is_local:
        local = {"HF_HOME": str(hub_folder())}
    # vLLM's CPU platform makes "mp" of "uni" unless this is 0; the HTTP server has a process of its own either way.
    one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if settings.distributed_executor_backend == "uni" else {}
    cpu = (
        {}
        if settings.device != "cpu"
        else {
            "VLLM_CPU_KVCACHE_SPACE": str(least_kv_cache_gib(settings.kv_cache_gib)),
            **(
                {"OMP_NUM_THREADS": str(settings.threads), **({} if one_process else {_BINDING: "nobind"})}
                if settings.threads
                else {_BINDING: settings.cpu_binding}
            ),
            **({} if settings.container else fp8_env(Path(settings.model))),
        }
    )
    path = os.pathsep.join(filter(None, (cpu.pop("PYTHONPATH", ""), *_media_paths(settings))))
    return {
        **local,
        **one_process,
        **cpu,
        **({"PYTHONPATH": path} if path else {}),
        # All names of the variable: vLLM ends where one that is inherited differs.
        **(dict.fromkeys(server_variables(settings.device), settings.gpus) if settings.gpus else {}),
        **({"RAY_ADDRESS": settings.ray_address, **ray_env()} if settings.ray_address else {}),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # The client keeps its connections open between runs of a campaign.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
    }


def _media_paths(settings: ServerSettings) -> tuple[str, ...]:
    """Return the folders of packages with which the server reads media; an image has its own."""
    paths: dict[Api, tuple[str, ...]] = {Api.TRANSCRIPTIONS: (settings.speech_packages,)}
    if settings.device == "cpu":
        paths[Api.PICTURES] = (settings.vision_packages, str(_VISION_PLUGIN))
    return () if settings.container else paths.get(settings.api, ())


def hub_folder() -> Path:
    """Return the folder in which the model hub's client keeps its files."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser().absolute()


def ray_env() -> dict[str, str]:
    """Return what all processes of a Ray cluster need alike.

    Without a mode in its environment a head asks for a token as soon as the user has one, and its clients give none.
    """
    return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled")}


#: The note to the user where `fp8_env` is not empty.
FP8_NOTE = "FP8 products are computed in fp32: oneDNN has no fast FP8 kernel for this processor's AMX"

_PLUGIN = Path(__file__).with_name("fp8_plugin")
#: The kernel that is replaced, by its name in vLLM.
_REPLACED = "ChannelWiseTorchFP8ScaledMMLinearKernel"
_DISABLED = "VLLM_DISABLED_KERNELS"


def fp8_env(model: Path, root: Path = Path("/")) -> dict[str, str]:
    """Return the variables that a CPU server of `model` needs for FP8; none for other models and processors.

    vLLM 0.32.0 multiplies FP8 weights per channel with torch._scaled_mm. PyTorch 2.13 gives that to oneDNN on every
    processor whose AMX has INT8 (_scaled_mm_out_cpu), and computes in fp32 on all others. But oneDNN 3.12 has no FP8
    kernel for an AMX without FP16, and takes its reference one (ONEDNN_VERBOSE=all: "datatype configuration not
    supported on this isa", then "ref:any"), which takes far longer. There vLLM loads our kernel, as one of its plugins:
    it computes in fp32, as PyTorch does elsewhere (fp8_plugin/cm4vllm_fp8.py). Weights and activations are FP8 all the
    same. The processor is the one whose /proc is under `root`.
    """
    flags = detect_cpu(root).flags
    if "amx_int8" not in flags or "amx_fp16" in flags or quantised_to(model) != "fp8":
        return {}
    return {_DISABLED: ",".join(filter(None, [os.environ.get(_DISABLED, ""), _REPLACED])), "PYTHONPATH": str(_PLUGIN)}

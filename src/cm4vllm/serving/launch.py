"""What `run,vllm-server` does: start a server for a model, or check one that runs already; then wait, or go on."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec.structs import replace

from cm4vllm.assets.models import check_unchanged
from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.common.errors import ModelError, ServerDied, UsageError
from cm4vllm.common.files import writable_folder
from cm4vllm.common.progress import say, say_text, warn
from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.common.settings import Key, env_keys, read_settings
from cm4vllm.hardware.gpu import detect_gpus
from cm4vllm.rules import Division, benchmark_names, benchmark_terms
from cm4vllm.serving import arguments, server
from cm4vllm.serving.access import OWN_KEY_VARIABLE, Access, chosen_access, own_access, unencrypted
from cm4vllm.serving.clusters.placement import in_few_processes, own_cores, placed
from cm4vllm.serving.dialects import counting
from cm4vllm.serving.fit.advice import require_host_memory
from cm4vllm.serving.fp8 import FP8_NOTE, fp8_env
from cm4vllm.serving.options import Options, fitted, read_options
from cm4vllm.serving.ports import free_port
from cm4vllm.serving.presets import Preset, option_words, preset_for, preset_named
from cm4vllm.serving.probe import probe
from cm4vllm.serving.records import Api, ServerRecord
from cm4vllm.serving.running_servers import running_servers, status_text, stop_one
from cm4vllm.serving.site import base_urls, trusted

__all__ = [
    "PLANNED_FILE",
    "LaunchSettings",
    "Planned",
    "act",
    "attend",
    "described",
    "end",
    "launch",
    "require_access",
    "require_usable",
    "started",
    "wait_in_foreground",
]

_LOOK_S = 0.5
#: The record of a server that would be started.
PLANNED_FILE = "planned.json"
#: Where a server's files are put when nothing else is said.
DEFAULT_FOLDER = "vllm-server"
#: The option of vLLM that adds its token-only endpoint to the others.
_TOKENS_ONLY = "--enable-scale-out"


class LaunchSettings(Record, frozen=True, kw_only=True):
    """Which server: those at `api_server`, or a new one for the model of `model_record` or `model_name`.

    `max_model_len` is used for a server at `api_server` that does not report its own. `api` auto asks a server started
    here for tokens only where its vLLM can, a server at `api_server` in the OpenAI format. `device` is what a server
    started here is to compute on, empty where any will do. `api_key_env` and
    `api_headers_env` name the variables that hold the key and the headers for a server at `api_server`.
    """

    api_server: Annotated[str, Key("CM_MLPERF_INFERENCE_API_SERVER")] = ""
    api: Annotated[Literal["auto", "completions", "generate", "chat"], Key("CM_MLPERF_INFERENCE_API")] = "auto"
    api_server_ca: Annotated[str, Key("CM_MLPERF_INFERENCE_API_SERVER_CA")] = ""
    api_key_env: Annotated[str, Key("CM_MLPERF_INFERENCE_API_KEY_ENV")] = ""
    api_headers_env: Annotated[str, Key("CM_MLPERF_INFERENCE_API_HEADERS_ENV")] = ""
    max_model_len: Annotated[int, Key("CM_VLLM_SERVER_MAX_MODEL_LEN")] = 0
    folder: Annotated[str, Key("CM_VLLM_SERVER_DIR")] = ""
    model_name: Annotated[str, Key("CM_VLLM_SERVER_MODEL_NAME")] = ""
    model_record: Annotated[str, Key("CM_ML_MODEL_RECORD")] = ""
    dataset_record: Annotated[str, Key("CM_DATASET_RECORD")] = ""
    performance_dataset_record: Annotated[str, Key("CM_PERFORMANCE_DATASET_RECORD")] = ""
    compliance_dataset_record: Annotated[str, Key("CM_COMPLIANCE_DATASET_RECORD")] = ""
    round: Annotated[str, Key("CM_MLPERF_ROUND")] = "v6.1"
    benchmark: Annotated[str, Key("CM_MLPERF_MODEL")] = "llama3.1-8b"
    division: Annotated[str, Key("CM_MLPERF_SUBMISSION_DIVISION")] = "open"
    replicas: Annotated[int, Key("CM_VLLM_SERVER_REPLICAS")] = 1
    python: Annotated[str, Key("CM_VLLM_PYTHON_BIN_WITH_PATH")] = ""
    ray_python: Annotated[str, Key("CM_RAY_PYTHON_BIN_WITH_PATH")] = ""
    installation: Annotated[str, Key("CM_VLLM_INSTALLATION")] = ""
    preset: Annotated[str, Key("CM_VLLM_SERVER_PRESET")] = ""
    device: Annotated[str, Key("CM_MLPERF_DEVICE")] = ""
    gpu_name: Annotated[str, Key("CM_HOST_GPU_MODEL_NAME")] = ""
    gpu_count: Annotated[int, Key("CM_HOST_GPU_COUNT")] = 0
    action: Annotated[Literal["start", "describe", "status", "stop"], Key("CM_VLLM_SERVER_ACTION")] = "start"
    background: Annotated[bool, Key("CM_VLLM_SERVER_BACKGROUND")] = False
    port: Annotated[int, Key("CM_VLLM_SERVER_PORT")] = 0
    ready_timeout_s: Annotated[float, Key("CM_VLLM_SERVER_READY_TIMEOUT")] = server.READY_TIMEOUT_S


def act(settings: LaunchSettings, env: Mapping[str, str]) -> dict[str, str]:
    """Start a server, describe the one that would be started, tell which ones run, or stop one.

    Returns what the recipe exports.
    """
    if settings.action == "status":
        say_text(status_text(running_servers()))
        return {}
    if settings.action == "stop":
        stop_one(settings.folder or DEFAULT_FOLDER, settings.port)
        return {}
    if settings.action == "describe":
        _require_installed(settings)
        folder = Path(settings.folder or DEFAULT_FOLDER).absolute()
        path = writable_folder(folder) / PLANNED_FILE
        write_record(path, described(_planned(settings, _server_settings(settings, env))))
        return {"CM_VLLM_SERVER_PLANNED": str(path)}
    record, path = launch(settings, env)
    return {
        "CM_VLLM_SERVER_ENDPOINT": record.endpoint,
        "CM_VLLM_SERVER_RECORD": str(path),
        "CM_VLLM_SERVER_MODEL_FOLDER": record.model_folder,
    }


def attend(settings: LaunchSettings, path: str) -> None:
    """Wait in the foreground for the server that was started, unless it is for a run that goes on."""
    if path and settings.action == "start" and not settings.background:
        wait_in_foreground(path)


def launch(settings: LaunchSettings, env: Mapping[str, str]) -> tuple[ServerRecord, Path]:
    """Return the record of a server that is ready to be measured, and the path it was written to.

    `env` holds the server's own settings under the keys of `arguments.ServerSettings`.
    """
    folder = Path(settings.folder or DEFAULT_FOLDER).absolute()
    path = folder / server.SERVER_FILE
    if settings.api_server:
        _require_no_replicas(settings)
        access = require_access(settings)
        _say_access(access, base_urls(settings.api_server))
        record = probe(
            settings.api_server,
            settings.model_name,
            api=_api(settings, None),
            ca_file=settings.api_server_ca,
            max_model_len=settings.max_model_len,
            access=access,
            text=True,
        )
        write_record(writable_folder(folder) / server.SERVER_FILE, record)
        for endpoint in record.endpoints:
            say(f"the server at {endpoint} serves {record.model_name} with {record.named}")
        if record.dialect is not None:
            warn(" ".join(counting(record)))
        for note in record.unchecked:
            warn(f"not checked: {note}")
        return record, path
    _require_installed(settings)
    record = started(_planned(settings, _server_settings(settings, env)), folder, settings.ready_timeout_s)
    write_record(path, record)
    return record, path


def _require_installed(settings: LaunchSettings) -> None:
    if not settings.python:
        raise UsageError("no vLLM is installed to start", remedy="run the recipe get,vllm first, or give --api_server")


def require_access(settings: LaunchSettings) -> Access:
    """Return how the servers at `api_server` are asked.

    Raises UsageError when an address, a key or the headers cannot be used.
    """
    if not settings.api_server:
        given = next(
            (
                flag
                for flag, name in (("api_key_env", settings.api_key_env), ("api_headers_env", settings.api_headers_env))
                if name
            ),
            "",
        )
        if given:
            raise UsageError(
                f"--{given} needs a server that is already running",
                cause="no --api_server is given",
                remedy="name the server with --api_server, or leave the flag out",
            )
        return own_access()
    if any(url.startswith("https:") for url in base_urls(settings.api_server)):
        trusted(settings.api_server_ca)
    return chosen_access(settings.api_key_env, settings.api_headers_env)


def _say_access(access: Access, urls: list[str]) -> None:
    if access.key_env:
        say(f"note: the key in {access.key_env} is sent to the server")
    for url in urls:
        if unencrypted(access, url):
            warn(f"the key and the headers for {url} are sent unencrypted (http, not https)")


def require_usable(env: Mapping[str, Any]) -> None:
    """Refuse settings that no server can have, a given address that is none, and servers that have no room here.

    Of GPUs it is not known before which of them vLLM will use. Raises UsageError, PortInUse.
    """
    settings, keys = read_settings(LaunchSettings, env), env_keys(arguments.ServerSettings)
    if settings.action != "start":
        return
    given = {key: str(env[key]) for key in keys.values() if env.get(key) not in (None, "")}
    chosen = read_settings(arguments.ServerSettings, {keys["model"]: "any", keys["name"]: "any"} | given)
    require_sensible(chosen, settings.ready_timeout_s)
    preset = preset_named(settings.preset) if settings.preset else None
    arguments.server_argv(Path("python"), chosen, preset=preset)
    require_access(settings)
    if settings.api_server:
        _require_no_replicas(settings)
        return
    on_cpu = settings.device == "cpu" or (not settings.device and not detect_gpus())
    alone = on_cpu and not chosen.ray_address
    for part in placed(chosen, settings.replicas, 0, os.environ) if alone else [chosen]:
        free_port(part.host, part.port)


def require_sensible(chosen: arguments.ServerSettings, ready_timeout_s: float) -> None:
    """Refuse numbers with which no server starts. Raises UsageError."""
    numbers = {
        "ready_timeout": ready_timeout_s,
        "max_num_seqs": chosen.max_num_seqs,
        "max_num_batched_tokens": chosen.max_num_batched_tokens,
        "max_model_len": chosen.max_model_len,
    }
    for flag, number in numbers.items():
        if number is not None and not 0 < number < 2**31:
            raise UsageError(f"--{flag}={number} is not usable", cause="it must be above zero, and below 2,147,483,648")
    if (share := chosen.gpu_memory_utilization) is not None and not 0 < share <= 1:
        raise UsageError(
            f"--gpu_memory_utilization={share} is not usable",
            cause="it is a part of the GPU's memory: above 0, and 1 at most",
        )
    if chosen.kv_cache_gib < 0:
        raise UsageError(f"--kv_cache_space={chosen.kv_cache_gib} is not usable", cause="it is a number of GiB")


def _require_no_replicas(settings: LaunchSettings) -> None:
    if settings.replicas != 1:
        raise UsageError(
            "--replicas cannot be given with --api_server",
            cause="no server is started then",
            remedy="name them all: --api_server=URL,URL",
        )


@dataclass(frozen=True)
class Planned:
    """Servers that are to be started, all by the same words, with the environment of `python`."""

    python: Path
    parts: list[arguments.ServerSettings]
    words: list[str]


def _planned(settings: LaunchSettings, chosen: arguments.ServerSettings) -> Planned:
    preset = _preset(settings, chosen)
    if preset is not None and chosen.tp_size is None:
        chosen = replace(chosen, tp_size=preset.options.get("tensor-parallel-size"))
    options = read_options(Path(settings.installation)) if settings.installation else None
    chosen = replace(chosen, api=_api(settings, options))
    python = Path(settings.ray_python if chosen.ray_address else settings.python)
    chosen = in_few_processes(chosen, settings.replicas, len(own_cores()))
    require_sensible(chosen, settings.ready_timeout_s)
    parts = placed(chosen, settings.replicas, settings.gpu_count, os.environ)
    return Planned(python, parts, _words(chosen, python, preset, options))


def started(planned: Planned, folder: Path, timeout_s: float) -> ServerRecord:
    """Start the servers, and return the first's record with those of the others in it."""
    one = planned.parts[0]
    if one.threads:
        say(f"note: vLLM's worker computes in its engine's process (uni), with OMP_NUM_THREADS={one.threads}")
    if one.device == "cpu" and fp8_env(Path(one.model)):
        say(f"note: {FP8_NOTE}")
    places = [folder, *(folder / f"replica-{number}" for number in range(2, len(planned.parts) + 1))]
    records = server.start_all(
        planned.python, list(zip(planned.parts, places, strict=True)), timeout_s=timeout_s, argv=planned.words
    )
    for record in records:
        say(
            f"vLLM {record.version} serves {record.model_name} at {record.endpoint} after {record.ready_after_s} s, "
            f"asked at {record.api.path}"
        )
    first, *members = records
    return replace(first, replicas=[member.endpoint for member in members], members=members)


def described(planned: Planned) -> ServerRecord:
    """Return the record of the servers that would be started, without what only one that answers can tell."""
    packages = server.packages_of(planned.python)
    first, *members = [
        ServerRecord(
            endpoint="",
            api=part.api,
            model_name=part.name,
            max_model_len=0,
            version="",
            owned=True,
            argv=planned.words,
            env=arguments.server_env(part),
            niceness=arguments.niceness(part),
            packages=packages,
        )
        for part in planned.parts
    ]
    return replace(first, members=members)


def _preset(settings: LaunchSettings, chosen: arguments.ServerSettings) -> Preset | None:
    model = read_record(Path(settings.model_record), ModelRecord).name if settings.model_record else chosen.model
    preset = (
        preset_named(settings.preset)
        if settings.preset
        else preset_for(chosen.device, model, settings.gpu_name, settings.gpu_count)
    )
    if preset is not None:
        say(f"options of the preset {preset.name}: {' '.join(option_words(preset.options))}")
    return preset


def _api(settings: LaunchSettings, options: Options | None) -> Api:
    """Return how a server is asked; `options` are those of the vLLM that is started, None where they are not known.

    Tokens alone cost the HTTP process less, and its processors are the engine's. Raises UsageError where they are asked
    for of a vLLM that has no such endpoint.
    """
    known = options is not None and _TOKENS_ONLY in options
    if settings.api == "auto":
        return Api.GENERATE if known else Api.COMPLETIONS
    if settings.api == "generate" and options is not None and not known:
        raise UsageError(
            "the installed vLLM does not support --api=generate",
            cause=f"it has no option {_TOKENS_ONLY}, which enables {Api.GENERATE.path}",
            remedy="leave --api out: /v1/completions is used then; or install a newer vLLM",
        )
    return Api(settings.api)


def _words(chosen: arguments.ServerSettings, python: Path, preset: Preset | None, options: Options | None) -> list[str]:
    """Return the command line as the installed vLLM takes it, and tell what was changed for that."""
    words = arguments.server_argv(python, chosen, preset=preset)
    if options is None:
        say("note: the options of this vLLM are not known: they are not checked before it starts")
        return words
    program = words.index("serve") + 1
    done, notes = fitted(words[program:], options)
    for note in notes:
        say(f"note: {note}")
    return [*words[:program], *done]


def _server_settings(settings: LaunchSettings, env: Mapping[str, str]) -> arguments.ServerSettings:
    model = read_record(Path(settings.model_record), ModelRecord) if settings.model_record else None
    if model is not None:
        if not Path(model.path).is_dir():
            raise ModelError(
                f"the model folder {model.path} does not exist any more",
                remedy="get it again: cm run script --tags=get,ml-model with the same variation and --renew",
            )
        check_unchanged(model)
    keys = env_keys(arguments.ServerSettings)
    given = {key: str(env[key]) for key in keys.values() if env.get(key) not in (None, "")}
    given = arguments.completed(given, model, _longest(settings))
    name = given.get(keys["model"], "")
    if not name:
        raise UsageError("no model to serve", remedy="give --vllm_model_name, a hub id or a folder")
    given.setdefault(keys["name"], Path(name).name if Path(name).is_dir() else name)
    server_settings = read_settings(arguments.ServerSettings, given)
    if model is not None and model.is_dummy and server_settings.model == model.path:
        server_settings = replace(server_settings, load_format="dummy")
    if settings.device not in ("", server_settings.device):
        raise UsageError(
            f"--device={settings.device}, but the vLLM that is installed computes on {server_settings.device}",
            remedy="leave --device out, or the --adr that chose this vLLM",
        )
    require_host_memory(server_settings, model, settings.replicas)
    return server_settings


def _longest(settings: LaunchSettings) -> int:
    """Return the tokens of the longest prompt with its answer, 0 where no dataset is known."""
    records = (settings.dataset_record, settings.performance_dataset_record, settings.compliance_dataset_record)
    names = [name for name in records if name]
    if not names or settings.benchmark not in benchmark_names(settings.round):
        return 0
    longest = max(read_record(Path(name), DatasetRecord).max_input_tokens for name in names)
    return longest + benchmark_terms(settings.round, settings.benchmark, Division.parse(settings.division)).max_tokens


def wait_in_foreground(path: str) -> None:
    """Tell how the server of a record is used, and wait for Ctrl-C. Raises ServerDied when the server ends before."""
    record = read_record(Path(path), ServerRecord)
    if not record.owned:
        return
    say("it runs until Ctrl-C. From another terminal:")
    # The variable, not its value: the line is shown, and copied.
    key = f' -H "Authorization: Bearer ${OWN_KEY_VARIABLE}"' if record.access.key_env else ""
    say_text(f"""
    curl {record.endpoint}/v1/completions{key} -H 'Content-Type: application/json' \\
      -d '{{"model": "{record.model_name}", "prompt": "Harbour log", "max_tokens": 32, "temperature": 0}}'

    cm run script --tags=run-mlperf,inference,_vllm --api_server={record.endpoint} --api={record.api}

    log: {record.log}
""")
    try:
        while (reason := server.death_reason(record)) is None:
            time.sleep(_LOOK_S)
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt:
            raise  # another signal, which the caller has to tell of
        say("stopping the server")
        return
    if reason.startswith("ended by SIGTERM"):
        say("the server was stopped")
        return
    raise ServerDied(f"the server of {record.model_name} ended", cause=reason, remedy=f"the whole log is {record.log}")


def end(path: str) -> None:
    """End the server of a record, if it is ours."""
    if path and Path(path).exists():
        server.stop(read_record(Path(path), ServerRecord))

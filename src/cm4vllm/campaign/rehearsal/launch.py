"""The recipe `run,simulated-vllm-server`, and the options that a job rehearsed on a simulated server refuses."""

import shlex
import sys
from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.campaign.rehearsal.profile import Faults, Profile, read_profile
from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import typed_path, writable_folder
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import Settings, env_keys
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.server import Api, Simulation
from cm4vllm.rules import catalogue
from cm4vllm.serving.launch import DEFAULT_FOLDER, LaunchExports, start_servers
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.planned_servers import PLANNED_FILE, Planned, asked_api, media_of, planned_record
from cm4vllm.serving.probing.media_apis import MEDIA_APIS
from cm4vllm.serving.server import SERVER_FILE

_START = Path(__file__).with_name("start.py")
#: What a simulated server answers (server.py) beside text.
_MEDIA_APIS = frozenset({Api.TRANSCRIPTIONS})
_DEFAULT_MODEL = "llama3.1-8b"
#: Options of a server that a simulated one has, too.
_KNOWN = ("model", "name", "port", "max_num_seqs", "max_num_batched_tokens")
#: Further keys of the environment that cannot be given, with their flags.
_REFUSED = {
    "CM_MLPERF_INFERENCE_API_SERVER": "--api_server",
    "CM_MLPERF_PUBLISHED": "--published",
    "CM_MLPERF_SYSTEM_FILE": "--system_file",
    "CM_HW_NAME": "--hw_name",
    "CM_MLPERF_DEVICE": "--device",
    "CM_MLPERF_LOADGEN_COMPLIANCE": "--compliance",
    "CM_ML_MODEL_QUANTIZATION": "--quantize",
    "CM_ML_MODEL_SOURCE": "a model among the tags",
    "CM_VLLM_SERVER_MODEL_NAME": "--vllm_model_name",
    "CM_VLLM_CONTAINER": "--container",
    "CM_VLLM_SERVER_REPLICAS": "--replicas",
    "CM_VLLM_SERVER_PRESET": "--preset",
}


class SimulatedSettings(Settings, frozen=True, kw_only=True):
    """Settings of a simulated server: its profile, the seed of its noise and answers, its faults, its options.

    `searched` are options by a search over server settings, which come after the others and so are used.
    """

    profile: input_types.Rehearse = ""
    seed: input_types.RehearseSeed = 0
    faults: input_types.RehearseFaults = ""
    model_record: input_types.ModelRecordPath = ""
    folder: input_types.ServerDir = ""
    action: input_types.ServerAction = "start"
    port: input_types.ServerPort = 0
    max_num_seqs: input_types.MaxNumSeqs = None
    max_num_batched_tokens: input_types.MaxNumBatchedTokens = None
    searched: input_types.ExtraArgs = ""
    launch: LaunchSettings = LaunchSettings()


def act(settings: SimulatedSettings) -> LaunchExports:
    """Start a simulated server, or describe the one that would be started. Return what the recipe exports."""
    _require_possible(settings)
    profile = read_profile(settings.profile)
    simulation = simulation_of(settings)
    folder = writable_folder(Path(settings.folder or DEFAULT_FOLDER).absolute())
    asked = replace(settings.launch, benchmark=profile.benchmark)
    planned = _plan(settings, profile, asked_api(asked, None))
    if settings.action == "describe":
        path = folder / PLANNED_FILE
        write_record(path, replace(planned_record(planned), simulated=simulation, packages={}))
        return LaunchExports(planned=str(path))
    # The packages of this machine are not those of the one that it stands for.
    record = replace(start_servers(planned, folder, timeout_s=60), packages={})
    write_record(folder / SERVER_FILE, record)
    return LaunchExports(endpoint=record.endpoint, record=str(folder / SERVER_FILE), model_folder="")


def simulation_of(settings: SimulatedSettings) -> Simulation:
    """Return the note on a simulated server of these settings, for its records. Raises UsageError."""
    _require_possible(settings)
    return read_profile(settings.profile).simulation(settings.seed, settings.faults)


def _require_possible(settings: SimulatedSettings) -> None:
    """Raise UsageError for an action or faults that no simulated server can have."""
    if settings.action not in ("start", "describe"):
        raise UsageError(
            f"a simulated server has no action {settings.action}",
            remedy=f"use that of run,vllm-server: its _{settings.action} variation shows simulated servers, too",
        )
    Faults.parse(settings.faults)


def _plan(settings: SimulatedSettings, profile: Profile, api: Api) -> Planned:
    name = read_record(Path(settings.model_record), ModelRecord).name if settings.model_record else profile.benchmark
    part = ServerSettings(device="simulated", model=name, name=name, port=settings.port, api=api)
    words = [
        sys.executable,
        "-P",
        str(_START),
        f"--profile={settings.profile}",
        f"--served-model-name={name}",
        f"--api={api}",
        "--port={port}",
        f"--seed={settings.seed}",
        f"--max-num-seqs={settings.max_num_seqs or profile.server.max_num_seqs}",
        f"--max-num-batched-tokens={settings.max_num_batched_tokens or profile.server.max_num_batched_tokens}",
        *([f"--faults={settings.faults}"] if settings.faults else []),
        *shlex.split(settings.searched),
    ]
    return Planned(Path(sys.executable), [part], words)


def rehearsed_benchmark(name: str, asked: str, launch: LaunchSettings) -> tuple[str, str]:
    """Return the benchmark to rehearse with the profile `name`, and the profile's path.

    It is `asked` where that has the model of the profile's benchmark; where nothing is asked for, the profile's.
    The path of a profile of cm4vllm is its name. Raises UsageError.
    """
    profile = read_profile(name)
    for benchmark in (asked, profile.benchmark):
        _require_simulated_server(benchmark, launch)
    place = name if profile.name == name else str(typed_path(name).absolute())
    models = {catalogue().benchmark(benchmark).model for benchmark in (profile.benchmark, asked) if benchmark}
    if asked == _DEFAULT_MODEL:
        return profile.benchmark, place
    if len(models) > 1:
        raise UsageError(
            f"--rehearse={name} is not for --model={asked}",
            cause=f"its times are those of {profile.benchmark}, whose model is another",
            remedy=f"leave --model out, or write a profile for {asked} (docs/rehearse.md)",
        )
    return asked, place


def _require_simulated_server(benchmark: str, launch: LaunchSettings) -> None:
    """Raise UsageError for a benchmark whose samples carry media that no simulated server takes."""
    media = media_of(replace(launch, benchmark=benchmark))
    if media and (api := MEDIA_APIS[media].api) not in _MEDIA_APIS:
        raise UsageError(
            f"{benchmark} cannot be rehearsed on a simulated server",
            cause=f"its samples carry media ({media}), and a simulated server has no {api.path}",
            remedy="leave --rehearse out: the tiny model of cm4vllm is served by vLLM",
        )


def require_rehearsal(settings: SimulatedSettings, given: Collection[str], *, valid: bool) -> None:
    """Refuse what has no meaning with --rehearse; `given` are the keys of all that was given. Raises UsageError."""
    if not settings.profile:
        return
    _require_possible(settings)
    own = {key: f"--{field}" for field, key in env_keys(ServerSettings).items() if field not in _KNOWN}
    flags = [flag for key, flag in (_REFUSED | own).items() if key in given]
    if valid:
        flags.insert(0, "--execution_mode=valid")
    if flags:
        raise UsageError(
            f"{flags[0]} cannot be given with --rehearse",
            cause="the server is simulated: nothing that it gives is a result, and its profile says what machine it is",
            remedy=f"leave {', '.join(flags)} out; --max_num_seqs and --max_num_batched_tokens are options of it, too",
        )

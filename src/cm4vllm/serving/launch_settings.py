"""The settings of `run,vllm-server`; what is refused and noted of them before anything is downloaded or started."""

import os
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from msgspec.structs import replace

from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError
from cm4vllm.common.programs.containers import engine_for
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.records.access import Access
from cm4vllm.records.published_server import container_words
from cm4vllm.records.vllm.given_options import OptionValue, given_options
from cm4vllm.records.vllm.server_needs import local_workers
from cm4vllm.rules import default_round
from cm4vllm.serving.clusters.launchers import chosen_launcher
from cm4vllm.serving.clusters.node_processes import require_reachable
from cm4vllm.serving.clusters.placement import node_layout, placed_servers, require_cpu_backend
from cm4vllm.serving.installation.builds import WantedBuild
from cm4vllm.serving.installation.vllm_choice import DEVICES, build_notes, gpus_for, require_build, require_device
from cm4vllm.serving.options import arguments
from cm4vllm.serving.options.presets import preset_named
from cm4vllm.serving.ports import free_port
from cm4vllm.serving.probing.server_access import chosen_access, own_access, tls_context
from cm4vllm.serving.probing.server_requests import base_urls
from cm4vllm.serving.server import NodeLaunch
from cm4vllm.serving.server_container import ImageSettings, container_of, require_container, server_container

#: A folder that exists stands for that of a model which is known later.
_ANY_FOLDER = str(Path(__file__).parent)


class StartedServer(Settings, frozen=True, kw_only=True):
    """The record of the server that was started; empty before."""

    server_record: input_types.ServerRecordPath = ""


class LaunchSettings(StartedServer, frozen=True, kw_only=True):
    """The servers to use: those at `api_server`, or a new one for the model of `model_record` or `model_name`.

    `server` are the server's own settings, `image` the container that it is started in. `max_model_len` is used for a
    server at `api_server` that does not report its own. `api` auto asks a server started
    here for tokens only where its vLLM can, a server at `api_server` in the OpenAI format. `device` is what a server
    started here is to compute on, empty where any will do. `api_key_env` and
    `api_headers_env` name the variables that hold the key and the headers for a server at `api_server`.
    """

    api_server: input_types.ApiServer = ""
    api: Annotated[Literal["auto", "completions", "generate", "chat"], Key("CM_MLPERF_INFERENCE_API")] = "auto"
    api_server_ca: Annotated[str, Key("CM_MLPERF_INFERENCE_API_SERVER_CA")] = ""
    api_key_env: Annotated[str, Key("CM_MLPERF_INFERENCE_API_KEY_ENV")] = ""
    api_headers_env: Annotated[str, Key("CM_MLPERF_INFERENCE_API_HEADERS_ENV")] = ""
    max_model_len: input_types.MaxModelLen = None
    folder: input_types.ServerDir = ""
    model_name: input_types.VllmModelName = ""
    model_record: input_types.ModelRecordPath = ""
    dataset_record: input_types.DatasetRecordPath = ""
    performance_dataset_record: input_types.PerformanceDatasetRecordPath = ""
    compliance_dataset_record: input_types.ComplianceDatasetRecordPath = ""
    round: input_types.Round = default_round()
    benchmark: input_types.Benchmark = "llama3.1-8b"
    division: input_types.Division = "open"
    replicas: input_types.Replicas = None
    nodes: input_types.Nodes = ""
    launcher: Annotated[str, Key("CM_VLLM_SERVER_LAUNCHER")] = "auto"
    install_on_nodes: Annotated[bool, Key("CM_VLLM_SERVER_INSTALL_ON_NODES")] = False
    container: input_types.ContainerImage = ""
    image_record: input_types.ImageRecordPath = ""
    python: input_types.VllmPython = ""
    ray_python: input_types.RayPython = ""
    installation: input_types.VllmInstallation = ""
    preset: Annotated[str, Key("CM_VLLM_SERVER_PRESET")] = ""
    device: input_types.Device = ""
    machine: input_types.Machine = ""
    gpu_name: Annotated[str, Key("CM_HOST_GPU_MODEL_NAME")] = ""
    gpu_count: Annotated[int, Key("CM_HOST_GPU_COUNT")] = 0
    action: input_types.ServerAction = "start"
    background: Annotated[bool, Key("CM_VLLM_SERVER_BACKGROUND")] = False
    port: input_types.ServerPort = 0
    ready_timeout_s: input_types.ReadyTimeout = None
    build: WantedBuild = WantedBuild()
    server: arguments.ServerSettings = arguments.ServerSettings()
    image: ImageSettings = ImageSettings()

    @property
    def servers(self) -> int:
        """The number of servers that are started."""
        return 1 if self.replicas is None else self.replicas


def require_access(settings: LaunchSettings) -> Access:
    """Return how the servers at `api_server` are asked.

    Raises UsageError when an address, a key or the headers cannot be used.
    """
    if not settings.api_server:
        if settings.api_key_env or settings.api_headers_env:
            flag = "api_key_env" if settings.api_key_env else "api_headers_env"
            raise UsageError(
                f"--{flag} needs a server that is already running",
                cause="no --api_server is given",
                remedy="name the server with --api_server, or leave the flag out",
            )
        return own_access()
    if any(url.startswith("https:") for url in base_urls(settings.api_server)):
        tls_context(settings.api_server_ca)
    return chosen_access(settings.api_key_env, settings.api_headers_env)


def require_installable(
    settings: LaunchSettings, *, prepare: bool = False, simulated: bool = False, driver: str | None = None
) -> None:
    """Refuse servers on a device that this machine lacks, and a vLLM for it that does not exist or does not fit.

    With `prepare` the device is that of another machine, and so is a `driver` (empty where it is not known); a
    simulated server needs no vLLM, and a container has its own. Raises UsageError, InstallError.
    """
    if settings.api_server or settings.action != "start":
        return
    device = wanted_device(settings)
    if device and not (prepare or settings.machine):
        require_device(device)
    if not (simulated or settings.container or settings.python):
        require_build(settings.build, device, driver)


def vllm_notes(settings: LaunchSettings) -> tuple[str, ...]:
    """Return the note of a plan on the vLLM that is installed for GPUs; none where that is not so, or not known."""
    elsewhere = settings.api_server or settings.container or settings.build.variant == "system"
    return () if elsewhere else build_notes(settings.build, wanted_device(settings))


def wanted_device(settings: LaunchSettings) -> str:
    """Return the device that is asked for, by the tag of a build of vLLM or by its name; empty where any will do."""
    return settings.build.variant if settings.build.variant in DEVICES else settings.device


def require_usable(settings: LaunchSettings) -> None:
    """Refuse settings that no server can have, a malformed address, and servers that have no room on this machine.

    Of GPUs it is not known before which of them vLLM will use. Raises UsageError, PortInUse, ServerUnreachable.
    """
    if settings.action != "start" or settings.machine:
        return
    chosen, options = chosen_server(settings), asked_options(settings)
    require_access(settings)
    if settings.container:
        require_without(
            "container",
            api_server=(settings.api_server, "no server is started then"),
            nodes=(settings.nodes, "the processes of a server over several nodes are started without a container"),
            ray_address=(chosen.ray_address, "the workers would be started by Ray, outside of the container"),
        )
    require_container(settings.image)
    if settings.api_server:
        require_no_replicas(settings)
        return
    on_cpu = settings.device == "cpu" or (not settings.device and not detect_gpus())
    if (nodes := nodes_start(settings, chosen, on_cpu=on_cpu)) is not None:
        require_reachable(nodes.launcher)
        return
    parts = [chosen]
    if not on_cpu:
        chosen = replace(chosen, device=settings.image.asked_device)
        placed_servers(chosen, settings.servers, gpus_for(chosen.device), os.environ, local_workers(options))
    elif not chosen.ray_address:
        parts = placed_servers(chosen, settings.servers, (), os.environ)
    for part in parts:
        free_port(part.host, part.port)


def nodes_start(
    settings: LaunchSettings, chosen: arguments.ServerSettings, *, on_cpu: bool, options: Collection[str] | None = None
) -> NodeLaunch | None:
    """Return how the server is started on the nodes that are asked for, None for this machine alone.

    Raises UsageError for what cannot be combined, and what `options`, those of the installed vLLM, do not permit.
    """
    launcher = chosen_launcher(settings.launcher, settings.nodes, os.environ)
    if launcher is None:
        return None
    require_without(
        "nodes",
        ray_address=(chosen.ray_address, "Ray places the workers by itself"),
        replicas=(settings.servers > 1, "each of the servers would be on all nodes"),
    )
    if on_cpu:
        require_cpu_backend(chosen)
    tp_size, pp_size, dp_size = chosen.tp_size or 1, chosen.pp_size or 1, chosen.dp_size or 1
    layout = node_layout(len(launcher.nodes), tp_size=tp_size, pp_size=pp_size, dp_size=dp_size, options=options)
    return NodeLaunch(launcher, layout, settings.install_on_nodes)


def node_notes(settings: LaunchSettings) -> tuple[str, ...]:
    """Return the notes of a plan on the nodes of a server that is started; none for this machine alone."""
    is_started = settings.action == "start" and not settings.api_server
    if (nodes := nodes_start(settings, chosen_server(settings), on_cpu=False) if is_started else None) is None:
        return ()
    launcher, layout = nodes.launcher, nodes.layout
    first, second, *more = launcher.nodes
    names = [first, second, *(["..."] if more[1:] else []), *more[-1:]]
    head, other = (" ".join(layout.options(rank, "HEAD", ("PORT", "PORT"))) for rank in (0, 1))
    return (
        f"one server over {len(launcher.nodes)} nodes, by {launcher.name}: {', '.join(names)}; workers on "
        f"each: {layout.workers}",
        f"vLLM's options for that on {first}: {head}; on {second}: {other}",
    )


def container_notes(settings: LaunchSettings) -> tuple[str, ...]:
    """Return the notes of a plan on a container: what is pulled, and the command that will run; none without an image.

    Of the model and the port what stands for them is shown.
    """
    if not settings.container:
        return ()
    engine, device = engine_for(settings.image.engine), settings.image.asked_device
    image = container_of(engine, settings.image, device)
    tried = f"tried {engine.tried}" if engine.tried else "this engine was not tried by cm4vllm"
    chosen = replace(chosen_server(settings, model=_ANY_FOLDER), device=device)
    argv = arguments.server_argv(Path(settings.image.python), chosen, "PORT")
    line = shlex.join(container_words(server_container(image, chosen), argv)).replace(_ANY_FOLDER, "MODEL")
    return (
        f"{image.image}: {f'on this machine, {image.digest}' if image.digest else 'not on this machine: pulled'}",
        f"run by {engine.name} {image.engine_version} ({tried}), for {device}:",
        f"{line} (with the options of the model, as far as they follow from it)",
    )


def asked_options(settings: LaunchSettings) -> dict[str, OptionValue]:
    """Return the options of the servers that are asked for, as far as they are known before model and vLLM are.

    Raises UsageError for words that cannot be given.
    """
    preset = preset_named(settings.preset) if settings.preset else None
    return given_options(arguments.server_argv(Path("python"), chosen_server(settings), preset=preset))


def chosen_server(settings: LaunchSettings, model: str = "any") -> arguments.ServerSettings:
    """Return the settings of a server as far as they are asked for; `model` stands for one that is not named."""
    asked = settings.server
    return arguments.with_extra_options(replace(asked, model=asked.model or model, name=asked.name or model))


def require_without(flag: str, **others: tuple[object, str]) -> None:
    """Raise UsageError where one of the `others` is given beside `flag`: each has its value and the cause."""
    for other, (value, cause) in others.items():
        if value:
            raise UsageError(
                f"--{flag} cannot be given with --{other}",
                cause=cause,
                remedy=f"leave one of --{flag} and --{other} out",
            )


def require_no_replicas(settings: LaunchSettings) -> None:
    """Raise UsageError for a number of replicas that is given for running servers."""
    if settings.servers != 1:
        raise UsageError(
            "--replicas cannot be given with --api_server",
            cause="no server is started then",
            remedy="name them all: --api_server=URL,URL",
        )

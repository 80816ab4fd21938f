"""Servers that are to be started for a model: their settings and places, their command line, their record so far."""

import os
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.assets.models import check_unchanged
from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.server import Api, NodeRecord, ServerRecord
from cm4vllm.records.vllm.given_options import given_options, whole_number
from cm4vllm.records.vllm.options import Options, fit_to_release, read_options
from cm4vllm.records.vllm.server_needs import local_workers
from cm4vllm.rules import Division, Media, benchmark_names, benchmark_terms, round_terms
from cm4vllm.serving.clusters.launchers import node_count
from cm4vllm.serving.clusters.placement import in_few_processes, placed_servers
from cm4vllm.serving.fit.advice import with_host_memory
from cm4vllm.serving.installation.packages import packages_of
from cm4vllm.serving.installation.vllm_choice import gpus_for
from cm4vllm.serving.installation.weight_plugins import has_plugin_weights, require_plugin
from cm4vllm.serving.launch_settings import LaunchSettings, nodes_start
from cm4vllm.serving.options import arguments
from cm4vllm.serving.options.presets import Preset, option_words, preset_for, preset_named
from cm4vllm.serving.probing.media_apis import MEDIA_APIS
from cm4vllm.serving.server import NodeLaunch
from cm4vllm.serving.server_container import VllmImage, server_container

#: The record of a server that would be started.
PLANNED_FILE = "planned.json"
#: The option of vLLM that adds its token-only endpoint to the others.
_TOKENS_ONLY = "--enable-scale-out"
#: The sequences that vLLM runs at a time on processors where nothing is given (0.32.0, engine/arg_utils.py).
_SEQUENCES = 128


@dataclass(frozen=True)
class Planned:
    """Servers that are to be started, all by the same words, with the environment of `python`, or of `image`."""

    python: Path
    parts: list[arguments.ServerSettings]
    words: list[str]
    nodes: NodeLaunch | None = None
    image: VllmImage | None = None


def plan_servers(settings: LaunchSettings) -> Planned:
    """Return the servers that are asked for. Raises UsageError, ModelError."""
    if not settings.python:
        raise UsageError("no vLLM is installed to start", remedy="run the recipe get,vllm first, or give --api_server")
    chosen = _server_settings(settings)
    preset = _preset(settings, chosen)
    if preset is not None and chosen.tp_size is None:
        chosen = replace(chosen, tp_size=preset.options.get("tensor-parallel-size"))
    if settings.launcher == "local" or node_count(settings.nodes) == 1:  # else it is the memory of other machines
        chosen = _with_host_memory(settings, chosen, preset)
    options = read_options(Path(settings.installation)) if settings.installation else None
    chosen = replace(chosen, api=asked_api(settings, options))
    python = Path(settings.ray_python if chosen.ray_address else settings.python)
    chosen = in_few_processes(chosen, settings.servers, usable_processors())
    image = read_record(Path(settings.image_record), VllmImage) if settings.container else None
    words = arguments.server_argv(python, chosen, preset=preset)
    if has_plugin_weights(Path(chosen.model), given_options(words)):
        place = image.container.image if image else str(python)
        require_plugin(image.packages if image else packages_of(python), place)
    nodes = nodes_start(settings, chosen, on_cpu=chosen.device == "cpu", options=options)
    if nodes is not None:
        chosen = _on_nodes(chosen, nodes)
        return Planned(python, [chosen], _words(chosen, python, preset, options), nodes)
    parts = placed_servers(
        chosen, settings.servers, gpus_for(chosen.device), os.environ, local_workers(given_options(words))
    )
    return Planned(python, parts, _words(chosen, python, preset, options), image=image)


def _with_host_memory(
    settings: LaunchSettings, chosen: arguments.ServerSettings, preset: Preset | None
) -> arguments.ServerSettings:
    """Return the settings with the KV cache that the host's free memory allows where none is given."""
    sequences = chosen.max_num_seqs or whole_number(preset.options if preset else {}, "max-num-seqs") or _SEQUENCES
    sizes = {"servers": settings.servers, "sequences": sequences, "longest": _longest(settings)}
    return with_host_memory(chosen, _model(settings), **sizes)


def _model(settings: LaunchSettings) -> ModelRecord | None:
    return read_record(Path(settings.model_record), ModelRecord) if settings.model_record else None


def _on_nodes(chosen: arguments.ServerSettings, nodes: NodeLaunch) -> arguments.ServerSettings:
    """Return the settings of a server whose head is reached from this machine and from the other nodes.

    The cores of the CPU backend's workers are not bound: each node may have other ones.
    """
    if chosen.host == arguments.LOOPBACK:
        chosen = replace(chosen, host=nodes.launcher.address(nodes.launcher.nodes[0]))
    return replace(chosen, cpu_binding="nobind") if chosen.cpu_binding == "auto" else chosen


def planned_record(servers: Planned) -> ServerRecord:
    """Return the record of the servers that would be started, without what only one that answers can tell."""
    image, argv, nodes = servers.image, servers.words, list[NodeRecord]()
    packages = image.packages if image else packages_of(servers.python)
    if servers.nodes is not None:
        launcher = servers.nodes.launcher
        nodes = [NodeRecord(name=name, launcher=launcher.name) for name in launcher.nodes]
        # The options of the head, as far as they are known before it starts: without its ports.
        argv = [*argv, *servers.nodes.layout.options(0, launcher.address(launcher.nodes[0]), ("{port}", "{port}"))]
    first, *members = [
        ServerRecord(
            endpoint="",
            api=part.api,
            model_name=part.name,
            max_model_len=0,
            version="",
            owned=True,
            argv=argv,
            nodes=nodes,
            env=arguments.server_env(part),
            container=server_container(image.container, part) if image else None,
            niceness=arguments.niceness(part),
            packages=packages,
        )
        for part in servers.parts
    ]
    return replace(first, members=members)


def _preset(settings: LaunchSettings, chosen: arguments.ServerSettings) -> Preset | None:
    model, gpu = _model(settings), (settings.gpu_name, settings.gpu_count)
    name = model.name if model else chosen.model
    preset = preset_named(settings.preset) if settings.preset else preset_for(chosen.device, name, *gpu)
    if preset is not None:
        words = option_words(arguments.preset_options(preset, chosen))
        say(f"options of the preset {preset.name}: {' '.join(words) or 'none, all are given'}")
    return preset


def asked_api(settings: LaunchSettings, options: Options | None) -> Api:
    """Return the API of a server; `options` are those of the vLLM that is started, None where they are not known.

    Tokens alone cost the HTTP process less, and its processors are the engine's. Raises UsageError where they are asked
    for of a vLLM that has no such endpoint.
    """
    known = options is not None and _TOKENS_ONLY in options
    if (media := media_of(settings)) is not None:
        api = MEDIA_APIS[media].api
        if settings.api != "auto":
            raise UsageError(
                f"--api={settings.api} cannot be used for {settings.benchmark}",
                cause=f"its samples carry {media}, which a server takes at {api.path} alone",
                remedy="leave --api out",
            )
        return api
    if settings.api == "auto":
        return Api.GENERATE if known else Api.COMPLETIONS
    if settings.api == "generate" and options is not None and not known:
        raise UsageError(
            "the installed vLLM does not support --api=generate",
            cause=f"it has no option {_TOKENS_ONLY}, which enables {Api.GENERATE.path}",
            remedy="leave --api out: /v1/completions is used then; or install a newer vLLM",
        )
    return Api(settings.api)


def media_of(settings: LaunchSettings) -> Media | None:
    """Return the medium of the benchmark's samples."""
    return benchmark_terms(settings.round, settings.benchmark).media if _is_known(settings) else None


def _is_known(settings: LaunchSettings) -> bool:
    return settings.benchmark in benchmark_names(round_terms(settings.round).name)


def _words(chosen: arguments.ServerSettings, python: Path, preset: Preset | None, options: Options | None) -> list[str]:
    """Return the command line as the installed vLLM takes it, and tell what was changed for that."""
    words = arguments.server_argv(python, chosen, preset=preset)
    program = words.index("serve") + 1
    done, notes = words[program:], ["the options of this vLLM are not known: they are not checked before it starts"]
    if options is not None:
        done, notes = fit_to_release(done, options)
    for note in notes:
        say(f"note: {note}")
    return [*words[:program], *done]


def _server_settings(settings: LaunchSettings) -> arguments.ServerSettings:
    """Return the settings of the server for its model, with the options that its benchmark requires."""
    model = _model(settings)
    if model is not None:
        if not Path(model.path).is_dir():
            raise ModelError(
                f"the model folder {model.path} does not exist any more",
                remedy="get it again: cm run script --tags=get,ml-model with the same variation and --renew",
            )
        check_unchanged(model)
    asked = arguments.fit_to_model(settings.server, model, _longest(settings))
    if not (name := asked.model):
        raise UsageError("no model to serve", remedy="give --vllm_model_name, a hub id or a folder")
    served_name = asked.name or (Path(name).name if Path(name).is_dir() else name)
    server_settings = arguments.with_extra_options(replace(asked, name=served_name))
    if model is not None and model.is_dummy and server_settings.model == model.path:
        server_settings = replace(server_settings, load_format="dummy")
    if settings.device not in ("", server_settings.device):
        raise UsageError(
            f"--device={settings.device}, but the vLLM that is installed computes on {server_settings.device}",
            remedy="leave --device out, or the --adr that chose this vLLM",
        )
    rules = benchmark_terms(settings.round, settings.benchmark) if _is_known(settings) else None
    return replace(server_settings, required=rules.server_options) if rules else server_settings


def _longest(settings: LaunchSettings) -> int:
    """Return the tokens of the longest prompt with its answer; 0 where no dataset or no limit is known."""
    records = (settings.dataset_record, settings.performance_dataset_record, settings.compliance_dataset_record)
    if not any(records) or not _is_known(settings):
        return 0
    longest = max(read_record(Path(name), DatasetRecord).max_input_tokens for name in records if name)
    rules = benchmark_terms(settings.round, settings.benchmark, Division.parse(settings.division))
    return longest + rules.max_tokens if rules.max_tokens else 0

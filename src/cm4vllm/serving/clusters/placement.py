"""Assignment of cores or GPUs to each server on one machine and to its workers, or of its workers to several nodes.

vLLM starts a process on each node, all with the same options but for the node's rank (vllm/engine/arg_utils.py of
0.32.0). Engines of data parallelism that fit into a node are distributed with --data-parallel-size-local; groups of
tensor and pipeline parallelism that cross nodes with --nnodes, which needs no Ray.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from cm4vllm.common.errors import UsageError
from cm4vllm.common.processors import cpu_quota
from cm4vllm.hardware.gpus.gpu import given_gpus, hidden_by
from cm4vllm.records.machine import GpuFacts
from cm4vllm.serving.options.arguments import ServerSettings

#: The processes of a server on the CPU backend and of its client that compute: HTTP server, engine, worker, client.
BUSY = 4


def in_few_processes(settings: ServerSettings, servers: int, cores: int) -> ServerSettings:
    """Return the settings of a server on the CPU backend with its worker in the engine's process, on few cores.

    vLLM's engine and worker wait for each other by spinning. Where they, the HTTP server and the client have no core
    each of the machine's `cores`, that takes from those that work. The worker's threads leave one core to the others,
    as those do that vLLM binds. What the user chose is left as it is, and so are several servers, whose workers
    are bound to cores of their own.
    """
    if settings.device != "cpu" or settings.workers > 1:
        return settings
    chosen = settings.distributed_executor_backend or settings.cpu_binding != "auto"
    if servers == 1 and not chosen and cores < BUSY:
        settings = replace(settings, distributed_executor_backend="uni")
    threads = max(1, cores // max(1, servers) - 1)
    return replace(settings, threads=threads) if settings.distributed_executor_backend == "uni" else settings


def placed_servers(
    settings: ServerSettings, servers: int, gpus: Sequence[GpuFacts], env: Mapping[str, str], workers: int | None = None
) -> list[ServerSettings]:
    """Return the settings of several equal servers, each with cores or GPUs of its own.

    `gpus` are those of this machine that the device is for, none where its driver does not list them; `env` says which
    are visible. `workers` is how many each server has here, None for those of its settings, 0 where that is not known.
    A port that is given is the first server's. Raises UsageError for what the backend does not have, and when there are
    too few cores or GPUs.
    """
    if servers < 1:
        raise UsageError(f"--replicas={servers} would start no server", remedy="give 1 or more")
    # Not a list: whether there are cores or GPUs for so many is found next.
    ports = (settings.port + number if settings.port else 0 for number in range(servers))
    if settings.device == "cpu":
        settings = _within_quota(settings, servers)
        bindings = zip(ports, _bindings(settings, servers), strict=True)
        return [replace(settings, port=port, cpu_binding=binding) for port, binding in bindings]
    workers = settings.workers if workers is None else workers
    if settings.ray_address or (servers == 1 and not (gpus and workers)):
        return [settings]
    places = zip(ports, gpu_groups(gpus, env, servers, workers or 1), strict=True)
    return [settings] if servers == 1 else [replace(settings, port=port, gpus=group) for port, group in places]


def require_cpu_backend(settings: ServerSettings) -> None:
    """Raise UsageError for what vLLM's CPU backend does not have."""
    if (settings.pp_size or 1) > 1:
        raise UsageError(
            "vLLM's CPU backend has no pipeline parallelism",
            cause="vLLM 0.32.0 starts with it, and its second stage dies at the first request: "
            "`assert self.intermediate_tensors is not None`",
            remedy="leave --pp_size out; --tp_size and --dp_size work",
        )
    if settings.ray_address:
        raise UsageError(
            "vLLM's CPU backend cannot be placed by Ray",
            cause="it ends with `current platform cpu does not support ray`",
            remedy="leave --ray_address out; on this machine --tp_size and --dp_size need no Ray",
        )


def _bindings(settings: ServerSettings, servers: int) -> list[str]:
    require_cpu_backend(settings)
    if servers * settings.workers > 1 and settings.cpu_binding == "auto":
        return core_bindings(own_cores(), servers, settings.workers)
    if servers > 1:
        raise UsageError(
            f"--cpu_binding={settings.cpu_binding} would give {servers} servers the same cores",
            remedy="leave it out: the cores are shared out evenly",
        )
    return [settings.cpu_binding]


def core_bindings(cores: Sequence[int], servers: int, workers: int) -> list[str]:
    """Split `cores` evenly; return for each server its VLLM_CPU_OMP_THREADS_BIND: a group of cores for each worker.

    vLLM's own `auto` gives each worker a NUMA node, and ends where there are fewer nodes than workers. Cores that
    cannot be shared evenly stay free. Raises UsageError when there is not one core for each worker.
    """
    each = len(cores) // (servers * workers)
    if each < 1:
        raise UsageError(
            f"{_in_words(servers, workers)} need {servers * workers} cores",
            cause=f"each has a core on the CPU backend, and this process may use {len(cores)}; on GPUs, a GPU",
            remedy="give fewer replicas or smaller sizes; --plan --machine=8xNAME plans a job for GPUs anywhere",
        )
    groups = [_range(cores[start : start + each]) for start in range(0, each * servers * workers, each)]
    return ["|".join(groups[first : first + workers]) for first in range(0, len(groups), workers)]


def gpu_groups(gpus: Sequence[GpuFacts], env: Mapping[str, str], servers: int, workers: int) -> list[str]:
    """Return for each server the words that choose its GPUs: the next `workers` of those that `env` leaves visible.

    Raises UsageError when there are too few, or when a server of several workers would have parts of MIG.
    """
    given, hidden = given_gpus(gpus, env), hidden_by(gpus, env)
    needed = servers * workers
    if len(given) < needed:
        there = f"{len(given)} visible of the {_built_in(gpus)}" if hidden else _built_in(gpus)
        raise UsageError(
            f"{_in_words(servers, workers)} need {needed} GPUs, and this machine has {there}",
            cause=f"each worker takes a GPU of its own{f'; {hidden} is set' if hidden else ''}",
            remedy="give smaller sizes or fewer replicas (--tp_size, --pp_size, --dp_size, --replicas)"
            + (", or make more of the GPUs visible; --device=cpu uses none" if hidden else ""),
        )
    if workers > 1 and any(each.used and each.used.part in each.used.gpu.mig_devices for each in given[:needed]):
        raise UsageError(
            f"{_in_words(servers, workers)} need {workers} GPUs each, and a program sees 1 part of MIG",
            cause="CUDA shows a program no other GPU beside a MIG part",
            remedy="give one worker to each server: leave --tp_size, --pp_size and --dp_size out",
        )
    words = [each.word for each in given]
    return [",".join(words[first : first + workers]) for first in range(0, needed, workers)]


def _built_in(gpus: Sequence[GpuFacts]) -> str:
    parts = sum(len(gpu.partitions) or len(gpu.mig_devices) for gpu in gpus)
    return f"{len(gpus)}" + (f" (in {parts} parts)" if parts else "")


def own_cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def _within_quota(settings: ServerSettings, servers: int) -> ServerSettings:
    """Return the settings with no more threads than the quota of the control groups gives processors.

    vLLM starts a thread for each core that it may use. Where they compute for longer than the quota, all of them wait
    for each other and for the next period. One processor is left to the HTTP server and the client.
    """
    quota = cpu_quota()
    if quota is None or quota.cpus >= len(own_cores()) or settings.threads or settings.cpu_binding != "auto":
        return settings
    return replace(settings, threads=max(1, (int(quota.cpus) - 1) // (servers * settings.workers)))


def _in_words(servers: int, workers: int) -> str:
    return f"{servers} servers of {workers} workers" if servers > 1 else f"{workers} workers"


def _range(cores: Sequence[int]) -> str:
    """Write cores as vLLM reads them: 0-3 for neighbours, commas otherwise."""
    first, last = cores[0], cores[-1]
    neighbours = last > first and list(cores) == list(range(first, last + 1))
    return f"{first}-{last}" if neighbours else ",".join(map(str, cores))


#: Options with an address or a port of this start: they do not make another server.
ADDRESS_OPTIONS = ("--master-addr", "--master-port", "--data-parallel-address", "--data-parallel-rpc-port")


@dataclass(frozen=True)
class NodeLayout:
    """The distribution of a server over `nodes`: it has `engines`, each of `group` workers."""

    nodes: int
    group: int
    engines: int

    @property
    def workers(self) -> int:
        """The number of workers of each node."""
        return self.group * self.engines // self.nodes

    @property
    def crosses(self) -> bool:
        """The workers of one engine are on several nodes."""
        return self.workers < self.group

    def options(self, rank: int, address: str, ports: tuple[int, int] | tuple[str, str]) -> list[str]:
        """Return the further words of the node of a rank; `address` is the head's, `ports` are two of its ports."""
        local = self.engines // self.nodes
        options: dict[str, object] = {
            "--data-parallel-size-local": local,
            **({"--data-parallel-start-rank": rank * local} if rank else {}),
            "--data-parallel-address": address,
        }
        if self.crosses:
            options = {"--nnodes": self.nodes, "--node-rank": rank, "--master-addr": address, "--master-port": ports[0]}
        if self.engines > 1 or not self.crosses:
            options["--data-parallel-rpc-port"] = ports[1]
        words = [str(word) for option in options.items() for word in option]
        return ["--headless", *words] if rank else words


def node_layout(
    nodes: int, *, tp_size: int, pp_size: int, dp_size: int, options: Collection[str] | None = None
) -> NodeLayout:
    """Return how the workers are distributed; `options` are those of the installed vLLM, None where not known.

    Raises UsageError for sizes that cannot be distributed evenly, and for a vLLM without the options that it needs.
    """
    layout = NodeLayout(nodes, tp_size * pp_size, dp_size)
    workers = layout.group * dp_size
    if workers % nodes or (dp_size % nodes and nodes % dp_size):
        raise UsageError(
            f"{workers} workers cannot be distributed over {nodes} nodes",
            cause=f"--tp_size x --pp_size x --dp_size is {tp_size} x {pp_size} x {dp_size}; each node has equally many "
            "workers, and either whole engines or a part of one",
            remedy=f"give sizes whose product is a multiple of {nodes}, or fewer --nodes",
        )
    needed = [word for word in layout.options(1, "", (0, 0)) if word.startswith("--")]
    if options is not None and (missing := [word for word in needed if word not in options]):
        raise UsageError(
            "the installed vLLM cannot serve from several nodes in this way",
            cause=f"it has no option {', '.join(missing)}",
            remedy="install a newer vLLM; vLLM 0.32.0 has them",
        )
    return layout

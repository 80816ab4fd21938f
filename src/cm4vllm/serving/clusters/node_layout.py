"""The part of each node in one server over several: vLLM's options for its start, and what it refuses.

vLLM starts a process on each node, all with the same options but for the node's rank (vllm/engine/arg_utils.py of
0.32.0). Engines of data parallelism that fit into a node are distributed with --data-parallel-size-local; groups of
tensor and pipeline parallelism that cross nodes with --nnodes, which needs no Ray.
"""

from collections.abc import Collection
from dataclasses import dataclass

from cm4vllm.common.errors import UsageError

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
        words = ["--headless"] if rank else []
        if self.crosses:
            words += ["--nnodes", str(self.nodes), "--node-rank", str(rank)]
            words += ["--master-addr", address, "--master-port", str(ports[0])]
            return [*words, "--data-parallel-rpc-port", str(ports[1])] if self.engines > 1 else words
        local = self.engines // self.nodes
        start = ["--data-parallel-start-rank", str(rank * local)] if rank else []
        words += ["--data-parallel-size-local", str(local), *start]
        return [*words, "--data-parallel-address", address, "--data-parallel-rpc-port", str(ports[1])]


def node_layout(
    nodes: int, *, tp_size: int, pp_size: int, dp_size: int, options: Collection[str] | None = None
) -> NodeLayout:
    """Return how the workers are distributed; `options` are those of the installed vLLM, None where not known.

    Raises UsageError for sizes that cannot be distributed evenly, and for a vLLM without the options that it needs.
    """
    layout = NodeLayout(nodes, tp_size * pp_size, dp_size)
    workers = layout.group * dp_size
    whole = (dp_size % nodes == 0) or (nodes % dp_size == 0)
    if workers % nodes or not whole:
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

"""The names of the machines that serve, asked of them over the network, as the network division wants them.

An OpenAI server has no name of its own, but it lists the names by which its model may be asked for (`/v1/models`;
vLLM's `--served-model-name MODEL NODE` gives it two): the last one beside the model's is the node's.
"""

from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.records.run import NETWORK_SUT
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.probing.server_probe import served_models
from cm4vllm.serving.probing.server_requests import sites_of


def network_name(server: ServerRecord) -> str:
    """Return the name of the system as the query dispatch library gives it, after each node was asked for its own.

    Raises ServerUnreachable, ServerUnsuitable.
    """
    return f"{NETWORK_SUT}: {', '.join(node_names(server))}"


def node_names(server: ServerRecord) -> list[str]:
    """Ask each node for its name. Raises ServerUnreachable; ServerUnsuitable where two have the same."""
    names: dict[str, str] = {}
    for site in sites_of(server):
        listed = [model.name for model in served_models(site) if not model.parent]
        name = [candidate for candidate in listed if candidate != server.model_name][-1:] or [server.model_name]
        if name[0] in names:
            raise ServerUnsuitable(
                f"two nodes have the same name {name[0]}",
                cause=f"{names[name[0]]} and {site.endpoint}; in the network division each node has one of its own",
                remedy=f"start each with a second name: --served-model-name {server.model_name} NODE",
            )
        names[name[0]] = site.endpoint
    return list(names)

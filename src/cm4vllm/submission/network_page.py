"""network.md: how LoadGen's machine and the nodes that serve are connected, and what they send each other."""

from __future__ import annotations

from collections.abc import Mapping

from cm4vllm.loadgen.records import RunRecord
from cm4vllm.serving.node_names import NETWORK_SUT

__all__ = ["NETWORK_PAGE", "NETWORK_TITLE", "network_page"]

NETWORK_PAGE = "documentation/network.md"
NETWORK_TITLE = "# The network between LoadGen and the systems"
_EDGE = "+" + "-" * 74 + "+"


def network_page(described: Mapping[str, str], sut_name: str, run: RunRecord) -> str:
    """Return one system's part of the page, from its description and the name that its nodes gave LoadGen."""
    names = sut_name.removeprefix(f"{NETWORK_SUT}: ").split(", ")
    nodes = [_box(f"node {name}", described, "sut") for name in names]
    diagram = [
        *_box("LoadGen and the query dispatch library", described, "loadgen"),
        "      |",
        f"      | {described['network_type']}, {described['network_rate']}, {described['network_media']}",
        f"      | {described['network_topology']}",
        f"      | connections: {described['number_connections']}; {described['network_protocol']}",
        *(line for box in nodes for line in ("      |", *box)),
    ]
    return "\n".join(
        [
            *([f"> **{run.notice}**", ""] if run.notice else []),
            "```text",
            *diagram,
            "```",
            "",
            "The lines and boxes are as the submitter states them in the system description; the nodes' names are "
            "those that they gave when LoadGen asked the query dispatch library for the system's name.",
            "",
            "### What is sent",
            "",
            f"For each sample of a query one HTTP/1.1 request, `POST {run.settings.server.api.path}`, goes to one of "
            "the nodes, in turn, on a connection that stays open. Its body is a JSON object: the prompt as a list of "
            "the dataset's token ids, the model's name, the limits of the answer's length, and how tokens are drawn. "
            "The answer is a JSON object, or a stream of them as server-sent events, with the token ids of the answer; "
            "LoadGen is given these ids as 32-bit numbers, unchanged. Nothing is batched, padded, cached or compressed "
            "by the query dispatch library. The name of a node is the last one that `GET /v1/models` lists beside the "
            "model's.",
        ]
    )


def _box(title: str, described: Mapping[str, str], side: str) -> list[str]:
    lines = (
        title,
        f"cards: {described[f'number_nic_{side}']} x {described[f'nic_{side}']}",
        f"software: {described[f'net_software_stack_{side}']}",
    )
    return [_EDGE, *(f"| {line:<72} |" for line in lines), _EDGE]

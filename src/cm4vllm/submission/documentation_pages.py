"""Pages of a tree: how the model was quantised, and how LoadGen's machine and the nodes that serve are connected."""

from __future__ import annotations

from collections.abc import Mapping

from cm4vllm.assets.records import ModelRecord, QuantizationRecord
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.serving.node_names import NETWORK_SUT
from cm4vllm.submission.measurements_json import without_folder

__all__ = ["CALIBRATION_TITLE", "NETWORK_PAGE", "NETWORK_TITLE", "calibration_page", "network_page"]

CALIBRATION_TITLE = "# Calibration and quantisation"
NETWORK_PAGE = "documentation/network.md"
NETWORK_TITLE = "# The network between LoadGen and the systems"
_EDGE = "+" + "-" * 74 + "+"


def calibration_page(model: ModelRecord, notice: str = "") -> str:
    """Return one model's part of the page: the quantisation made here, or the known facts of an earlier one."""
    lines = [f"> **{notice}**", ""] if notice else []
    made, source = model.quantization, without_folder(model.source, model.path)
    if made is not None:
        lines += _quantised(made)
    elif model.weight_data_types in ("fp32", "fp16", "bf16"):
        lines += [
            f"Nothing was quantised and nothing calibrated: the weights are served as they were received, in "
            f"{model.weight_data_types} ({source})."
        ]
    else:
        lines += [
            f"The weights came quantised, to {model.weight_data_types or 'a type that their files do not tell'} "
            f"({source}); how they were calibrated is for their publisher to say. Nothing further was "
            "quantised here."
        ]
    return "\n".join(lines) + "\n"


def _quantised(made: QuantizationRecord) -> list[str]:
    tools = ", ".join(f"{name} {version}" for name, version in made.tools.items())
    lines = [
        f"Made from {made.base_model} (sha256 of all its files {made.base_sha256}; starting weights "
        f"{made.starting_weights}) with {tools}.",
        "",
        "| what | how |",
        "|---|---|",
        f"| weights | {made.weights} |",
        f"| activations | {made.activations} |",
        f"| keys and values | {made.kv_cache} |",
        f"| formula | `{made.formula}` |",
    ]
    if made.layers:
        lines.append(f"| layers | {made.layers} linear layers: {', '.join(made.layer_kinds)} |")
        lines.append(f"| left as they are | {', '.join(made.ignored)}, embeddings, norms |")
    if made.calibration_samples:
        lines += [
            "",
            f"Calibrated on the first {made.calibration_samples} samples ({made.calibration_tokens} tokens, "
            f"none cut or padded) of {made.calibration_dataset}, sha256 {made.calibration_sha256}.",
        ]
    else:
        lines += [
            "",
            "No calibration samples: the scales of the weights come from the weights alone, those of the "
            "activations are computed at run time.",
        ]
    return lines


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

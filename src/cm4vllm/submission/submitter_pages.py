"""Pages of a submitter's folder: README.md, how the models were quantised, and how the machines are connected.

README.md has an introduction, the results, and how each model was made and served.
"""

from collections.abc import Mapping
from pathlib import Path

import cm4vllm
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.run import NETWORK_SUT, RunRecord
from cm4vllm.rules import TreeLayout
from cm4vllm.submission.run_files import without_folder
from cm4vllm.submission.tree_writer import TreeWriter

SUBMITTER_PAGE = "README.md"
RESULTS_HEADING = "Results in this submission"
CALIBRATION_TITLE = "# Calibration and quantisation"
NETWORK_PAGE = "documentation/network.md"
NETWORK_TITLE = "# The network between LoadGen and the systems"
_EDGE = "+" + "-" * 74 + "+"
_HUB = "https://huggingface.co"
_REFERENCES = (
    ("MLPerf Inference, rules and reference implementations", "https://github.com/mlcommons/inference"),
    ("vLLM", "https://docs.vllm.ai"),
    ("Collective Mind", "https://github.com/mlcommons/ck"),
)


def submitter_title(submitter: str, run: RunRecord, introduction: str = "") -> str:
    """Return the beginning of the page: its title, and the submitter's own introduction or a plain one."""
    plain = (
        f"Results of large language models, measured with the official LoadGen by cm4vllm {cm4vllm.__version__}, "
        "one command of Collective Mind (CM). Each folder of a result has a README with the command that makes "
        "it again."
    )
    return f"# {submitter}: MLPerf Inference {run.settings.round}\n\n{introduction.strip() or plain}\n"


def method(run: RunRecord, server_command: str, *, home: str) -> str:
    """Return how a model was made, served and measured; `home` is the path of the page on its program."""
    model, server = run.settings.model, run.settings.server
    lines = [
        f"Benchmark `{run.settings.benchmark}`, round {run.settings.round}"
        + (f"; the model measured is `{model.name}`, mapped to it." if model.name != run.settings.benchmark else "."),
        "",
        "### Server",
        "",
    ]
    if server_command:
        lines += [f"{server.named}, started with:", "", f"```bash\n{server_command}\n```", ""]
        if "${MODEL:?}" in server_command:
            lines += ["`$MODEL` is the folder of the model.", ""]
    else:
        lines += [f"{server.named}, started by its operator: its command is not stated.", ""]
    lines += [
        "### Quantisation",
        "",
        quantisation(model),
        "",
        "### References",
        "",
        *_references(model, run.settings.dataset),
        f"- What ran, and the command: [{home}]({home})",
    ]
    return "\n".join(lines)


def _references(model: ModelRecord, dataset: DatasetRecord) -> list[str]:
    hub, revision = model.recipe.get("hub", ""), model.recipe.get("revision", "")
    at = f", revision `{revision}`" if revision else ""
    link = f"[{hub}]({_HUB}/{hub}){at}" if hub else without_folder(model.source, model.path)
    return [
        f"- Model: {link}",
        f"- Dataset: {without_folder(dataset.source, dataset.path)}",
        *(f"- {name}: <{url}>" for name, url in _REFERENCES),
    ]


def capsule_name(system: str, scenarios: tuple[str, ...]) -> str:
    """Return the name of a campaign's capsule in the folder of its model's program."""
    return f"rerun-{system}-{'-'.join(scenarios)}.yaml"


def capsules(folder: Path, system: str) -> dict[Path, set[str]]:
    """Return the capsules of a system in the folder of a model's program, each with its scenarios."""
    start = f"rerun-{system}-"
    return {
        path: set(path.stem.removeprefix(start).split("-"))
        for path in sorted(folder.glob("rerun-*.yaml"))
        if path.name.startswith(start)
    }


def result_folders(home: Path) -> list[tuple[str, str, str]]:
    """Return system, model and scenario of each result below a submitter's folder."""
    paths = sorted(path for path in (home / "results").glob("*/*/*") if (path / "performance").is_dir())
    return [(path.parts[-3], path.parts[-2], path.parts[-1]) for path in paths]


def _report(home: Path, system: str) -> str:
    """Return a system's name, linked to its report where the tree has one."""
    page = f"results/{system}/summary.html"
    return f"[{system}]({page})" if (home / page).is_file() else system


def write_overview(writer: TreeWriter, home: Path, layout: TreeLayout) -> None:
    """Write the table of results into the submitter's page, as the tree has them."""
    rows = [
        f"| {_report(home, system)} | {model} | {scenario} | [README]("
        + f"{layout.settings.format(system=system, model=model, scenario=scenario)}/README.md) |"
        for system, model, scenario in result_folders(home)
    ]
    table = "\n".join(["| system | model | scenario | how it was measured |", "|---|---|---|---|", *rows])
    writer.section(home / SUBMITTER_PAGE, f"# {home.name}", RESULTS_HEADING, table, renew=True)


def quantisation(model: ModelRecord) -> str:
    """Return how a model was quantised: the quantisation made here, or the known facts of an earlier one."""
    made, source = model.quantization, without_folder(model.source, model.path)
    if made is None and model.weight_data_types in ("fp32", "fp16", "bf16"):
        return (
            f"Nothing was quantised and nothing calibrated: the weights are served as they were received, in "
            f"{model.weight_data_types} ({source})."
        )
    if made is None:
        return (
            f"The weights came quantised, to {model.weight_data_types or 'a type that their files do not tell'} "
            f"({source}); how they were calibrated is for their publisher to say. Nothing further was "
            "quantised here."
        )
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
    calibrated = (
        f"Calibrated on the first {made.calibration_samples} samples ({made.calibration_tokens} tokens, none cut or "
        f"padded) of {made.calibration_dataset}, sha256 {made.calibration_sha256}."
        if made.calibration_samples
        else "No calibration samples: the scales of the weights come from the weights alone, those of the "
        "activations are computed at run time."
    )
    return "\n".join([*lines, "", calibrated])


def with_notice(text: str, notice: str, line: str = "> **{}**\n\n") -> str:
    """Put a rehearsal's notice before a text that does not carry it yet, as a line of a page or of another file."""
    return text if notice in text else line.format(notice) + text


def network_page(described: Mapping[str, str], sut_name: str, run: RunRecord) -> str:
    """Return one system's part of the page, from its description and the name that its nodes gave LoadGen."""
    names = sut_name.removeprefix(f"{NETWORK_SUT}: ").split(", ")
    diagram = [
        *_box("LoadGen and the query dispatch library", described, "loadgen"),
        "      |",
        f"      | {described['network_type']}, {described['network_rate']}, {described['network_media']}",
        f"      | {described['network_topology']}",
        f"      | connections: {described['number_connections']}; {described['network_protocol']}",
        *(line for name in names for line in ("      |", *_box(f"node {name}", described, "sut"))),
    ]
    return "\n".join(
        [
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

"""README.md of a submitter's folder: an introduction, the results, and how each model was made and served."""

from __future__ import annotations

from pathlib import Path

import cm4vllm
from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.rules import TreeLayout
from cm4vllm.submission.measurements_json import without_folder
from cm4vllm.submission.tree_writer import TreeWriter

__all__ = [
    "RESULTS_HEADING",
    "SUBMITTER_PAGE",
    "capsule_name",
    "capsules",
    "method",
    "result_folders",
    "submitter_title",
    "write_overview",
]

SUBMITTER_PAGE = "README.md"
RESULTS_HEADING = "Results in this submission"
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
    lines = [f"> **{run.notice}**", ""] if run.notice else []
    mapped = model.name != run.settings.benchmark
    lines += [
        f"Benchmark `{run.settings.benchmark}`, round {run.settings.round}"
        + (f"; the model measured is `{model.name}`, mapped to it." if mapped else "."),
        "",
    ]
    lines += ["### Server", ""]
    if server_command:
        lines += [f"{server.named}, started with:", "", f"```bash\n{server_command}\n```", ""]
        if "${MODEL:?}" in server_command:
            lines += ["`$MODEL` is the folder of the model.", ""]
    else:
        lines += [f"{server.named}, started by its operator: its command is not stated.", ""]
    lines += [
        "### Quantisation",
        "",
        *_quantisation(model),
        "",
        "### References",
        "",
        *_references(model, run.settings.dataset),
        f"- What ran, and the command: [{home}]({home})",
    ]
    return "\n".join(lines)


def _quantisation(model: ModelRecord) -> list[str]:
    """Return which layers are in which type."""
    made = model.quantization
    if made is None:
        stated = f"Weights in {model.weight_data_types or 'a type that the checkpoint does not state'}"
        kept = model.weight_data_types in ("fp32", "fp16", "bf16")
        return [
            f"{stated}, as received: no layer was quantised."
            if kept
            else f"{stated}, as received; which layers are quantised is stated by their publisher."
        ]
    lines = [f"- Weights: {made.weights}", f"- Activations: {made.activations}", f"- Keys and values: {made.kv_cache}"]
    if made.layers:
        lines += [
            f"- Quantised layers: {made.layers} linear layers ({', '.join(made.layer_kinds)})",
            f"- Not quantised: {', '.join(made.ignored)}, embeddings, norms",
        ]
    return [
        *lines,
        f"- Formula: `{made.formula}`",
        f"- Made from {made.base_model} with " + ", ".join(f"{name} {version}" for name, version in made.tools.items()),
    ]


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

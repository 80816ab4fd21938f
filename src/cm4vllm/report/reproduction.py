"""The steps to repeat the runs: the commands that install the program and start the server, and their versions."""

from collections.abc import Mapping

from cm4vllm.common.secrets.command_lines import published_command, published_words, shell_line
from cm4vllm.common.secrets.redaction import variable
from cm4vllm.records.published_server import container_words, hosts_of, server_words
from cm4vllm.records.run import RunRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.software import SoftwareRecord
from cm4vllm.results.campaign_results import Report
from cm4vllm.rules import tree_layout
from cm4vllm.submission.published_program import PROGRAM_FOLDER

#: The keys of a record's recipe that only cm4vllm uses: sizes and times of files, by which a change of them is seen.
_INTERNAL = frozenset({"files"})
_LABELS = {
    "hub": "Hub id",
    "revision": "Revision",
    "catalogue": "Name in the catalogue",
    "mlcommons": "MLCommons address",
    "seed": "Seed",
    "split": "Part of the data",
    "task": "Task",
    "training_pairs": "Training pairs",
    "scheme": "Quantisation scheme",
}


def published_recipe(recipe: Mapping[str, str]) -> dict[str, str]:
    """Return the origin of a model or dataset in a reader's words, without the keys that only this program uses."""
    return {
        _LABELS.get(key, key.replace("_", " ").capitalize()): value
        for key, value in recipe.items()
        if key not in _INTERNAL
    }


def setup_lines(report: Report, software: SoftwareRecord | None) -> list[str]:
    """Return the shell lines that install CM and make the program known to it, as it was for these runs."""
    cm = software.cm if software else report.campaign.cm_version if report.campaign else ""
    lines = [f"pip install cmind=={cm}"] if cm else []
    commit = software.commit if software else report.campaign.commit if report.campaign else ""
    if software and software.url and commit and not commit.endswith("+changes"):
        return [*lines, f"cm pull repo --url={software.url} --checkout={commit}"]
    if report.campaign is None:
        return lines
    folder = "/".join(
        (
            report.campaign.division,
            report.submitter,
            tree_layout(report.run.settings.terms.layout).program,
            PROGRAM_FOLDER,
        )
    )
    return [*lines, f'cm add repo --path="${{SUBMISSION:?}}/{folder}"']


def platform_rows(software: SoftwareRecord | None) -> dict[str, str]:
    """Return the software of the machine that ran LoadGen, below the harness."""
    if software is None:
        return {}
    rows = {"OS version": software.platform, "Python version": software.python, "MLCommons CM version": software.cm}
    if software.server_python:
        rows["Python version of the server"] = software.server_python
    return rows


def versions(report: Report, run: RunRecord) -> dict[str, dict[str, str]]:
    """Return versions by where they worked: the harness (cm4vllm, CM, LoadGen, its packages) and the server.

    A server that names neither itself nor its packages is left out.
    """
    harness: dict[str, str] = {}
    if report.campaign:
        harness["cm4vllm"] = report.campaign.cm4vllm_version
        if report.campaign.commit:
            harness["cm4vllm commit"] = report.campaign.commit
        harness["Collective Mind (cmind)"] = report.campaign.cm_version
    harness["MLPerf LoadGen"] = run.loadgen_version
    harness |= dict(sorted(run.versions.items()))
    software, version = run.settings.server.software, run.settings.server.version
    server = {software: version} if software and version else {}
    server |= {name: version for name, version in sorted(run.settings.server.packages.items()) if name != "vllm"}
    if (container := run.settings.server.container) is not None:
        server |= {
            "container image": f"{container.image} ({container.digest})",
            container.engine: container.engine_version,
        }
    return {where: known for where, known in (("Harness", harness), ("Server", server)) if known}


def server_command(server: ServerRecord, model_path: str) -> str:
    """Return the server's command, one flag a line; empty for a server that was running already."""
    env, words = server_words(server, model_path)
    return shell_line(words, env)


def container_command(server: ServerRecord, model_path: str) -> str:
    """Return the container engine's command that ran the server, with the same variables."""
    if server.container is None:
        return ""
    words = container_words(server.container, server.argv)
    if model_path:  # in a mount it is not a word of its own
        words = [word.replace(model_path, variable("MODEL")) for word in words]
    return shell_line(published_words(words, {model_path: "MODEL"}, hosts_of(server)))


def typed_command(command: str, server: ServerRecord) -> str:
    """Return the typed command, one flag a line, with variables for paths, servers and secrets."""
    return published_command(command, hosts=hosts_of(server))

"""The versions that took part in a run, each once."""

from __future__ import annotations

from cm4vllm.loadgen.records import RunRecord
from cm4vllm.report.report_contents import Report

__all__ = ["versions"]


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

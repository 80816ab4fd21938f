"""The next step that the last lines of a job recommend to the reader, in one line."""

from __future__ import annotations

import shlex

from cm4vllm.report.report_contents import Report

__all__ = ["next_step"]


def next_step(report: Report) -> str:
    """Return the next step from this job to a submission; empty where the error that follows names it."""
    settings = report.run.settings
    if settings.server.simulated is not None:
        return "on the machine of the profile, the same command without --rehearse"
    if settings.model.is_stand_in or settings.model.is_dummy:
        return (
            "name a model (--vllm_model_name=ORGANISATION/MODEL) or a server (--api_server=URL); --plan shows the job"
        )
    if report.rehearsal:
        return "the same command with --execution_mode=valid measures a result; --plan shows how long it takes"
    if report.invalid_results or report.tree is None:
        return ""
    tree, checker = shlex.quote(str(report.tree.parent.parent)), report.checker
    if checker is None or checker.unavailable:
        return f"cm run script --tags=check,mlperf,results --input={tree}"
    return f"cm run script --tags=pack,mlperf,submission --submission_dir={tree}" if checker.passed else ""

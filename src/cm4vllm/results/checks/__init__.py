"""The checks of a submission, each a function with a stable code: all of them are made, none stops at the first.

A new check is one function under @check in one of the modules below, with the subjects that it checks (subjects.py).
A new module is added to _MODULES.
"""

from cm4vllm.results.checks import (
    accuracy,
    accuracy_runs,
    answers,
    campaign,
    compliance_figures,
    compliance_tests,
    coverage,
    power,
    records,
    served_weights,
    submitted,
    tree_files,
    weights,
)
from cm4vllm.results.checks.check import Check, CheckBase, Fault, Stage, check
from cm4vllm.results.checks.of_logs import (
    first_tokens,
    log_figures,
    log_settings,
    log_times,
    logs,
    performance_runs,
    shared_logs,
    summary_logs,
)
from cm4vllm.results.checks.of_systems import collected_files, networks, one_system, system_files, system_names
from cm4vllm.results.checks.of_texts import private_text, readme_figures, readmes
from cm4vllm.results.findings import Finding
from cm4vllm.results.model import Submission

__all__ = ["CHECKS", "Check", "CheckBase", "Fault", "Stage", "check", "findings"]

_MODULES = (
    coverage,
    records,
    campaign,
    logs,
    accuracy,
    submitted,
    performance_runs,
    log_settings,
    log_figures,
    log_times,
    one_system,
    summary_logs,
    shared_logs,
    first_tokens,
    accuracy_runs,
    answers,
    system_files,
    system_names,
    collected_files,
    networks,
    weights,
    served_weights,
    readme_figures,
    readmes,
    tree_files,
    compliance_tests,
    compliance_figures,
    power,
    private_text,
)

#: All checks by code, in the order in which they are made.
CHECKS: dict[str, Check] = {
    value.code: value for module in _MODULES for value in vars(module).values() if isinstance(value, Check)
}


def findings(submission: Submission, stage: Stage = Stage.ALWAYS) -> list[Finding]:
    """Return all that is wrong with a submission: what could not be read, then what each check finds.

    These are the checks that always apply, and those of `stage`.
    """
    all_findings = list(submission.problems)
    for known in CHECKS.values():
        if known.stage in (Stage.ALWAYS, stage):
            # Results that share a file have its findings together.
            all_findings += dict.fromkeys(known.findings(submission))
    return all_findings

"""Checks of a job against its division's rules, before anything is downloaded, installed or started.

Each rule that can be known by then has a function here that says what is against it. A valid run is refused with all of
them; a rehearsal goes on, names them, and makes no submission tree.
"""

from dataclasses import replace
from pathlib import Path

from cm4vllm.campaign.job_checks import of_division
from cm4vllm.campaign.job_checks.of_division.job_rules import JobFacts
from cm4vllm.campaign.settings import Job
from cm4vllm.common.checking.checks import checks_in
from cm4vllm.common.checking.findings import Finding, Rule
from cm4vllm.common.errors import UsageError
from cm4vllm.rules import division_rules

#: Rules that say what kind of system is measured, which a rehearsal needs as well as a result.
_OF_THE_SYSTEM = frozenset({"DATACENTER", "SEPARATE"})


def division_findings(job: Job, root: Path = Path("/")) -> tuple[Finding, ...]:
    """Return all that is known to be against the rules of a job's division; nothing in a division without rules.

    The job itself keeps the rules without a check: it asks for the lengths and runs the tests that they state, asks the
    nodes for their names before each run, and draws the diagram of the machines. `root` holds the /proc and /sys of
    this machine.
    """
    facts, checks = JobFacts(job, root), checks_in(of_division.__name__)
    return tuple(
        replace(checks[code].finding(fault), rule=Rule(rule.text, rule.source))
        for code, rule in division_rules(job.division, job.category).items()
        if code in checks
        for fault in checks[code].function(facts)
    )


def require_division_rules(job: Job, findings: tuple[Finding, ...]) -> None:
    """Raise UsageError for a result that the rules of its division forbid. A rehearsal is not a result.

    What a rehearsal cannot stand in for is refused in one, too: a system that is none of the division's kind.
    """
    if job.rehearsal:
        findings = tuple(finding for finding in findings if finding.code in _OF_THE_SYSTEM)
    if findings:
        never = ", ".join(dict.fromkeys(finding.code for finding in findings if not finding.remedy))
        remedies = dict.fromkeys(
            [
                *([f"{never}: cannot be met; rehearse the division with --execution_mode=test"] if never else []),
                *(finding.remedy for finding in findings if finding.remedy),
                "or give --division=open",
            ]
        )
        raise UsageError(
            f"this job cannot give a {'rehearsal' if job.rehearsal else 'result'} of the {job.division} division",
            cause="\n".join(_words(finding) for finding in findings),
            remedy="\n".join(remedies),
        )


def finding_notes(job: Job, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Return the note of a rehearsal on the rules that it does not keep."""
    if not (findings and job.rehearsal):
        return ()
    return (
        *(f"{job.division} division, a valid run would be refused: {_words(finding)}" for finding in findings),
        f"no submission tree: one of the {job.division} division is made of jobs that keep these rules",
    )


def _words(finding: Finding) -> str:
    return f"{finding.what}\n  rule {finding.code}: {finding.rule.text} ({finding.rule.source})"

"""The checks of submissions, of the trees that hold them, and of curves: all are made, none stops at the first.

A new check is one function under @check (common/checking/checks.py) in any module of this package, with the subjects
that it checks (subjects.py): it is found there.
"""

from typing import Any

from cm4vllm.common.checking.checks import Check, Stage, checks_in
from cm4vllm.common.checking.findings import Finding
from cm4vllm.results.model import Submission

#: All checks by code, in the order in which they are made.
CHECKS: dict[str, Check] = checks_in(__name__)


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


def findings_at(stage: Stage, checked: Any) -> list[Finding]:
    """Return what the checks of one stage alone find: on a curve, or on the logs of all submissions of a tree."""
    return [finding for known in CHECKS.values() if known.stage is stage for finding in known.findings(checked)]

"""checker.json: the verdicts of the official checkers on a submission tree."""

from cm4vllm.common.records import Record

#: The name of the record's file beside the submission tree.
CHECKER_FILE = "checker.json"


class CheckerRun(Record, frozen=True, kw_only=True):
    """One official checker's verdict: `name` and `argv` as run, its exit status, results counted, its findings.

    `own_fault` is the last line of a fault of its own that the rules know (Checker): then it gave no verdict.
    """

    name: str
    argv: list[str]
    status: int
    results: int
    errors: list[str]
    warnings: list[str]
    crashed: bool
    passed: bool
    own_fault: str = ""


class CheckerRecord(Record, frozen=True, kw_only=True):
    """All checkers that accept the round, at one commit. `unavailable` is the reason when none could be run.

    `tree_sha256` covers names and contents of all files of the tree that they were run on. `unscored` are the folders
    of accuracy runs there of which a metric is not scored.
    """

    commit: str
    round: str
    passed: bool
    unscored: list[str] = []
    runs: list[CheckerRun] = []
    unavailable: str = ""
    tree_sha256: str = ""

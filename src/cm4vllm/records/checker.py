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


#: The verdict on the bundle of a job, in its results folder.
VERDICT_FILE = "verdict.json"


class CurveVerdict(Record, frozen=True, kw_only=True):
    """Counts of the errors and warnings in a curve of MLPerf Endpoints, by the code or id of the rule.

    `official_version` is empty where the official checker was not run.

    Errors of `allowed` rules are expected, as those of a stand-in that is no benchmark model.
    """

    checked_at: str
    errors: dict[str, int] = {}
    warnings: dict[str, int] = {}
    official_version: str = ""
    official_errors: dict[str, int] = {}
    official_warnings: dict[str, int] = {}
    allowed: tuple[str, ...] = ()

    @property
    def own_words(self) -> str:
        """The findings of our checks, in words."""
        return _words(self.errors, self.warnings, self.allowed)

    @property
    def official_words(self) -> str:
        """The findings of the official checker, in words."""
        if not self.official_version:
            return "not run"
        return _words(self.official_errors, self.official_warnings, self.allowed)


def _words(errors: dict[str, int], warnings: dict[str, int], allowed: tuple[str, ...]) -> str:
    failed = {name: count for name, count in errors.items() if name not in allowed}
    expected = [name for name in errors if name in allowed]
    verdict = f"failed: {', '.join(failed)}" if failed else "passed"
    besides = f", but for {', '.join(expected)}, which a rehearsal of another model cannot pass" if expected else ""
    count = sum(warnings.values())
    return f"{verdict}{besides}; {count:,} warning{'s' * (count != 1)}"

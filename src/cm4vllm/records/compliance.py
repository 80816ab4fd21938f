"""compliance.json: what the verification of one compliance test found."""

from cm4vllm.common.records import Record
from cm4vllm.rules import Scenario

#: The name of the record's file in the folder of a compliance test's run.
COMPLIANCE_FILE = "compliance.json"


class CheckResult(Record, frozen=True, kw_only=True):
    """One check of a test. `passed` is None where the scenario has nothing to check; `found` says in words what was.

    `compares_speed` marks a check of how fast the run was.
    """

    name: str
    passed: bool | None
    found: str
    compares_speed: bool = False


class ComplianceRecord(Record, frozen=True, kw_only=True):
    """The verdict on the run of one test: it is passed when none of the `checks` failed.

    `file` is the text file beside it that the official checker reads, `more_files` are further ones, and
    `accuracy_files` those that belong beside the logged answers. `answers` counts those in LoadGen's log, whose
    digest is `log_sha256`. `notice` is that of a rehearsal. `shows_logs` says that LoadGen's logs of the run belong
    into a submission too, beside the answers. `files` has the SHA-256 of each of these text files.
    """

    notice: str
    test: str
    round: str
    benchmark: str
    scenario: Scenario
    passed: bool
    checks: tuple[CheckResult, ...]
    answers: int
    file: str
    log_sha256: str
    source: str
    shows_logs: bool = False
    more_files: tuple[str, ...] = ()
    accuracy_files: tuple[str, ...] = ()
    files: dict[str, str] = {}

    @property
    def failures(self) -> tuple[str, ...]:
        """The name of each failed check and what the check observed."""
        return tuple(f"{check.name}: {check.found}" for check in self.checks if check.passed is False)

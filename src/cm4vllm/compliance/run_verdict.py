"""The logged run that the module of a compliance test gets, and the verdict that it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cm4vllm.common.errors import RunFailed
from cm4vllm.records.compliance import CheckResult
from cm4vllm.records.logs.answers import LoggedAnswer
from cm4vllm.records.run import RunSettings
from cm4vllm.rules import Audit

_PASS, _FAIL = "TEST PASS", "TEST FAIL"


@dataclass(frozen=True)
class LoggedRun:
    """The run of a compliance test: the answers that LoadGen logged, the settings of the run, and those of the test.

    `folder` is that of the run, beside those of the result's runs. `speech_packages` is the folder of whisper's
    normaliser, None where it is not given.
    """

    answers: Sequence[LoggedAnswer]
    settings: RunSettings
    test: Audit
    folder: Path = Path()
    speech_packages: Path | None = None

    def require_answers(self, least: int) -> None:
        """Raise RunFailed where LoadGen logged fewer answers."""
        if len(self.answers) < least:
            raise RunFailed(
                "LoadGen logged too few answers of the compliance test",
                cause=f"{len(self.answers)} answers, {least} are required",
                remedy="run the test again: --rerun",
            )


@dataclass(frozen=True)
class Verdict:
    """The checks of a test, with the lines of the official text before them and the line after them.

    `last` has the last line for a passed test and for a failed one. A test of several files gives their `texts` itself;
    `accuracy_texts` are those of further files beside the logged answers.
    """

    checks: tuple[CheckResult, ...]
    facts: tuple[str, ...] = ()
    last: tuple[str, str] = (_PASS, _FAIL)
    texts: Mapping[str, str] = field(default_factory=dict)
    accuracy_texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return True if no check failed."""
        return all(check.passed is not False for check in self.checks)

    @property
    def text(self) -> str:
        """The text of the file that the official checkers read."""
        checks = [f"{check.name}: {'Skipped' if check.passed is None else check.passed}" for check in self.checks]
        return "\n".join([*self.facts, *checks, self.last[0 if self.passed else 1]]) + "\n"

"""The verification of a compliance test's run: its log by the module of the test, as text and as compliance.json.

A test is one module of this package, named after it, with a function `verify`, and one file of the rules, which has its
settings and what its folder in a submission holds.
"""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from cm4vllm import REHEARSAL_NOTICE, compliance
from cm4vllm.common import input_types
from cm4vllm.common.errors import InvalidResult, RunFailed, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.folders.owned_folders import write_result_file
from cm4vllm.common.progress import say, warn
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import Settings
from cm4vllm.compliance.audit import require_applied
from cm4vllm.compliance.run_verdict import LoggedRun, Verdict
from cm4vllm.records.compliance import COMPLIANCE_FILE, ComplianceRecord
from cm4vllm.records.logs.answers import read_answers
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.records.run import RUN_FILE, RunRecord, require_run
from cm4vllm.rules import VerifiedFile, audit, compliance_rules, compliance_test_names

#: The key of the folder of the run.
FOLDER = "CM_MLPERF_COMPLIANCE_RESULTS_DIR"


@cache
def verified_tests() -> tuple[str, ...]:
    """Return the tests whose runs can be verified: those that have a module."""
    modules = {module.name for module in pkgutil.iter_modules(compliance.__path__)}
    return tuple(name for name in compliance_test_names() if name.lower() in modules)


def verify_run(folder: Path, *, speech_packages: str = "") -> ComplianceRecord:
    """Verify the run of a compliance test in `folder`; write compliance.json and the official texts there.

    Raises RunFailed where the folder holds no such run, its log was changed, or LoadGen did not apply audit.config, and
    what the module of the test raises.
    """
    run = _verifiable_record(folder)
    settings, log = run.settings, folder / ACCURACY_LOG
    test, rules = audit(settings.compliance_test, settings.benchmark), compliance_rules(settings.compliance_test)
    require_applied(read_detail_log(folder / DETAIL_LOG), test)
    answers = read_answers(log)
    packages = Path(speech_packages) if speech_packages else None
    verdict = _verifier(test.name)(LoggedRun(answers, settings, test, folder, packages))
    names = [file.name for file in rules.files]
    texts = dict(verdict.texts) or {names[0]: verdict.text}
    _require_same(rules.files, texts, verdict)
    written = {**texts, **verdict.accuracy_texts}
    for name, text in written.items():
        write_result_file(folder, name, text)
    record = ComplianceRecord(
        notice=run.notice,
        test=test.name,
        round=settings.round,
        benchmark=settings.benchmark,
        scenario=settings.scenario,
        passed=verdict.passed,
        checks=verdict.checks,
        answers=len(answers),
        file=names[0],
        log_sha256=run.files[ACCURACY_LOG],
        source=test.source,
        shows_logs=bool(rules.run_logs),
        more_files=tuple(names[1:]),
        accuracy_files=tuple(verdict.accuracy_texts),
        files={name: sha256_of(folder / name) for name in written},
    )
    write_record(folder / COMPLIANCE_FILE, record)
    say(f"{settings.title}: {'passed' if record.passed else 'FAILED: ' + '; '.join(record.failures)}")
    return record


def _verifiable_record(folder: Path) -> RunRecord:
    """Return the record of the run in `folder`. Raises UsageError, or RunFailed where its log was changed."""
    run, log = read_record(folder / RUN_FILE, RunRecord), folder / ACCURACY_LOG
    if run.settings.compliance_test not in verified_tests():
        raise UsageError(
            f"{folder} holds no run of a compliance test that can be verified",
            cause=f"known: {', '.join(verified_tests())}",
            remedy="give the folder of a run that was made with --compliance_test of app,mlperf,inference,vllm",
        )
    if not log.is_file() or sha256_of(log) != run.files[ACCURACY_LOG]:
        raise RunFailed(
            f"{log} is not the log that the run wrote",
            cause="its SHA-256 differs from that in run.json",
            remedy="run the test again: --rerun",
        )
    return run


class VerificationInputs(Settings, frozen=True, kw_only=True):
    """The folder of the run that is verified; `results_dir` is that of a job."""

    test_dir: input_types.VerifiedDir = ""
    results_dir: input_types.ResultsDir = ""
    speech_packages: input_types.SpeechPackages = ""

    @property
    def folder(self) -> Path:
        """The folder of the run. Raises UsageError where it holds no run."""
        folder = Path(self.test_dir).absolute()
        require_run(
            folder,
            "--tags=process,mlperf,compliance --test_dir=FOLDER, that of a run with --compliance_test of "
            "app,mlperf,inference,vllm",
        )
        return folder

    def require_run_of_user(self) -> None:
        """Raise UsageError where the folder that the user gave holds no run; a job makes the runs that it verifies."""
        if self.test_dir and not self.results_dir:
            _ = self.folder


def require_passed(record: ComplianceRecord) -> None:
    """Raise InvalidResult for a test that failed.

    In a rehearsal a difference in speed is a warning: its runs are too short to compare speeds.
    """
    failed = [check for check in record.checks if check.passed is False]
    slow = all(check.compares_speed for check in failed)
    if failed and slow and REHEARSAL_NOTICE in record.notice:
        warn(f"{record.scenario} {record.test}: a rehearsal's runs are too short to compare their speeds")
    elif not record.passed:
        raise InvalidResult(
            f"the compliance test {record.test} failed in {record.scenario}",
            cause="\n".join(record.failures),
            remedy="end other programs on the machines of client and server, and run both again: --rerun"
            if slow
            else "the server's answers or the model's files do not satisfy the test",
        )


def _verifier(test: str) -> Callable[[LoggedRun], Verdict]:
    verify: Callable[[LoggedRun], Verdict] = import_module(f"{compliance.__name__}.{test.lower()}").verify
    return verify


def _require_same(files: Sequence[VerifiedFile], texts: Mapping[str, str], verdict: Verdict) -> None:
    """Raise RunFailed where the official checkers would read another verdict from the files than `verdict`.

    A file that scores may replace need not show that the test is passed.
    """
    shown = [file.shows_passed(texts[file.name]) or (file.scores and bool(verdict.accuracy_texts)) for file in files]
    agrees = all(shown) if verdict.passed else not all(shown) or bool(verdict.accuracy_texts)
    if not agrees:
        lines = ", ".join(repr(line) for file in files for line in file.lines)
        raise RunFailed(
            f"the text of {', '.join(file.name for file in files)} contradicts the verdict of the test",
            cause=f"the official checkers look for {lines}; the text is:\n{''.join(texts.values())}",
            remedy="the module of the test under src/cm4vllm/compliance/ has to write the lines that the rules name",
        )

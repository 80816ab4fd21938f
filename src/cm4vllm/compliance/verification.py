"""The verification of a compliance test's run: its log by the module of the test, as text and as compliance.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.accuracy.families import Samples
from cm4vllm.accuracy.scoring import require_tokenizer, rows_of_samples, scorer_of
from cm4vllm.accuracy.sentences import NO_SENTENCES
from cm4vllm.accuracy.text import Detokenizer
from cm4vllm.assets.config_json import json_object
from cm4vllm.common.errors import InvalidResult, ModelError, RunFailed, UsageError
from cm4vllm.common.files import sha256_of, write_text
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record, write_record
from cm4vllm.compliance import test06, test07, test09
from cm4vllm.compliance.answers import LoggedAnswer, read_answers
from cm4vllm.compliance.audit import require_applied
from cm4vllm.compliance.records import COMPLIANCE_FILE, CheckResult, ComplianceRecord
from cm4vllm.loadgen.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.loadgen.logs import ACCURACY_LOG
from cm4vllm.loadgen.records import RUN_FILE, RunRecord, RunSettings
from cm4vllm.rules import Audit, audit

__all__ = ["VERIFIED_TESTS", "end_tokens", "require_passed", "verify_run"]


@dataclass(frozen=True)
class _Verified:
    """The checks of a test, and the text of the file that the official checker reads."""

    file: str
    checks: tuple[CheckResult, ...]
    text: str
    shows_logs: bool = False


def verify_run(folder: Path) -> ComplianceRecord:
    """Verify the run of a compliance test in `folder`; write compliance.json and the official text there.

    Raises RunFailed where the folder holds no such run, its log was changed, or LoadGen did not apply audit.config;
    ModelError where the end tokens of the model are not known.
    """
    run = read_record(folder / RUN_FILE, RunRecord)
    settings, log = run.settings, folder / ACCURACY_LOG
    if settings.compliance_test not in _TESTS:
        raise UsageError(
            f"{folder} holds no run of a compliance test that can be verified", cause=f"known: {', '.join(_TESTS)}"
        )
    digest = sha256_of(log) if log.is_file() else ""
    if digest != run.files[ACCURACY_LOG]:
        raise RunFailed(
            f"{log} is not the log that the run wrote",
            cause="its SHA-256 differs from that in run.json",
            remedy="run the test again: --rerun",
        )
    test = audit(settings.compliance_test, settings.benchmark)
    require_applied(read_detail_log(folder / DETAIL_LOG), test)
    answers = read_answers(log)
    verified = _TESTS[test.name](answers, settings, test)
    record = ComplianceRecord(
        notice=run.notice,
        test=test.name,
        round=settings.round,
        benchmark=settings.benchmark,
        scenario=settings.scenario,
        passed=all(check.passed is not False for check in verified.checks),
        checks=verified.checks,
        answers=len(answers),
        file=verified.file,
        log_sha256=digest,
        source=test.source,
        shows_logs=verified.shows_logs,
    )
    write_text(folder / verified.file, verified.text)
    write_record(folder / COMPLIANCE_FILE, record)
    say(f"{settings.title}: {'passed' if record.passed else 'FAILED: ' + '; '.join(record.failures)}")
    return record


def require_passed(record: ComplianceRecord) -> None:
    """Raise InvalidResult for a test that failed."""
    if not record.passed:
        raise InvalidResult(
            f"the compliance test {record.test} failed in {record.scenario}",
            cause="\n".join(record.failures),
            remedy="the server's answers or the model's files do not satisfy the test",
        )


def end_tokens(model: Path) -> frozenset[int]:
    """Return the tokens that end an answer of a model, by its generation_config.json or config.json.

    Raises ModelError where neither file names any.
    """
    for name in ("generation_config.json", "config.json"):
        if (model / name).is_file():
            found = json_object(model / name).get("eos_token_id")
            ids = found if isinstance(found, list) else [found]
            if ids and all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
                return frozenset(ids)
    raise ModelError(
        "the end tokens of the model are not known",
        cause=f"no eos_token_id in the files of {model}",
        remedy="name the model with its files: --vllm_model_name",
    )


def _test06(answers: list[LoggedAnswer], settings: RunSettings, test: Audit) -> _Verified:
    _require_answers(answers, test.samples)
    if not settings.model.path:
        raise ModelError(
            "the end tokens of the model are not known",
            cause="its files are not on this machine",
            remedy="name the model with its files: --vllm_model_name",
        )
    found = test06.checks(answers, eos=end_tokens(Path(settings.model.path)), first_token=settings.terms.first_token)
    return _Verified(test06.FILE, found, test06.report(found))


def _test09(answers: list[LoggedAnswer], settings: RunSettings, test: Audit) -> _Verified:
    _require_answers(answers, 1)
    least, most = test.thresholds["min_output_tokens"], test.thresholds["max_output_tokens"]
    found = test09.checks(answers, least=least, most=most, samples=settings.samples)
    return _Verified(test09.FILE, found, test09.report(found, answers, least=least, most=most), shows_logs=True)


def _test07(answers: list[LoggedAnswer], settings: RunSettings, test: Audit) -> _Verified:
    _require_answers(answers, 1)
    least, score = test.thresholds["accuracy"], _score(answers, settings)
    found = test07.checks(score, len({answer.sample for answer in answers}), least=least, samples=settings.samples)
    return _Verified(test07.FILE, found, test07.report(found, score, least=least), shows_logs=True)


def _score(answers: list[LoggedAnswer], settings: RunSettings) -> float | None:
    """Return the accuracy of the answers in percent, by the scorer of the benchmark; None where it has none of it."""
    require_tokenizer(settings)
    scorer = scorer_of(settings.terms)
    rows = rows_of_samples(settings.dataset, [answer.sample for answer in answers])
    texts = Detokenizer(Path(settings.model.path)).decode(
        [answer.tokens for answer in answers], special_tokens=scorer.special_tokens
    )
    return scorer.compute(Samples(texts, rows, NO_SENTENCES)).values.get(test07.SCORE)


def _require_answers(answers: list[LoggedAnswer], least: int) -> None:
    if len(answers) < least:
        raise RunFailed(
            "LoadGen logged too few answers of the compliance test",
            cause=f"{len(answers)} answers, {least} are asked",
            remedy="run the test again: --rerun",
        )


_TESTS: Mapping[str, Callable[[list[LoggedAnswer], RunSettings, Audit], _Verified]] = {
    "TEST06": _test06,
    "TEST07": _test07,
    "TEST09": _test09,
}
#: The tests whose runs can be verified.
VERIFIED_TESTS = tuple(_TESTS)

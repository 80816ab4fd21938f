"""TEST01: answers in performance mode are those of the accuracy run, and the run is as fast as the result's.

The official verification (compliance/TEST01) compares the first element of each logged answer, and the rates of both
performance runs. Where answers differ, as those of an engine that batches may, the scores of both sets of answers are
compared instead (create_accuracy_baseline.sh, then the benchmark's accuracy script on each).
"""

from collections.abc import Sequence
from pathlib import Path

from cm4vllm.accuracy.metric_families import Samples
from cm4vllm.accuracy.scoring import accuracy_text, rows_of_samples, scorer_of, texts_of_labels
from cm4vllm.accuracy.sentences import NO_SENTENCES
from cm4vllm.common.errors import RunFailed
from cm4vllm.compliance.run_verdict import LoggedRun, Verdict
from cm4vllm.records.compliance import CheckResult
from cm4vllm.records.logs.answers import logged_data
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, PerformanceResult, read_performance
from cm4vllm.rules import Logged

ACCURACY, PERFORMANCE = "Accuracy check pass", "Performance check pass"
ACCURACY_TEXT, PERFORMANCE_TEXT = "verify_accuracy.txt", "verify_performance.txt"
#: Scores of the result's answers to the samples of the test, and of the test's, under two names.
BASELINE, COMPLIANCE, SCORED = "baseline_accuracy.txt", "compliance_accuracy.txt", "accuracy.txt"
#: The difference in speed that the run of the test may have, as a part of the result's (verify_performance.py).
_APART = 0.10
#: Bytes of an element of a logged answer.
_BYTES = {Logged.TOKENS: 4, Logged.TEXT: 1, Logged.LABELS: 8}

Entries = Sequence[tuple[int, bytes]]


def verify(run: LoggedRun) -> Verdict:
    """Return the verdict on a run beside the result's own runs. Raises RunFailed where these are missing."""
    run.require_answers(1)
    baseline = logged_data(_folder_beside(run.folder, "accuracy") / ACCURACY_LOG)
    tested = logged_data(run.folder / ACCURACY_LOG)
    text, differing = compare(baseline, tested, _BYTES[run.settings.terms.logged])
    passed, scores = not differing, dict[str, str]()
    if differing:
        passed, scores, words = _by_scores(run, baseline, tested)
        differing = f"{differing}; {words}"
    speed_text, speed = _speed(
        read_performance(_folder_beside(run.folder, "performance")), read_performance(run.folder)
    )
    same = differing or f"all {len(tested)} answers begin as those of the accuracy run"
    return Verdict(
        (CheckResult(name=ACCURACY, passed=passed, found=same), speed),
        texts={ACCURACY_TEXT: text, PERFORMANCE_TEXT: speed_text},
        accuracy_texts=scores,
    )


def _folder_beside(folder: Path, mode: str) -> Path:
    """Return the folder of the result's run in `mode`. Raises RunFailed if there is none."""
    place = folder.parent / mode
    if not place.is_dir():
        raise RunFailed(
            f"TEST01 needs the {mode} run of the result",
            cause=f"no folder {place}",
            remedy=f"make a {mode} run of the same scenario, with its folder beside that of the test",
        )
    return place


def compare(baseline: Entries, tested: Entries, width: int) -> tuple[str, str]:
    """Return the official text on answers of elements of `width` bytes, and what speaks against them, empty if nothing.

    A sample that is logged again is compared with its answer before, as verify_accuracy.py does.
    """
    known: dict[int, bytes] = {}
    again = differing = 0
    for index, data in baseline:
        again += index in known
        differing += known.setdefault(index, data) != data
    mismatched, matched, missing = [], 0, 0
    for index, data in tested:
        if (before := known.get(index)) is None:
            missing += 1
        else:
            matched += 1
            if data[:width] != before[:width]:
                mismatched.append(index)
        known[index] = data
    passed = matched > 0 and not mismatched
    lines = [
        "Verifying accuracy. This might take a while...",
        "Reading accuracy mode results...",
        "Reading performance mode results...",
        f"num_acc_log_entries = {len(baseline)}",
        f"num_acc_log_duplicate_keys = {again}",
        f"num_acc_log_data_mismatch = {differing}",
        f"num_perf_log_entries = {len(tested)}",
        f"num_perf_log_qsl_idx_match = {matched}",
        f"num_perf_log_data_mismatch = {len(mismatched)}",
        f"num_missing_qsl_idxs = {missing}",
        "TEST PASS\n" if passed else "TEST FAIL\n",
    ]
    counts = f"{len(mismatched)} of {matched}"
    words = f"{counts} answers begin otherwise than in the accuracy run, first sample {mismatched[:1]}"
    return "\n".join(lines) + "\n", "" if passed else words


def _by_scores(run: LoggedRun, baseline: Entries, tested: Entries) -> tuple[bool, dict[str, str], str]:
    """Return whether the scores of both sets of answers agree, their texts, and the same in words."""
    wanted = {index for index, _ in tested}
    of_result = _scores(run, [(index, data) for index, data in dict(baseline).items() if index in wanted])
    of_test = _scores(run, list(dict(tested).items()))
    scorer, apart = scorer_of(run.settings.terms), []
    for target in run.settings.terms.targets:
        ours, theirs = of_test.get(target.label), of_result.get(target.label)
        percent = abs(1 - theirs / ours) * 100 if ours and theirs else float("inf")
        if percent > target.tolerance:
            apart.append(f"{target.label} {theirs} and {ours}")
    text = accuracy_text(of_test, scorer)
    texts = {BASELINE: accuracy_text(of_result, scorer), COMPLIANCE: text, SCORED: text}
    return not apart, texts, f"scores apart: {', '.join(apart)}" if apart else "the scores of both agree"


def _scores(run: LoggedRun, entries: Entries) -> dict[str, float | int]:
    """Return the scores of logged labels by metric. Raises RunFailed for a log of anything else."""
    terms = run.settings.terms
    if terms.logged is not Logged.LABELS:
        raise RunFailed("TEST01 scores labels alone", cause=f"the log of {terms.benchmark} holds {terms.logged}")
    rows = rows_of_samples(run.settings.dataset, [index for index, _ in entries])
    texts, rows = texts_of_labels([data for _, data in entries], rows, terms.labels)
    samples = Samples(texts, rows, NO_SENTENCES, speech_packages=run.speech_packages)
    return dict(scorer_of(terms).compute(samples).values)


def _speed(result: PerformanceResult, test: PerformanceResult) -> tuple[str, CheckResult]:
    """Return the official text on the rates of the result's run and of the test's, and the check."""
    begin = "Verifying performance.\n"
    for name, run in (("result", result), ("test", test)):
        if not run.valid:
            text = f"{begin}TEST FAIL: Invalid results in the {name}'s run\n"
            words = f"LoadGen calls the {name}'s run INVALID: {'; '.join(run.reasons)}"
            return text, CheckResult(name=PERFORMANCE, passed=False, found=words)
    ours, theirs = float(test.samples_per_second), float(result.samples_per_second)
    passed = theirs * (1 - _APART) <= ours <= theirs * (1 + _APART)
    last = "TEST PASS" if passed else "TEST FAIL: Test score invalid"
    text = f"{begin}Reference score = {theirs}\nTest score = {ours}\n{last}\n"
    words = f"{ours:g} samples/s beside {theirs:g} of the result; {_APART:.0%} apart are allowed"
    return text, CheckResult(name=PERFORMANCE, passed=passed, found=words, compares_speed=True)

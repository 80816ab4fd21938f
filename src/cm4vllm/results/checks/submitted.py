"""What runs of ours need before a submission tree is made of them."""

from __future__ import annotations

from collections.abc import Iterator

from cm4vllm.accuracy.records import ACCURACY_FILE, ACCURACY_TEXT
from cm4vllm.loadgen.detail_log import DETAIL_LOG
from cm4vllm.loadgen.logs import ACCURACY_LOG, SUMMARY_LOG
from cm4vllm.loadgen.records import RUN_FILE
from cm4vllm.results.checks.check import Fault, Stage, check
from cm4vllm.results.checks.records import parts, record_file
from cm4vllm.results.model import Accuracy, Submission
from cm4vllm.rules import Mode

__all__: list[str] = []

_LAYOUT = "tools/submission/submission_checker/constants.py, the paths of each round"
_AGAIN = "run it again with --rerun"
_SCORE = "score the run again: --tags=process,mlperf,accuracy"


@check("RUN-MISSING", "each scenario has a performance run and an accuracy run", source=_LAYOUT, remedy=_AGAIN,
       stage=Stage.SUBMITTED)
def both_runs(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        for mode, part in ((Mode.PERFORMANCE, result.performance), (Mode.ACCURACY, result.accuracy)):
            if part is None:
                name = f"{result.folder}/{mode}/{RUN_FILE}"
                yield Fault(f"no submission without {name}", name)
    if not submission.results:
        yield Fault(f"no recorded runs in {submission.root}", "", remedy="run the benchmark first")


@check("SCORES-MISSING", "each accuracy run is scored, over all of its samples", source=_LAYOUT, remedy=_SCORE,
       stage=Stage.SUBMITTED)
def scored(submission: Submission) -> Iterator[Fault]:
    for part, run in parts(submission):
        if not isinstance(part, Accuracy):
            continue
        name, text = record_file(part, ACCURACY_FILE), record_file(part, ACCURACY_TEXT)
        if part.record is None:
            yield Fault(f"no submission without {name}", name)
        elif not run.settings.rehearsal and part.record.samples != part.record.samples_expected:
            yield Fault(f"the accuracy run in {name} is not whole", name, "samples", part.record.samples,
                        part.record.samples_expected, remedy=_AGAIN)
        if not (part.folder / ACCURACY_TEXT).is_file():
            yield Fault(f"{text} is missing", text)


@check("LOG-MISSING", "each run has all its logs, and its record their digests", source=_LAYOUT, remedy=_AGAIN,
       stage=Stage.SUBMITTED)
def logs_present(submission: Submission) -> Iterator[Fault]:
    for part, run in parts(submission):
        for name in (DETAIL_LOG, SUMMARY_LOG, *((ACCURACY_LOG,) if isinstance(part, Accuracy) else ())):
            if name not in run.files or not (part.folder / name).is_file():
                yield Fault(f"{record_file(part, name)} is missing", record_file(part, name))

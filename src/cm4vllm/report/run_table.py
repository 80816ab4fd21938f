"""The table of one LoadGen run, and its scores, which are printed where a run is made or scored alone."""

from pathlib import Path

from cm4vllm.common.number_texts import rate
from cm4vllm.common.records import read_record
from cm4vllm.records.accuracy import ACCURACY_FILE, ACCURACY_TEXT, AccuracyRecord
from cm4vllm.records.doubts import client_doubts
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.report.final_table import align, one_line, performance_cells, score_lines
from cm4vllm.results.log_folders import Reader
from cm4vllm.rules import Mode

_COLUMNS = ("run", "metric", "samples/s", "result", "TTFT p99", "TPOT p99")


def run_table(folder: Path) -> str:
    """Return the table of the run in a folder, and what is to be known beside it. Raises CmError."""
    run = read_record(folder / RUN_FILE, RunRecord)
    terms, name = run.settings.terms, run.settings.compliance_test or str(run.settings.mode)
    performance = Reader(folder).performance(folder, terms, run) if run.settings.mode is Mode.PERFORMANCE else None
    title = f"{terms.scenario} {name}"
    row = (
        (title, *performance_cells(performance))
        if performance
        # An accuracy run, whose answers are complete and not scored yet.
        else (title, f"{run.settings.samples:,} answers", rate(run.samples_per_second), "not scored", "", "")
    )
    lines = [
        *([f"*** {run.notice} ***"] if run.notice else []),
        *align([_COLUMNS, row]),
        "",
        *(f"{title} is INVALID: {reason}" for reason in (performance.reasons if performance else run.faults)),
        *([f"{title} is shortened: {run.settings.shortened}"] if run.settings.shortened else []),
        *([] if run.settings.rehearsal else [f"WARNING: {doubt}" for doubt in client_doubts(run)]),
        f"logs:    {folder}",
        *_next_command(run, folder),
    ]
    return "\n".join(map(one_line, lines))


def score_table(folder: Path) -> str:
    """Return the scores of the run in a folder, as `process,mlperf,accuracy` left them. Raises CmError."""
    run, record = read_record(folder / RUN_FILE, RunRecord), read_record(folder / ACCURACY_FILE, AccuracyRecord)
    lines = [
        *([f"*** {run.notice} ***"] if run.notice else []),
        *score_lines(str(run.settings.scenario), record, run.settings.dataset.whole(run.settings.terms.samples)),
        f"scores:  {folder / ACCURACY_TEXT}",
    ]
    return "\n".join(map(one_line, lines))


def _next_command(run: RunRecord, folder: Path) -> list[str]:
    """Return the command that scores or verifies a run; none for a performance run."""
    if run.settings.compliance_test:
        return [f"next:    cm run script --tags=process,mlperf,compliance --test_dir={folder}"]
    if run.settings.mode is Mode.ACCURACY:
        return [f"next:    cm run script --tags=process,mlperf,accuracy --result_dir={folder}"]
    return []

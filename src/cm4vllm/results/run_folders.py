"""Our own run folders, read into the model: run.json, LoadGen's logs and the scores of each run below runs/.

`open_results` also reads a submission tree, or a part of either.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from cm4vllm.common.errors import CmError, SubmissionError, UsageError
from cm4vllm.common.records import Record, read_record
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.compliance import COMPLIANCE_FILE, ComplianceRecord
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.model import ComplianceTest, Result, Submission, System
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import Division, Mode, Scenario

#: The description of the system, below a campaign's folder.
SYSTEM_FILE = Path("system") / "system.json"

R = TypeVar("R", bound=Record)
_PLACES = (
    "a campaign's output folder (it holds runs/), a submission tree (it holds open/, closed/ or network/), or "
    "the folder of one system or model in one of them"
)


def chosen_folder(out: Path, *, system: str = "", model: str = "") -> Path:
    """Return the one folder OUT/runs/<system>/<model> that is meant and holds a run.

    `system` and `model` choose; by default campaign.json does, or there is only one. Raises SubmissionError when there
    is no run, or more than one folder is meant.
    """
    campaign = _record(Reader(out), out / CAMPAIGN_FILE, CampaignRecord)
    system, model = (system, model) if system or model or not campaign else (campaign.system, campaign.model)
    folders = model_folders(out)
    meant = [f for f in folders if (not system or f.parent.name == system) and (not model or f.name == model)]
    if len(meant) == 1:
        return meant[0]
    asked = f" of system {system or 'any'}, model {model or 'any'}" if system or model else ""
    there = ", ".join(f"{f.parent.name}/{f.name}" for f in folders)
    if not meant:
        raise SubmissionError(
            f"no complete run{asked} in {out}",
            cause=f"there is: {there}" if there else "no run.json under its runs/",
            remedy="run a measurement with this --output_dir first",
        )
    raise SubmissionError(f"several systems or models in {out}", cause=there, remedy="name the one you mean")


def model_folders(out: Path) -> list[Path]:
    """Return the folders OUT/runs/<system>/<model> that hold a run."""
    return sorted({path.parents[2] for path in out.glob(f"runs/*/*/*/*/{RUN_FILE}")})


def read_runs(out: Path, folder: Path, scenarios: Iterable[Scenario] | None = None) -> Submission:
    """Read the runs in `folder`, which is OUT/runs/<system>/<model>, and what was asked for.

    A folder without run.json is no run. There is a result for each of `scenarios`, where none are given for each that
    has a run. What cannot be read is among the problems.
    """
    reader = Reader(out)
    campaign = _record(reader, out / CAMPAIGN_FILE, CampaignRecord)
    path = out / SYSTEM_FILE
    systems = [System(folder.parent.name, reader.json(path), reader.name(path))] if path.is_file() else []
    wanted = tuple(Scenario) if scenarios is None else tuple(scenarios)
    read = (_result(reader, folder, scenario, campaign) for scenario in wanted)
    results = tuple(result for result in read if scenarios is not None or result.runs or result.round)
    return Submission(
        root=out,
        round=next((result.round for result in results), ""),
        division=campaign.division if campaign else "",
        submitter=campaign.submitter if campaign else "",
        systems=tuple(systems),
        results=results,
        problems=tuple(reader.problems),
        campaign=campaign,
    )


def _result(reader: Reader, folder: Path, scenario: Scenario, campaign: CampaignRecord | None) -> Result:
    places = {mode: folder / scenario / mode for mode in Mode}
    runs = {mode: _record(reader, place / RUN_FILE, RunRecord) for mode, place in places.items()}
    performed, answered = runs[Mode.PERFORMANCE], runs[Mode.ACCURACY]
    first = performed or answered
    tests = tuple(_tests(reader, folder / scenario))
    return Result(
        round=first.settings.round if first else "",
        division=campaign.division if campaign else "",
        submitter=campaign.submitter if campaign else "",
        system=folder.parent.name,
        model=folder.name,
        benchmark=first.settings.benchmark if first else "",
        scenario=scenario,
        folder=reader.name(folder / scenario),
        performance=reader.performance(places[Mode.PERFORMANCE], performed.settings.terms, performed)
        if performed
        else None,
        accuracy=reader.accuracy(
            places[Mode.ACCURACY],
            answered.settings.terms,
            answered,
            _record(reader, places[Mode.ACCURACY] / ACCURACY_FILE, AccuracyRecord),
        )
        if answered
        else None,
        user_conf=first.settings.user_conf if first else "",
        tests=tests,
        compliance=tuple(test.record.test for test in tests),
    )


def _tests(reader: Reader, folder: Path) -> Iterator[ComplianceTest]:
    """Yield the compliance tests whose runs were verified."""
    for path in sorted(folder.glob(f"TEST*/{COMPLIANCE_FILE}")):
        run = _record(reader, path.with_name(RUN_FILE), RunRecord)
        record = _record(reader, path, ComplianceRecord)
        if run and record:
            yield ComplianceTest(path.parent, run, record)


def _record(reader: Reader, path: Path, kind: type[R]) -> R | None:
    """Return a record; None if it is missing. If it cannot be read, a problem is noted, too."""
    if not path.exists():
        return None
    try:
        return read_record(path, kind)
    except CmError as error:
        reader.problem("RECORD-UNREADABLE", error.what, path, value=error.cause, remedy=error.remedy)
        return None


def open_results(path: Path) -> tuple[Submission, ...]:
    """Read all results in `path`, or those of the system or model whose folder it is.

    Raises UsageError where the folder is missing, SubmissionError where it holds no results.
    """
    path = path.resolve()
    if not path.is_dir():
        raise UsageError(
            f"{path} is a file, not a folder" if path.exists() else f"{path} does not exist", remedy=f"give {_PLACES}"
        )
    base, system, model = _root(path)
    chosen = [
        replace(
            submission,
            results=tuple(
                result for result in submission.results if system in ("", result.system) and model in ("", result.model)
            ),
        )
        for submission in ([read_runs(base, folder) for folder in model_folders(base)] or _tree(base, path))
    ]
    if not any(submission.results for submission in chosen):
        raise SubmissionError(f"{path} holds no results", cause=f"read: {base}", remedy=f"give {_PLACES}")
    return tuple(submission for submission in chosen if submission.results)


def _root(path: Path) -> tuple[Path, str, str]:
    """Return the folder to read, and the system and the model that are meant; empty: all."""
    for up, above in enumerate((path, *path.parents)[:4]):
        if up and (above.name == "runs" or (above.name == "results" and above.parents[1].name in list(Division))):
            below = path.relative_to(above).parts
            return above.parent, below[0], below[1] if len(below) > 1 else ""
    return path, "", ""


def _tree(base: Path, path: Path) -> tuple[Submission, ...]:
    try:
        return read_tree(base)
    except SubmissionError as error:
        raise SubmissionError(f"{path} holds no results", cause=error.cause, remedy=f"give {_PLACES}") from error

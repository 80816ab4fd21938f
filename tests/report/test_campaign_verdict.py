import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cm4vllm.records.checker import CheckerRecord, CheckerRun
from cm4vllm.report.final_table import final_table
from cm4vllm.results.campaign_results import Report, load
from cm4vllm.results.judgement.campaign_verdict import Kind, findings, headline, missing, unexpected

Change = Callable[..., None]

PASSED = CheckerRecord(
    commit="b66003e1",
    round="v4.1",
    passed=True,
    runs=[
        CheckerRun(
            name="submission_checker", argv=[], status=0, results=2, errors=[], warnings=[], crashed=False, passed=True
        )
    ],
)


@pytest.fixture
def result(published: Path) -> Report:
    return load(published)


def test_an_open_result_below_the_closed_targets_is_valid_and_says_so(result: Report) -> None:
    report = replace(result, checker=PASSED)
    assert headline(report) == "A valid result in the open division"
    kinds = {f.subject: f.kind for f in findings(report)}
    assert kinds["Offline performance"] is Kind.GOOD and kinds["Offline accuracy"] is Kind.OPEN


def test_a_checker_that_ended_by_a_fault_of_its_own_is_said_to_give_no_verdict(result: Report) -> None:
    faulty = msgspec.structs.replace(PASSED.runs[0], name="old", passed=False, status=1, own_fault="TypeError: a")
    report = replace(result, checker=msgspec.structs.replace(PASSED, runs=[*PASSED.runs, faulty]))
    text = next(f.text for f in findings(report) if f.subject == "Official checker")
    assert text.endswith("(submission_checker: passed, old: no verdict, it ended by a fault of its own)")


def test_a_result_that_no_checker_saw_is_not_complete(result: Report) -> None:
    assert headline(result).endswith("not complete: see Official checker")


def test_a_result_whose_client_was_the_bottleneck_says_so_first(result: Report) -> None:
    first = result.results[0]
    assert first.performance is not None and first.performance.run.client.self_check is not None
    run = first.performance.run
    slow = msgspec.structs.replace(run.client.self_check, capacity_qps=0.1)
    run = msgspec.structs.replace(run, client=msgspec.structs.replace(run.client, self_check=slow))
    results = replace(first, performance=replace(first.performance, run=run)), *result.results[1:]
    report = replace(result, checker=PASSED, submission=replace(result.submission, results=results))
    assert headline(report) == "Valid in the open division, but DOUBTFUL: see Offline client"
    assert "may have been the bottleneck" in next(f.text for f in findings(report) if f.subject == "Offline client")


def test_a_refused_result_is_not_valid(result: Report) -> None:
    refused = msgspec.structs.replace(
        PASSED, passed=False, runs=[msgspec.structs.replace(PASSED.runs[0], passed=False, errors=["seeds"], status=1)]
    )
    report = replace(result, checker=refused)
    assert headline(report) == "Not a valid submission: see Official checker"
    assert "submission_checker: refused with 1 error" in findings(report)[-1].text


def test_a_checker_that_was_not_to_be_had_says_why(result: Report) -> None:
    report = replace(result, checker=CheckerRecord(commit="", round="v4.1", passed=False, unavailable="no network"))
    assert findings(report)[-1].text == "not run: no network"


def test_an_invalid_run_is_bad_in_a_result_and_a_note_in_a_rehearsal(result: Report, real_runs: Path) -> None:
    for report, kind in ((result, Kind.BAD), (load(real_runs), Kind.OPEN)):
        first = report.results[0]
        assert first.performance is not None
        invalid = replace(first.performance, loadgen_valid=False, loadgen_reasons=("minimum duration not met",))
        results = replace(first, performance=invalid), *report.results[1:]
        finding = findings(replace(report, submission=replace(report.submission, results=results)))[0]
        assert finding.kind is kind and finding.text.startswith("INVALID (minimum duration not met)")


def test_a_rehearsal_is_never_called_a_result(real_runs: Path) -> None:
    assert headline(load(real_runs)) == "A rehearsal, not a result"


def test_a_checker_refuses_a_rehearsal_for_being_short(real_runs: Path) -> None:
    report = load(real_runs)
    assert report.checker is not None
    short = msgspec.structs.replace(
        report.checker.runs[0], passed=False, status=1, errors=["SUMMARY: submission has errors"]
    )
    report = replace(report, checker=msgspec.structs.replace(report.checker, passed=False, runs=[short]))
    assert unexpected(report) == []
    assert findings(report)[-1].kind is Kind.GOOD
    assert "only length findings, expected of a rehearsal" in findings(report)[-1].text
    assert "SUMMARY" not in final_table(report, stream=io.StringIO())  # what is expected is not listed
    slow = msgspec.structs.replace(short, errors=["Failed extra check for TTFT and TPOT. Obtained: TTFT 99-tile: 5"])
    report = replace(report, checker=msgspec.structs.replace(report.checker, runs=[slow]))
    assert "only length and latency findings" in findings(report)[-1].text
    broken = msgspec.structs.replace(short, errors=["no such file"])
    report = replace(report, checker=msgspec.structs.replace(report.checker, runs=[broken]))
    assert "submission_checker: no such file" in final_table(report, stream=io.StringIO())


def test_gaps_are_named_in_words(result: Report, real_runs: Path) -> None:
    assert {"Accelerator topology", "the model's SHA-256: its files are not on this machine"} <= set(missing(result))
    gaps = missing(load(real_runs))
    assert gaps.count("Submitter") == 1 and "Cooling" in gaps and "the model's number of parameters" not in gaps
    assert missing(replace(result, system={}))[0] == "the description of the system"


def test_a_shortened_run_is_named_on_every_page_of_a_rehearsal(real_runs: Path) -> None:
    report = load(real_runs)
    assert report.shortened == {}
    words = "7 queries in place of 768; LoadGen's verdict needs 662"
    first, *others = report.submission.results
    assert first.performance is not None
    settings = msgspec.structs.replace(first.performance.run.settings, shortened=words)
    run = msgspec.structs.replace(first.performance.run, settings=settings)
    results = replace(first, performance=replace(first.performance, run=run)), *others
    report = replace(report, submission=replace(report.submission, results=results))
    named = next(f for f in findings(report) if f.subject == f"{settings.title} run")
    assert (named.kind, named.text) == (Kind.OPEN, f"shortened: {words}")
    assert f"{settings.title} is shortened: {words}" in final_table(report, stream=io.StringIO())

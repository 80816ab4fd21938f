import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cm4vllm.common.errors import CmError, SubmissionError
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.units import SamplesPerSecond, TokensPerSecond
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.checker import CheckerRecord
from cm4vllm.records.metrics import ServerMetrics
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.results.campaign_results import Report, load
from cm4vllm.results.judgement.campaign_verdict import Kind, findings
from cm4vllm.rules import Scenario

Change = Callable[..., None]


def folder_of(out: Path, scenario: str, mode: str) -> Path:
    return next(out.glob(f"runs/*/*/{scenario}/{mode}"))


def by_scenario(report: Report) -> dict[Scenario, object]:
    return {measurement.scenario: measurement for measurement in report.results}


def test_a_rehearsal_is_read_whole(real_runs: Path) -> None:
    report = load(real_runs)
    assert [m.scenario for m in report.results] == [Scenario.OFFLINE, Scenario.SERVER]
    assert report.rehearsal and report.notice == "REHEARSAL, NOT A RESULT"
    assert report.mapped and report.division == "open" and report.round == "v6.1"
    assert all(len(m.runs) == 2 for m in report.results)


def test_latencies_lie_where_the_server_put_them(real_runs: Path) -> None:
    server = load(real_runs).results[1].performance
    assert server is not None
    ttft, tpot = server.latencies
    assert (ttft.name, tpot.name) == ("TTFT", "TPOT")
    assert 4 <= ttft.p99 < 500 and 0.5 <= tpot.p99 < 50
    assert (ttft.limit, tpot.limit) == (2000, 100)
    assert ttft.met and ttft.headroom == pytest.approx(1 - ttft.p99 / 2000)


def test_offline_has_no_latencies(real_runs: Path) -> None:
    offline = load(real_runs).results[0].performance
    assert offline is not None and offline.latencies == ()


def test_a_published_rate_keeps_its_unit(published: Path) -> None:
    """The pages made of these logs said 1871.84 samples/s and 1954.36 queries/s."""
    offline, server = (m.performance for m in load(published).results if m.performance)
    assert isinstance(offline.samples_per_second, SamplesPerSecond)
    assert isinstance(offline.tokens_per_second, TokensPerSecond)
    assert str(offline.samples_per_second) == "6.31 samples/s" and str(offline.tokens_per_second) == "1,871.84 tokens/s"
    assert str(server.samples_per_second) == "6.89 samples/s" and str(server.tokens_per_second) == "1,954.36 tokens/s"


def test_a_published_result_is_held_against_its_own_variant(published: Path) -> None:
    report = load(published)
    assert not report.rehearsal and report.mapped
    for measurement in report.results:
        assert measurement.accuracy and measurement.accuracy.record
        scores = measurement.accuracy.record.scores
        assert [s.lower for s in scores[:3]] == [44.3867688, 22.0131648, 28.5875838]
        assert [s.met for s in scores] == [False, False, False, True]


def test_what_was_not_measured_is_none(out: Path) -> None:
    for path in ("campaign.json", "checker.json", "system/system.json", "system/machine.json", "server/server.json"):
        (out / path).unlink()
    shutil.rmtree(folder_of(out, "Offline", "performance"))
    (folder_of(out, "Server", "accuracy") / "accuracy.json").unlink()
    report = load(out)
    assert report.campaign is None and report.checker is None and report.machine is None and report.system == {}
    assert report.division is None and report.tree is None and report.submitter_stated == "not stated"
    assert report.server == report.run.settings.server
    offline, server = report.results
    assert offline.performance is None and offline.accuracy is not None
    assert server.accuracy is not None and server.accuracy.record is None


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="no complete run") as caught:
        load(tmp_path)
    assert "--output_dir" in caught.value.remedy


def test_a_run_that_did_not_end_is_none(out: Path) -> None:
    (folder_of(out, "Server", "performance") / RUN_FILE).unlink()
    assert load(out).results[1].performance is None


def test_two_models_need_a_choice(out: Path, change: Change) -> None:
    model = folder_of(out, "Server", "accuracy").parents[1]
    shutil.copytree(model, model.with_name("other"))
    assert load(out).folder == model
    change(out / CAMPAIGN_FILE, CampaignRecord, model="", system="")
    with pytest.raises(SubmissionError, match="several systems or models"):
        load(out)
    assert load(out, model="other").folder.name == "other"
    with pytest.raises(SubmissionError, match="no complete run of system any, model absent"):
        load(out, model="absent")


def test_a_record_in_the_wrong_folder_is_refused(out: Path) -> None:
    shutil.copy(folder_of(out, "Server", "accuracy") / RUN_FILE, folder_of(out, "Server", "performance") / RUN_FILE)
    with pytest.raises(SubmissionError, match="record of another run"):
        load(out)


def test_a_failed_request_makes_a_result_invalid_whatever_loadgen_says(out: Path, change: Change) -> None:
    change(folder_of(out, "Server", "performance") / RUN_FILE, RunRecord, client__failed=3)
    report = load(out)
    performance = report.results[1].performance
    assert performance is not None and performance.loadgen_valid and not performance.valid
    assert report.invalid_results == [f"Server: 3 of {performance.run.client.requests:,} requests failed"]


@pytest.mark.parametrize("mode", ["performance", "accuracy"])
def test_tokens_that_the_server_took_from_a_cache_make_a_result_invalid(
    out: Path, change: Change, mode: str, server_metrics: Callable[..., ServerMetrics]
) -> None:
    change(folder_of(out, "Server", mode) / RUN_FILE, RunRecord, server_metrics=server_metrics(prefix_cache_hits=17))
    (invalid,) = load(out).invalid_results
    assert invalid.startswith("Server: ") and "17 prompt tokens from a cache" in invalid
    assert any(f.kind is Kind.BAD and "17 prompt tokens" in f.text for f in findings(load(out)))


def test_a_checkers_verdict_on_earlier_runs_does_not_count(out: Path) -> None:
    assert load(out).checker is not None
    os.utime(out / "checker.json", (1_600_000_000, 1_600_000_000))
    assert load(out).checker is None


def test_a_checkers_verdict_on_another_tree_does_not_count(out: Path, change: Change) -> None:
    (out / "submission").mkdir()
    (out / "submission" / "a").write_text("as checked")
    change(out / "checker.json", CheckerRecord, tree_sha256=sha256_of_tree(out / "submission"))
    assert load(out).checker is not None
    (out / "submission" / "a").write_text("changed since")
    assert load(out).checker is None


def test_a_broken_record_is_named(out: Path) -> None:
    path = folder_of(out, "Server", "performance") / RUN_FILE
    path.write_text("{}")
    with pytest.raises(CmError, match="not a RunRecord"):
        load(out)
    (out / "system" / "system.json").write_text("[1]")
    path.unlink()
    with pytest.raises(SubmissionError, match=r"system\.json is not a JSON object"):
        load(out)


def test_the_tree_is_found_where_it_was_built(out: Path) -> None:
    assert load(out).tree is None
    (out / "submission" / "open" / "not-stated").mkdir(parents=True)
    assert load(out).tree == out / "submission" / "open" / "not-stated"

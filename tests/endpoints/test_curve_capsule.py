"""The capsule of a curve: made from results, run folders or a bundle, read back, and compared point by point."""

import pytest
from made_points import change_json, change_yaml, write_points

from cm4vllm.common.errors import ResultsDiffer, UsageError
from cm4vllm.common.files import write_json
from cm4vllm.common.records import write_record
from cm4vllm.records.campaign import COMMAND_FILE, CommandRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.report.comparison_texts import report_comparison, report_verification
from cm4vllm.results.comparing.verification import Judgement, refuse_differences
from cm4vllm.rules import ExecutionMode
from cm4vllm.submission.capsule.capsules_at_path import capsule_at, capsule_of_results
from cm4vllm.submission.capsule.replay import replay_words
from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE, as_yaml, read_capsule, write_capsule

COMMAND = "cm run script --tags=run-mlperf,endpoints,_vllm --submitter_file=/home/jdoe/own.yaml --c_max=256"
ARGV = ["/home/jdoe/venv/bin/vllm", "serve", "/home/jdoe/model", "--max-num-seqs=64", "--port=8000"]


def write_results(out, mode=ExecutionMode.VALID):
    """Write the results folder of a job with the run folders of a curve, and return it."""
    points = write_points(out / "points")
    server = ServerRecord(
        endpoint="http://127.0.0.1:8000", model_name="m", max_model_len=4096, version="0.32.0", owned=True, argv=ARGV
    )
    for folder in points.values():
        record = {"model": "llama", "model_sha256": "ab", "dataset_sha256": "cd", "benchmark": {"samples": 13368}}
        write_json(
            folder / "point.json", {**record, "server": {"endpoint": "http://127.0.0.1:8000", **_fields(server)}}
        )
    command = {"command": COMMAND, "cm_version": "3.5", "cm4vllm_version": "1", "commit": "0123abc"}
    write_record(
        out / COMMAND_FILE, CommandRecord(**command, execution_mode=mode, started_at="2026-11-24T00:00:00+00:00")
    )
    return out


def _fields(server):
    return {name: getattr(server, name) for name in ("model_name", "max_model_len", "version", "owned", "argv")}


@pytest.fixture
def results(tmp_path):
    return write_results(tmp_path / "first")


def differing(first, second):
    rows = report_verification([("first", first), ("second", second)], 0.01)
    return {row.field for row in rows if row.judgement is Judgement.DIFFERS}


def test_a_capsule_of_a_curve_is_read_back_and_names_no_folder(results, tmp_path):
    capsule = capsule_of_results(results)
    write_capsule(tmp_path / CAPSULE_FILE, capsule)
    text = (tmp_path / CAPSULE_FILE).read_text()
    again = read_capsule(tmp_path / CAPSULE_FILE)
    assert as_yaml(again) == as_yaml(capsule)
    assert "jdoe" not in text and "replay" not in text
    assert again.program["commit"] == "0123abc" and "--c_max=256" in again.command
    assert again.server.command[0] == "vllm" and "--max-num-seqs=64" in again.server.command
    assert [result.scenario for result in again.results][:2] == ["concurrency 8", "concurrency 11"]
    point = again.results[0].performance
    # 1000 over a TPOT p90 of sqrt(8) ms
    assert point.figures.value("tokens_per_second_per_user") == pytest.approx(353.55, rel=1e-4)
    assert not again.rehearsal
    assert capsule_at(results).title == capsule.title == "llama on Example_server"


def test_a_capsule_of_a_rehearsal_says_so(tmp_path):
    assert capsule_of_results(write_results(tmp_path, ExecutionMode.TEST)).rehearsal


def test_run_folders_without_records_have_a_capsule_with_what_they_state(points):
    capsule = capsule_at(points[8].parent)
    assert capsule.server.software == "vLLM 0.32.0" and capsule.machine["driver"] == "580.65.06"
    assert {"command", "program.version", "model.sha256"} <= {*capsule.unknown}
    intervals = [field for field in capsule.unknown if "interval" in field]
    assert intervals == [f"{result.scenario} performance: the intervals of its figures" for result in capsule.results]


def test_a_curve_confirms_itself(results):
    capsule = capsule_of_results(results)
    assert differing(capsule, capsule) == set()


def test_another_parameter_score_or_point_is_another_curve(results, tmp_path):
    first, other = capsule_of_results(results), write_results(tmp_path / "second")
    change_yaml(other / "points/point-8/config.yaml", lambda content: content["model_params"].update(temperature=0.5))
    change_json(
        other / "points/point-14/accuracy/accuracy_results.json",
        lambda content: content["accuracy_scores"][0]["score"].update(rouge1="30.0"),
    )
    (other / "points/point-54").rename(tmp_path / "left-out")
    fields = differing(first, capsule_of_results(other))
    assert fields == {
        "sampling: temperature (concurrency 8 performance, concurrency 8 accuracy)",
        "concurrency 14: rouge1",
        "concurrency 54 performance",
    }
    with pytest.raises(ResultsDiffer):
        refuse_differences(report_verification([("a", first), ("b", capsule_of_results(other))], 0.01))


def test_a_figure_without_an_interval_is_shown_and_not_judged(results, tmp_path):
    other = write_results(tmp_path / "second")
    change_json(
        other / "points/point-8/performance/result_summary.json", lambda content: content["tpot"].update(avg=9e6)
    )
    rows = report_verification([("a", capsule_of_results(results)), ("b", capsule_of_results(other))], 0.01)
    judged = {row.field: row for row in rows}["concurrency 8: tpot mean"]
    assert judged.judgement is Judgement.UNKNOWN and "keeps no interval" in judged.tolerance


def test_a_capsule_is_compared_with_the_folder_that_it_was_made_from(results, tmp_path):
    write_capsule(tmp_path / CAPSULE_FILE, capsule_of_results(results))
    comparison = report_comparison(f"{tmp_path / CAPSULE_FILE},{results}", tmp_path / "page.html")
    assert len(comparison["comparison"]["results"]) == 7


def test_a_replay_of_a_curve_is_refused_with_what_to_do(results):
    with pytest.raises(UsageError, match="is not replayed") as refused:
        replay_words(capsule_of_results(results), {}, {})
    assert "verify,mlperf" in refused.value.remedy

"""Bundles, by the official builder and checker."""

import json
import random
from pathlib import Path

import pytest
from made_points import (
    BENCHMARK,
    CURVE,
    DESCRIPTION,
    SEEDS,
    STATED,
    change_json,
    change_yaml,
    point_record,
    renamed,
    write_points,
)
from msgspec.structs import replace
from submission_site import Site

from cm4vllm.common.checking.private_words import private_words
from cm4vllm.common.errors import ResultsDiffer, SubmissionError, UsageError
from cm4vllm.common.files import write_json, write_text
from cm4vllm.common.programs.processes import run
from cm4vllm.common.records import write_record
from cm4vllm.endpoints.bundle import build_bundle, official_report, write_payloads
from cm4vllm.endpoints.disclosure import (
    initialization_steps,
    point_document,
    read_submitter_file,
    region_word,
    system_document,
)
from cm4vllm.endpoints.steady_state import SteadyState
from cm4vllm.records.campaign import COMMAND_FILE, CommandRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.report.comparison_texts import report_comparison, report_verification
from cm4vllm.results.comparing.verification import Judgement, refuse_differences
from cm4vllm.results.endpoints.curves import read_curves
from cm4vllm.rules import ExecutionMode, endpoints_rules
from cm4vllm.submission.capsule.capsules_at_path import capsule_at, capsule_of_results
from cm4vllm.submission.capsule.replay import replay_words
from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE, as_yaml, read_capsule, write_capsule

_REGIONS = """
import json, sys
from submission_checker.models.regions import compute_regions
for c_min, c_max, stated in json.loads(sys.argv[1]):
    found = compute_regions(c_max, c_min, c_min_overridden=stated)
    parts = (found.ultra_low_concurrency, found.low_concurrency, found.med_concurrency, found.high_concurrency)
    print(*[f"{part.start}-{part.end}" for part in parts])
"""


def test_regions_are_those_of_the_official_checker(checker):
    numbers = random.Random(7)
    curves = [(numbers.randint(1, 32), numbers.randint(33, 20_000), numbers.random() < 0.5) for _ in range(200)]
    done = run([checker.python, "-c", _REGIONS, json.dumps(curves)])
    ours = []
    for c_min, c_max, stated in curves:
        own = endpoints_rules().regions(c_min=c_min, c_max=c_max, c_min_stated=stated)
        parts = (own.ultra_low, own.low, own.medium, own.high)
        ours.append(" ".join(f"{part.start}-{part.end}" for part in parts))
    assert ours == done.output.splitlines()


#: The warnings of the official checker about a rehearsal: it is short, on a name without thresholds.
_WARNINGS = {"point-duration", "steady-state-basis", "power-estimated", "maximal-engagement", "accuracy-gate"}


@pytest.fixture
def build(checker, tmp_path):
    """A function that builds the bundle of run folders."""
    write_text(tmp_path / "src" / "vllm" / "README.md", "vllm serve\n")
    write_text(tmp_path / "docs" / "README.md", "software\n")

    def build(points, **given):
        return build_bundle(
            checker,
            {folder.name: folder for folder in points.values()},
            tmp_path / "bundle",
            division="standardized",
            availability="available",
            source=tmp_path / "src",
            documentation=tmp_path / "docs",
            power=tmp_path / "power.json",
            **given,
        )

    return build


def program(checker, name):
    """The path of a program in the checker's environment."""
    return Path(checker.python).with_name(name)


def test_a_curve_that_keeps_the_rules_has_no_error_and_no_warning(checker, build, points, tmp_path):
    report = official_report(checker, build(points), tmp_path / "report.json", endpoints_rules())
    faults = [f"{finding.rule}: {finding.message}" for finding in report.results if finding.severity != "info"]
    assert faults == []


def test_the_power_of_each_point_is_that_of_the_official_checker(build, points, tmp_path):
    points = {concurrency: folder.rename(folder.with_name(f"p{concurrency}")) for concurrency, folder in points.items()}
    build(points)
    (tmp_path / "power.json").rename(points[8].parent / "power.json")
    (curve,), _ = read_curves(points[8].parent)
    # Two processors and eight accelerators, with the rules' part for the rest of an air-cooled node.
    kilowatts = (2 * 360 + 8 * 1000) * 1.5 / 1000
    for point in curve.points:
        assert point.figures.value("tps_per_kw") == pytest.approx(
            point.figures.value("system_tps") / kilowatts, rel=1e-3
        )


def test_a_rehearsal_has_the_error_of_its_name_alone(checker, build, stand_in_points, tmp_path):
    report = official_report(checker, build(stand_in_points), tmp_path / "report.json", endpoints_rules())
    assert set(report.counts("error")) == {"model-name-valid"}
    assert set(report.counts("warning")) <= _WARNINGS


def test_a_rehearsal_under_the_name_of_the_benchmark_fails_in_accuracy_alone(checker, build, stand_in_points, tmp_path):
    bundle = renamed(build(stand_in_points), tmp_path / "renamed", BENCHMARK.name)
    report = official_report(checker, bundle, tmp_path / "report.json", endpoints_rules())
    assert set(report.counts("error")) == {"accuracy-gate", "accuracy-sample-count"}


def test_what_a_registration_would_send_is_written_and_a_refusal_has_the_words_of_the_program(
    checker, stand_in_points, tmp_path, monkeypatch
):
    """Nothing is asked of the network, also where the program itself would ask for its newest version."""
    runs = {folder.name: folder for folder in stand_in_points.values()}
    with Site() as site:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, site.address)
        monkeypatch.setenv("HOME", str(tmp_path))
        target = write_payloads(checker, runs, tmp_path / "bundle-payloads")
        assert site.asked == []
        run([program(checker, "endpoints-submission-cli"), "runs", "create", "--dry-run", "--path", runs["point-8"]])
        assert site.asked == ["CONNECT pypi.org:443"]
    payload = json.loads((target / "point-8.json").read_text())
    assert sorted(path.name for path in target.iterdir()) == sorted(f"{name}.json" for name in runs)
    assert payload["point_config"]["concurrency"] == 8 and payload["system_power"]["derived"]
    (runs["point-54"] / "config.yaml").unlink()
    with pytest.raises(SubmissionError, match="refuses to register a run folder") as refused:
        write_payloads(checker, runs, target)
    assert "config.yaml" in refused.value.cause and "point-54" in refused.value.cause
    assert json.loads((target / "point-8.json").read_text()) == payload


def test_the_official_viewer_has_no_warning(checker, build, stand_in_points, tmp_path):
    bundle = build(stand_in_points)

    def view():
        return run([program(checker, "mlperf-viz"), bundle.parent, "--strict", "--export", tmp_path / "view.json"])

    done = view()
    assert done.ok, done.tail(5)
    next(bundle.rglob("result_summary.json")).unlink()
    assert not view().ok


def test_what_the_builder_refuses_leaves_no_bundle(build, points, tmp_path):
    (points[8] / "config.yaml").unlink()
    with pytest.raises(SubmissionError, match="the official builder refuses") as raised:
        build(points)
    assert "config.yaml" in raised.value.cause
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("http://gpu-7.lab.example:8000", "server"),
        ("http://203.0.113.7:8000", "server"),
        ("/home/kkowalska/results", "home folder"),
        ("sk-quite-secret-1234", "secret"),
    ],
)
def test_a_private_word_in_a_file_leaves_no_bundle(build, points, tmp_path, text, kind):
    words = private_words(
        tmp_path,
        {"HOME": "/home/kkowalska", "SERVER_API_KEY": "sk-quite-secret-1234"},
        servers=("gpu-7.lab.example", "203.0.113.7"),
    )
    change_yaml(points[54] / "config.yaml", lambda content: content.update(note=text))
    with pytest.raises(SubmissionError, match="config.yaml, line .*" + kind) as raised:
        build(points, private=words)
    assert "sk-quite" not in f"{raised.value.what}{raised.value.cause}"
    assert not (tmp_path / "bundle").exists()


# --- the authored files of a point: each value has a source, and what has none is left out or asked for


def point(concurrency=14, offline="none"):
    return point_record(
        endpoints_rules().point_terms(BENCHMARK, concurrency, CURVE, offline=offline == "dedicated"),
        samples=66_840,
        offline=offline,
        steady_state=SteadyState(status="insufficient_passes", verdict="not found", blocks=4, least_variation=0.2),
    )


def test_a_value_that_is_not_stated_is_left_out():
    stated = {"division": "RDI", "target_cohort": "2026-11-C1", "model_precision": "FP8"}
    document = point_document(point(), CURVE, stated, "none: no requests before the run")
    assert document["model_precision"] == "FP8"
    assert "link_to_model" not in document and "dataset_name" not in document
    assert document["runtime_settings"]["runtime"]["model_seed"] == SEEDS.model
    assert document["warmup"]["data_source"] == "none: no requests before the run"
    assert document["steady_state"] == {"status": "insufficient_passes", "verdict": "not found", "state": {}}


def test_a_point_states_what_the_client_was_given_and_what_was_reached():
    run = replace(point().run, min_duration_ms=600_000)
    made = replace(point(), run=run, in_flight=13.8149, dataset_sha256="ab" * 32)
    given = {"steps": ["weights loaded"], "more": {"nodes_used": None, "sparsity": {"method": "m"}}}
    document = point_document(made, CURVE, {"division": "RDI", "target_cohort": "2026-11-C1"}, "none", **given)
    assert document["runtime_settings"]["min_duration_ms"] == 600_000
    assert (document["concurrency_reached"], document["dataset_sha256"]) == (13.81, "ab" * 32)
    assert document["warmup"]["initialization_steps"] == ["weights loaded"]
    assert document["sparsity"] == {"method": "m"} and "nodes_used" not in document
    rehearsal = point_document(point(), CURVE, {"division": "RDI", "target_cohort": "2026-11-C1"}, "none")
    assert rehearsal["runtime_settings"]["min_duration_ms"] == 0 and "concurrency_reached" not in rehearsal


STARTED = ServerRecord(endpoint="http://127.0.0.1:1", model_name="m", max_model_len=1, version="0.33.0", owned=True)


def test_the_steps_of_a_server_are_those_that_its_record_has():
    eager = replace(STARTED, argv=["vllm", "serve", "--enforce-eager", "--load-format=dummy"], ready_after_s=83.4)
    assert initialization_steps(eager)[:3] == [
        "vLLM 0.33.0 was started",
        "weights: random ones were made",
        "no compilation and no capture of graphs, by --enforce-eager",
    ]
    assert initialization_steps(eager)[3].startswith("ready after 83 s; ")
    loaded = initialization_steps(replace(STARTED, argv=["vllm", "serve", "m"]))
    assert loaded[1] == "weights: loaded from the model's folder" and loaded[2].startswith("its own compilation")
    assert initialization_steps(replace(STARTED, owned=False)) == ["not known: the server was not started by cm4vllm"]


def test_what_the_submitter_states_of_a_point(tmp_path):
    path = tmp_path / "submitter.yaml"
    sparsity = "method: thresholding\n  source: https://example.org\n  calibration: published set\n"
    path.write_text(f"initialization_steps: [loaded]\nsparsity:\n  {sparsity}  threshold: {{1: 0.1, 32: 0.2}}\n")
    stated = read_submitter_file(path)
    assert stated.initialization_steps == ("loaded",)
    assert stated.of_point(32, 1) == {
        "nodes_used": None,
        "sparsity": {
            "method": "thresholding",
            "source": "https://example.org",
            "threshold": 0.2,
            "calibration": "published set",
        },
    }
    with pytest.raises(SubmissionError, match="no threshold of the sparsity at concurrency 4"):
        stated.of_point(4, 1)
    path.write_text(
        f"sparsity:\n  {sparsity}  threshold: 0.5\npower: {{cooling: air, components: {{}}, scale_out: {{}}}}\n"
    )
    stated = read_submitter_file(path)
    assert stated.of_point(4, 3)["nodes_used"] == [{"system_node_ensemble_id": 1, "nodes": 3}]
    assert stated.of_point(4, 1)["sparsity"]["threshold"] == 0.5
    path.write_text("sparsity: {method: thresholding}\n")
    with pytest.raises(UsageError, match="cannot be used"):
        read_submitter_file(path)


def test_the_region_of_a_point_is_the_computed_one():
    words = {concurrency: region_word(point(concurrency), CURVE) for concurrency in (8, 14, 32, 256, 260)}
    assert words == {
        8: "low_latency",
        14: "low_concurrency",
        32: "med_concurrency",
        256: "high_concurrency",
        260: "margin",
    }
    assert region_word(point(13_368, offline="dedicated"), CURVE) == "submitters_choice"


def test_a_key_of_a_node_that_is_neither_detected_nor_stated_is_asked_for():
    given = {"curve": CURVE, "division": "RDI", "framework": "vLLM 0.32.0", "parallel": {}}
    detected = {"driver": "580.65.06", "filesystem": "ext4"}
    system = system_document(DESCRIPTION, {**STATED, "node": {}}, detected=detected, **given)
    assert system["node_types"][0]["filesystem"] == "ext4"
    assert system["max_supported_concurrency"] == CURVE.c_max
    with pytest.raises(SubmissionError, match="lacks driver, filesystem") as refused:
        system_document(DESCRIPTION, {**STATED, "node": {}}, detected={}, **given)
    assert "--submitter_file" in str(refused.value)
    virtual = {**DESCRIPTION, "host_processor_core_count": "2 virtual cores"}
    with pytest.raises(SubmissionError, match="lacks host_processor_core_count or host_processor_vcpu_count"):
        system_document(virtual, {**STATED, "node": {}}, detected=detected, **given)
    assert system_document(virtual, STATED, detected={**detected, "host_processor_vcpu_count": 2}, **given)


def test_a_key_that_point_yaml_does_not_have_is_refused_before_anything_is_measured(tmp_path):
    path = tmp_path / "submitter.yaml"
    path.write_text("model: {model_precision: FP8}\ndataset: {dataset_link: https://example.org}\n")
    assert read_submitter_file(path).model == {"model_precision": "FP8"}
    path.write_text("model: {precision: FP8}\n")
    with pytest.raises(UsageError, match="cannot be used") as refused:
        read_submitter_file(path)
    assert "'precision'" in refused.value.cause


# --- the capsule of a curve: made from results, run folders or a bundle, read back, and compared point by point


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
    # 1000 over the 90th percentile of TPOT in ms
    assert point.figures.value("tokens_per_second_per_user") == pytest.approx(669.30, rel=1e-4)
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

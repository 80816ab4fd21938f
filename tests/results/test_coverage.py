"""The coverage of the checks: benchmarks of every kind under every official name, and the message for the others."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.report.explorer import explorer_page
from cm4vllm.results.check_command.check_summary import as_objects
from cm4vllm.results.check_command.tree_check import check_tree, report_checks
from cm4vllm.results.result_index import Index, read_index
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import round_terms
from cm4vllm.submission.capsule.from_records import publishable

#: LoadGen's defaults are those of its newest round.
ROUND = "v6.1"
SCORES = "accuracy=76\nmAP=53\n{'exact_match': 82.1}\n'CLIP_SCORE': 31.7, 'FID_SCORE': 23.5}\nhash=ab12\n"


def put(root, logs, folder, ran="", *, kind="samples", division="closed", system_type="edge"):
    """Put a result into a tree, and return its folder."""
    home, scenario = root / division / "Somebody", folder.rpartition("/")[2]
    place = home / "results" / "System" / folder
    shutil.copytree(logs[ran or scenario, kind], place / "performance" / "run_1")
    shutil.copytree(logs["Offline", "accuracy"], place / "accuracy")
    (place / "accuracy" / "accuracy.txt").write_text(SCORES)
    (home / "systems").mkdir(exist_ok=True)
    (home / "systems" / "System.json").write_text(json.dumps({"system_type": system_type}))
    return place


def log_values(place, **values):
    """Change values of the detail log of a performance run."""
    path = place / "performance" / "run_1" / "mlperf_log_detail.txt"
    text = path.read_text()
    for key, value in values.items():
        text, count = re.subn(rf'("key": "{key}", "value": )[^,]+', rf"\g<1>{value}", text)
        assert count == 1, key
    path.write_text(text)


def codes(checked, *wanted):
    """Return for each code the files, the fields and what is expected there."""
    by_code: dict[str, list[str]] = {}
    for finding in checked.findings:
        if finding.code in wanted:
            by_code.setdefault(f"{finding.code} {finding.severity}", []).append(
                " ".join(
                    filter(None, (finding.file.rpartition("/results/System/")[2], finding.field, finding.expected))
                )
            )
    return by_code


RULES = tuple(
    "SCENARIO-REQUIRED COMPLIANCE LOG-MIN-DURATION PERFORMANCE-SAMPLES ACCURACY-SAMPLES ACCURACY-TARGET".split()
)


def test_the_rules_of_a_vision_benchmark_are_applied_under_its_official_names(any_scenario, tmp_path):
    for scenario in ("SingleStream", "MultiStream"):
        put(tmp_path, any_scenario, f"resnet50/{scenario}")
    place = tmp_path / "closed" / "Somebody" / "results" / "System" / "resnet50" / "SingleStream"
    (place / "accuracy" / "accuracy.txt").write_text("accuracy=75.6%, good=1, total=2\nhash=ab12\n")
    checked = check_tree(tmp_path)
    single, log = "resnet50/SingleStream", "performance/run_1/mlperf_log_detail.txt"
    own = codes(checked, *RULES)
    assert own["SCENARIO-REQUIRED error"] == ["resnet50 Offline"]
    assert f"{single} TEST01 TEST01" in own["COMPLIANCE error"] and len(own["COMPLIANCE error"]) == 4
    assert f"{single}/{log} effective_min_duration_ms 600000" in own["LOG-MIN-DURATION error"]
    wanted = f"{single}/{log} effective_performance_sample_count 1024 or more"
    assert wanted in own["PERFORMANCE-SAMPLES error"]
    assert own["ACCURACY-TARGET error"] == [f"{single}/accuracy/accuracy.txt accuracy 75.6954 or more"]
    assert any(text.endswith("50000") for text in own["ACCURACY-SAMPLES error"])
    assert checked.coverage == {"results": 2, "rules_applied": 2}


@pytest.mark.parametrize("folder", ["llama3_1-8b", "llama3.1-8b"])
def test_a_language_model_is_known_by_its_other_name(any_scenario, tmp_path, folder):
    put(tmp_path, any_scenario, f"{folder}/Offline", kind="tokens", system_type="datacenter")
    own = codes(check_tree(tmp_path), *RULES, "RULES-UNKNOWN")
    assert own["SCENARIO-REQUIRED error"] == [f"{folder} Server or Interactive"]
    assert own["COMPLIANCE error"] == [f"{folder}/Offline TEST06 TEST06"]
    (submission,) = read_tree(tmp_path)
    assert [(result.benchmark, result.mapped, result.covered) for result in submission.results] == [
        ("llama3.1-8b", False, True)
    ]


@pytest.mark.parametrize(
    ("folders", "system_type", "value", "expected"),
    [
        (["resnet/Offline"], "edge,datacenter", "Offline", "SingleStream, MultiStream, Server"),
        (["rgat/Offline"], "edge", "edge", "datacenter or datacenter,edge"),
        (
            [f"resnet50/{scenario}" for scenario in ("Offline", "SingleStream", "MultiStream", "Server")],
            "edge",
            "Server (edge)",
            "SingleStream, MultiStream, Offline",
        ),
    ],
)
def test_a_benchmark_has_the_scenarios_of_the_type_of_system(
    any_scenario, tmp_path, folders, system_type, value, expected
):
    for folder in folders:
        put(tmp_path, any_scenario, folder, system_type=system_type)
    (finding,) = (listed for listed in check_tree(tmp_path).findings if listed.code == "SCENARIO-REQUIRED")
    assert (finding.value, finding.expected) == (value, expected)


@pytest.mark.parametrize(("target_ms", "kept"), [(15, True), (15.1, False)])
def test_loadgen_may_be_given_the_latency_of_the_scenario_at_most(any_scenario, tmp_path, target_ms, kept):
    place = put(tmp_path, any_scenario, "resnet50/Server", system_type="datacenter,edge")
    log_values(place, effective_target_latency_ns=int(target_ms * 1e6))
    assert bool(codes(check_tree(tmp_path), "LATENCY-LIMIT")) != kept


def test_an_inferred_result_has_the_counts_of_the_scenario_that_ran(any_scenario, tmp_path):
    put(tmp_path, any_scenario, "yolo-95/Offline", "SingleStream")
    files = codes(check_tree(tmp_path), "PERFORMANCE-SAMPLES", "LOG-SCENARIO")
    assert files == {}  # 64 samples are drawn, as asked for; SingleStream issues one at a time
    own = tmp_path / "own"
    log_values(put(own, any_scenario, "yolo-95/Offline"), effective_samples_per_query=1524, effective_min_query_count=0)
    assert [
        text.rpartition(" effective_")[2] for text in codes(check_tree(own), "PERFORMANCE-SAMPLES").popitem()[1]
    ] == ["min_query_count 1 or more", "samples_per_query 1525 or more"]


PASSED = {"verify_performance.txt": "TEST PASS", "verify_accuracy.txt": "TEST PASS"}
#: The requirements of the rules for an Offline run of yolo.
ASKED = {"effective_min_duration_ms": 600000, "effective_samples_per_query": 1525}
BASELINE, TESTED = "accuracy/baseline_accuracy.txt", "accuracy/compliance_accuracy.txt"
DIFFERS = {**PASSED, "verify_accuracy.txt": "TEST FAIL", BASELINE: "mAP=53.0%"}


def put_test(logs, place, files):
    """Put a compliance test with these files into the folder of a result; return the folder of the test."""
    test = place / "TEST01"
    shutil.copytree(logs["Offline", "samples"], test / "performance" / "run_1")
    for name, text in files.items():
        (test / name).parent.mkdir(exist_ok=True)
        (test / name).write_text(text)
    return test


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (PASSED, []),
        ({"verify_accuracy.txt": "TEST PASS"}, ["verify_performance.txt"]),
        ({**PASSED, "verify_performance.txt": "TEST FAIL"}, ["verify_performance.txt TEST PASS"]),
        ({**PASSED, "verify_accuracy.txt": "TEST FAIL"}, ["verify_accuracy.txt TEST PASS"]),
        ({**DIFFERS, TESTED: "mAP=52.5%"}, []),
        ({**DIFFERS, TESTED: "mAP=52.4%"}, ["verify_accuracy.txt TEST PASS"]),
    ],
)
def test_a_compliance_test_is_passed_by_its_files_or_by_scores_that_are_near(any_scenario, tmp_path, files, missing):
    put_test(any_scenario, put(tmp_path, any_scenario, "yolo-95/Offline"), files)
    own = [text for text in codes(check_tree(tmp_path), "COMPLIANCE")["COMPLIANCE error"] if "verify" in text]
    assert own == [f"yolo-95/Offline/TEST01/{name}" for name in missing]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("effective_min_duration_ms", 599999),
        ("effective_samples_per_query", 1524),
        ("effective_performance_sample_count", 63),
        ("effective_qsl_rng_seed", 1),
    ],
)
def test_the_run_of_a_compliance_test_keeps_the_rules_of_a_performance_run(any_scenario, tmp_path, key, value):
    place = put_test(any_scenario, put(tmp_path, any_scenario, "yolo-95/Offline"), PASSED)
    log_values(place, **ASKED, result_validity='"INVALID"')  # a busy machine may have made it last long enough
    log = "yolo-95/Offline/TEST01/performance/run_1/mlperf_log_detail.txt"
    before = codes(check_tree(tmp_path), "COMPLIANCE")["COMPLIANCE error"]
    assert before == [f"{log} result_validity VALID"]
    log_values(place, **{key: value})
    (own,) = {*codes(check_tree(tmp_path), "COMPLIANCE")["COMPLIANCE error"], ""} - {*before, ""}
    assert own.startswith(log) and key in own


@pytest.mark.parametrize("test", ["TEST01", "TEST05"])
def test_the_run_of_a_compliance_test_has_the_seeds_of_that_test(any_scenario, tmp_path, test):
    known, place = round_terms("v4.1"), put(tmp_path, any_scenario, "resnet50/Offline")
    for folder, own in (("TEST01", known.seeds), ("TEST05", known.test_seeds["TEST05"])):
        shutil.copytree(any_scenario["Offline", "samples"], place / folder / "performance" / "run_1")
        swapped = known.test_seeds["TEST05"] if folder == test == "TEST01" else known.seeds if folder == test else own
        seeds = {f"effective_{name}_rng_seed": getattr(swapped, name) for name in ("qsl", "sample_index", "schedule")}
        log_values(place / folder, **seeds)
    wrong = [
        finding.file.split("/")[6]
        for finding in check_tree(tmp_path, round_name="v4.1").findings
        if finding.code == "COMPLIANCE" and "seed" in finding.field
    ]
    assert wrong == [test]


def test_the_run_of_a_compliance_test_is_published(any_scenario, tmp_path):
    shutil.rmtree(put_test(any_scenario, put(tmp_path, any_scenario, "yolo-95/Offline"), PASSED) / "performance")
    assert [text.rpartition("/")[2] for text in codes(check_tree(tmp_path), "COMPLIANCE")["COMPLIANCE error"]] == [
        "mlperf_log_detail.txt",
        "mlperf_log_summary.txt",
    ]


def test_an_accuracy_run_publishes_the_named_answers(any_scenario, tmp_path):
    place = put(tmp_path, any_scenario, "stable-diffusion-xl/Offline") / "accuracy" / "images"
    names = ["1311", "2476", "3644", "2188", "4114", "52", "388", "1195", "3427"]
    place.mkdir()
    for name in names:
        (place / f"{name}.png").write_bytes(b"png")
    own = codes(check_tree(tmp_path, round_name="v6.0"), "ACCURACY-FILES")
    assert own == {"ACCURACY-FILES warning": ["stable-diffusion-xl/Offline/accuracy/images 2289"]}
    (place / "2289.png").write_bytes(b"png")
    assert codes(check_tree(tmp_path, round_name="v6.0"), "ACCURACY-FILES") == {}


@pytest.mark.parametrize(("division", "severity"), [("open", "warning"), ("closed", "error")])
def test_a_benchmark_without_rules_is_named(any_scenario, tmp_path, division, severity):
    put(tmp_path, any_scenario, "my-own-net/Offline", division=division)
    put(tmp_path, any_scenario, "pointpainting/SingleStream", division=division)
    put(tmp_path, any_scenario, "resnet50/SingleStream", division=division)
    checked = check_tree(tmp_path)
    places = ["my-own-net/Offline", "pointpainting/SingleStream"]  # the second left before this round
    assert codes(checked, "RULES-UNKNOWN") == {f"RULES-UNKNOWN {severity}": places}
    assert checked.coverage == {"results": 3, "rules_applied": 1}


def test_a_submission_whose_seeds_are_of_no_round_is_an_error(any_scenario, tmp_path):
    place = put(tmp_path, any_scenario, "resnet50/Offline")
    log_values(place, effective_qsl_rng_seed=1, effective_sample_index_rng_seed=2, effective_schedule_rng_seed=3)
    checked = check_tree(tmp_path)
    assert len(codes(checked, "ROUND-UNKNOWN", "RULES-UNKNOWN")["ROUND-UNKNOWN error"]) == 1
    assert checked.coverage == {"results": 1, "rules_applied": 0} and checked.errors
    named = check_tree(tmp_path, round_name="6.1")
    assert "LOG-SEEDS error" in codes(named, "LOG-SEEDS", "ROUND-UNKNOWN") and named.coverage["rules_applied"] == 1


def test_a_submission_without_a_log_that_can_be_read_is_an_error(any_scenario, tmp_path):
    place = put(tmp_path, any_scenario, "resnet50/Offline")
    (place / "performance" / "run_1" / "mlperf_log_detail.txt").unlink()
    assert "ROUND-UNKNOWN error" in codes(check_tree(tmp_path), "ROUND-UNKNOWN")
    put(tmp_path, any_scenario, "resnet50/SingleStream")
    checked = check_tree(tmp_path)
    assert codes(checked, "ROUND-UNKNOWN", "RULES-UNKNOWN") == {}
    assert checked.coverage == {"results": 2, "rules_applied": 1}  # FILE-MISSING names the other


def test_scores_without_their_log_are_compared_with_the_targets(any_scenario, tmp_path):
    place = put(tmp_path, any_scenario, "rgat/Offline", system_type="datacenter") / "accuracy"
    (place / "mlperf_log_detail.txt").unlink()
    (place / "accuracy.txt").write_text("accuracy=71.803%, good=3038, total=4231\nhash=ab12\n")
    assert codes(check_tree(tmp_path), "ACCURACY-TARGET", "FILE-MISSING").keys() == {
        "ACCURACY-TARGET error",
        "FILE-MISSING error",
    }


def test_an_unknown_round_is_refused(any_scenario, tmp_path):
    put(tmp_path, any_scenario, "resnet50/Offline")
    with pytest.raises(UsageError, match="unknown round 'v9.9'"):
        check_tree(tmp_path, round_name="v9.9")


@pytest.mark.parametrize("inside", ["", "System", "System/resnet50", "System/resnet50/nothing"])
def test_a_submission_without_results_is_an_error(tmp_path, inside):
    (tmp_path / "closed" / "Somebody" / "results" / inside).mkdir(parents=True)
    checked = check_tree(tmp_path)
    assert "RESULTS-NONE error" in codes(checked, "RESULTS-NONE") and checked.errors
    with pytest.raises(SubmissionError):
        report_checks(tmp_path)


def test_several_rounds_in_one_tree_are_named(any_scenario, tmp_path):
    seeds = {
        "effective_qsl_rng_seed": 2465351861681999779,
        "effective_sample_index_rng_seed": 14276810075590677512,
        "effective_schedule_rng_seed": 3936089224930324775,
    }
    for folder in ("resnet50/Offline", "resnet50/SingleStream"):
        put(tmp_path, any_scenario, folder)
    assert codes(check_tree(tmp_path), "ROUND-MIXED") == {}
    log_values(put(tmp_path, any_scenario, "resnet50/MultiStream"), **seeds)
    checked = check_tree(tmp_path)
    assert [submission.round for submission in checked.submissions] == [ROUND]  # that of most logs
    assert codes(checked, "ROUND-MIXED", "LOG-SEEDS").keys() == {"ROUND-MIXED warning", "LOG-SEEDS error"}
    two = tmp_path / "two"
    put(two, any_scenario, "resnet50/Offline")
    log_values(put(two, any_scenario, "resnet50/Offline", division="open"), **seeds)
    (mixed,) = (finding for finding in check_tree(two).findings if finding.code == "ROUND-MIXED")
    assert mixed.value == "1 of v6.0, 1 of v6.1"


def test_the_first_and_the_last_line_say_what_was_covered(any_scenario, tmp_path, capsys):
    put(tmp_path, any_scenario, "resnet50/Offline")
    put(tmp_path, any_scenario, "my-own-net/Offline")
    with pytest.raises(SubmissionError) as refused:
        report_checks(tmp_path)
    said = "rules applied to 1 of 2 results"
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0].endswith(said) and lines[-1].endswith(said)
    assert refused.value.state["coverage"] == {"results": 2, "rules_applied": 1}


def measured(run, *, watts):
    """Have LoadGen's window of a run last ten seconds, with a sample of the power in each."""
    log, begin = run / "mlperf_log_detail.txt", datetime(2026, 11, 28, 10, tzinfo=UTC)
    text = log.read_text()
    for key, at in (("power_begin", begin), ("power_end", begin + timedelta(seconds=10))):
        text, count = re.subn(rf'("key": "{key}", "value": ")[^"]+', rf"\g<1>{stamp(at)}", text)
        assert count == 1
    log.write_text(text)
    samples = (
        f"Time,{stamp(begin + timedelta(seconds=number + 0.5))},Watts,{watts:.6f},Volts,230.000000,Amps,5.400000,"
        "PF,0.990000,Mark,a_testing\n"
        for number in range(10)
    )
    (run / "spl.txt").write_text("".join(samples))


def stamp(at):
    return f"{at:%m-%d-%Y %H:%M:%S}.{at.microsecond // 1000:03d}"


def test_a_result_of_its_own_scenario_has_the_power_and_the_energy_of_its_run(any_scenario, tmp_path):
    measured(put(tmp_path, any_scenario, "resnet50/SingleStream") / "performance" / "run_1", watts=1240.0)
    (row,) = read_index(tmp_path, tmp_path / "kept").rows
    assert row.power_w == pytest.approx(1240.0) and row.energy_mj is not None and row.energy_mj > 0


@pytest.mark.parametrize(
    ("place", "ran"),
    [
        ("resnet50/MultiStream", "SingleStream"),
        ("yolo-95/Offline", "SingleStream"),
        ("resnet50/Offline", "MultiStream"),
    ],
)
def test_figures_of_another_scenario_are_no_figures_of_an_inferred_result(any_scenario, tmp_path, place, ran):
    log_folder = put(tmp_path, any_scenario, place, ran) / "performance" / "run_1"
    measured(log_folder, watts=1240.0)
    (row,) = read_index(tmp_path, tmp_path / "kept").rows
    assert row.inferred_from == ran and row.scenario == place.partition("/")[2]
    assert (row.value, row.metric, row.power_w, row.energy_mj, row.per_accelerator) == (None, "", None, None, None)
    assert f"inferred from {ran}" in explorer_page(Index((row,), 1, 0))
    (submission,) = read_tree(tmp_path)
    (result,) = submission.results
    assert result.performance is not None and result.performance.metric is not None
    assert len(publishable(result).performance.figures) == 0


@pytest.mark.parametrize(("place", "ran"), [("resnet50/Offline", "Offline"), ("llama2-70b-99/Interactive", "Server")])
def test_the_log_of_loadgens_own_scenario_is_not_inferred(any_scenario, tmp_path, place, ran):
    put(tmp_path, any_scenario, place, ran)
    (row,) = read_index(tmp_path, tmp_path / "kept").rows
    assert row.inferred_from == "" and row.value


# --- a tree whose names hold line feeds and escape sequences: no form of the findings shows them as more than names


FORGED = "error FORGED: all is lost"
NAMES = {
    "line feed": f"box\n{FORGED}",
    "carriage return": f"box\r{FORGED}",
    "line separator": f"box\u2028{FORGED}",
    "escape sequence": f"box\x1b[2J{FORGED}",
    "no text": f"box\udcff{FORGED}",
}


def made(root, name, submitter):
    """Make a tree with one result of a system of this name, and hardly any file."""
    home = root / "closed" / submitter
    folder = home / "results" / name / "llama2-70b-99" / "Offline"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(f"TODO\n{FORGED}\n")
    (home / "systems").mkdir()
    described = {"system_name": f"box\n{FORGED}", "framework": f"undefined\n{FORGED}", "host_networking": "-"}
    (home / "systems" / f"{name}.json").write_text(json.dumps(described))
    return root


@pytest.mark.parametrize(
    ("name", "submitter"),
    [*((name, "Somebody") for name in NAMES.values()), ("box", f"Somebody\n{FORGED}")],
    ids=[*NAMES, "submitter"],
)
def test_a_name_forges_no_line_in_any_form(tmp_path, name, submitter, capsys):
    root = made(tmp_path / "tree", name, submitter)
    with pytest.raises(SubmissionError) as error:
        report_checks(root, round_name="v6.0")
    printed = capsys.readouterr().out
    assert FORGED in printed
    assert not any(line.startswith(FORGED) for line in f"{printed}\n{error.value}".splitlines())
    assert "\x1b" not in printed
    texts = _texts(as_objects(check_tree(root, round_name="v6.0").findings))
    assert texts and all(text.isprintable() for text in texts)
    (row,) = read_index(root, tmp_path / "kept").rows
    assert row.submitter == submitter.replace("\n", "\\n")


def _texts(value):
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    return [text for part in value for text in _texts(part)] if isinstance(value, list) else []

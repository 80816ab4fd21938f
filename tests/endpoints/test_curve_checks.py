"""Each hole of the official checker: one change in a curve that keeps the rules, and our finding with its code."""

import pytest
from made_points import BENCHMARK, PASSES, change_json, change_yaml

from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.errors import SubmissionError
from cm4vllm.endpoints.inspection import EndpointsCheckSettings, report_endpoints_checks
from cm4vllm.results.checks import findings_at
from cm4vllm.results.endpoints.curves import read_curves

pytestmark = pytest.mark.usefixtures("any_day")


def codes(points):
    (curve,), problems = read_curves(points[8].parent)
    assert problems == ()
    return sorted({finding.code for finding in findings_at(Stage.CURVE, curve)})


def declared(points, concurrency, **fields):
    change_yaml(points[concurrency] / "point.yaml", lambda content: content.update(fields))


def steady_state(points, concurrency, change):
    change_yaml(points[concurrency] / "point.yaml", lambda content: change(content["steady_state"]))


def summary(points, concurrency, **fields):
    change_json(points[concurrency] / "performance" / "result_summary.json", lambda content: content.update(fields))


def summary_part(points, concurrency, name, **fields):
    path = points[concurrency] / "performance" / "result_summary.json"
    change_json(path, lambda content: content[name].update(fields))


def score(points, concurrency, **fields):
    change_json(
        points[concurrency] / "accuracy" / "accuracy_results.json",
        lambda content: content["accuracy_scores"][0]["score"].update(fields),
    )


def config(points, concurrency, change):
    change_yaml(points[concurrency] / "config.yaml", change)


def all_named(points, name):
    for concurrency in points:
        declared(points, concurrency, model_name=name)


def fewer_passes(points):
    samples = 3 * BENCHMARK.samples
    summary(points, 14, n_samples_issued=samples, n_samples_completed=samples)
    config(points, 14, lambda content: content["settings"]["runtime"].update(n_samples_to_issue=samples))
    steady_state(points, 14, lambda block: block["window"].update(n_samples=samples))


def offline_in_a_region(points):
    """The point that fills Medium alone becomes a dedicated Offline run."""
    declared(points, 32, offline="dedicated")


def ended_early(points):
    samples = 5 * BENCHMARK.samples
    summary(points, 54, n_samples_issued=samples, n_samples_completed=samples)


HOLES = {
    "a percentage that reads as a fraction": (lambda points: score(points, 14, rouge2="0.55"), "SCORE-FRACTION"),
    "a window claimed without its passes": (fewer_passes, "POINT-WINDOW"),
    "a window longer than its run": (
        lambda points: steady_state(points, 54, lambda block: block["window"].update(duration_s=2000.0)),
        "POINT-WINDOW",
    ),
    "a window with more samples than its run": (
        lambda points: steady_state(points, 54, lambda block: block["window"].update(n_samples=10**6)),
        "POINT-WINDOW",
    ),
    "a dedicated Offline run in the place of a region's point": (offline_in_a_region, "CURVE-OFFLINE"),
    "another word for the dataset": (lambda points: declared(points, 8, dataset="cnn"), "CURVE-DATASET"),
    "a part of a pass": (
        lambda points: summary(points, 8, n_samples_completed=PASSES * BENCHMARK.samples - 1),
        "CURVE-DATASET",
    ),
    "an unknown model": (lambda points: all_named(points, "llama-8b"), "CURVE-MODEL"),
    "a seed that no server takes": (
        lambda points: config(points, 8, lambda content: content["model_params"].update(seed=2**63)),
        "POINT-SEEDS",
    ),
    "another seed than declared": (
        lambda points: config(
            points, 8, lambda content: content["settings"]["runtime"].update(scheduler_random_seed=42)
        ),
        "POINT-SEEDS",
    ),
    "a run that ended early": (ended_early, "POINT-WHOLE"),
    "a run that was not completed": (lambda points: summary(points, 8, complete=False), "POINT-WHOLE"),
    "first tokens at the moment of their request": (
        lambda points: summary_part(points, 8, "ttft", **dict.fromkeys(("min", "max", "avg"), 0)),
        "POINT-IMPOSSIBLE",
    ),
    "points of two clients": (lambda points: summary(points, 8, git_sha="0000000"), "CURVE-SOFTWARE"),
    "points of two drivers": (
        lambda points: change_json(
            points[8] / "system_desc.json", lambda content: content["node_types"][0].update(driver="550.1")
        ),
        "CURVE-SOFTWARE",
    ),
    "a client without a commit": (
        lambda points: [summary(points, concurrency, git_sha=None) for concurrency in points],
        "POINT-CLIENT",
    ),
}


def test_a_curve_that_keeps_the_rules_has_no_finding(points):
    assert codes(points) == []


@pytest.mark.parametrize("hole", HOLES)
def test_each_hole_has_a_finding(points, hole):
    change, code = HOLES[hole]
    change(points)
    assert code in codes(points)


def less_than_a_pass(points):
    samples = BENCHMARK.samples - 1
    summary(points, 8, n_samples_issued=samples, n_samples_completed=samples)
    config(points, 8, lambda content: content["settings"]["runtime"].update(n_samples_to_issue=samples))


def accuracy_ended_early(points, counts=None):
    counts = counts or {"issued": 900, "scored": 880, "empty": 10, "missing": 10}
    change_json(
        points[14] / "accuracy" / "accuracy_results.json",
        lambda content: content["accuracy_scores"][0].update(response_counts=counts),
    )


def test_a_request_of_the_accuracy_run_that_failed_has_a_finding(points):
    counts = {"issued": BENCHMARK.accuracy_samples, "scored": BENCHMARK.accuracy_samples - 1, "empty": 1, "missing": 0}
    accuracy_ended_early(points, counts)
    assert "POINT-WHOLE" in codes(points)


def test_a_window_of_four_passes_whose_last_one_is_a_part_has_no_finding(points):
    samples = 3 * BENCHMARK.samples + 1
    steady_state(points, 14, lambda block: block["window"].update(super_pass_end=4, n_samples=samples))
    assert codes(points) == []


FAULTS = {
    "samples of the accuracy run were not answered": accuracy_ended_early,
    "requests failed": lambda points: summary(points, 8, n_samples_failed=6),
    "not each sample of the dataset was answered": less_than_a_pass,
    "samples were not answered": lambda points: summary(
        points, 8, n_samples_completed=(PASSES - 1) * BENCHMARK.samples
    ),
    "the window is too short for its status": lambda points: steady_state(
        points, 14, lambda block: block["window"].update(n_samples=3 * BENCHMARK.samples)
    ),
    "the run has fewer passes than a window needs": fewer_passes,
    "the window has more samples than its passes": lambda points: steady_state(
        points, 14, lambda block: block["window"].update(super_pass_end=4)
    ),
    "the window is shorter than its status says": lambda points: steady_state(
        points, 54, lambda block: block["window"].update(duration_s=1100.0)
    ),
    "a window that was not found is official": lambda points: steady_state(
        points, 54, lambda block: block.update(verdict="not found")
    ),
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_check_of_several_parts_makes_each(points, words):
    FAULTS[words](points)
    (curve,), _ = read_curves(points[8].parent)
    assert words in [finding.what for finding in findings_at(Stage.CURVE, curve)]


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("ttft", dict.fromkeys(("min", "max", "avg"), 0), "ttft.max"),
        ("ttft", {"min": 0}, "ttft.min"),
        ("ttft", {"percentiles": {"50.0": 0, "90.0": 0, "99.0": 0}}, "ttft.percentiles.99.0"),
        ("ttft", {"max": 2e9}, "ttft.max"),  # the largest latency is 1 s
        ("tpot", {"percentiles": {"99.0": 1e12}}, "tpot.max"),
        ("tpot", {"percentiles": {"90.0": 3e6, "99.0": 2.9e6}}, "tpot.percentiles.99.0"),
        ("tpot", {"early_stopping_percentiles": {"99.0": 1e12, "99.9": None}}, "tpot.max"),
        ("latency", {"min": -5}, "latency.min"),
        ("output_sequence_lengths", {"max": 0}, "output_sequence_lengths.max"),
        (None, {"tps": 0.0}, "tps"),
        (None, {"n_samples_completed": 0}, "n_samples_completed"),
    ],
)
def test_a_figure_that_no_run_has_is_named(points, name, fields, words):
    change = (lambda: summary_part(points, 14, name, **fields)) if name else (lambda: summary(points, 14, **fields))
    summary_part(points, 14, "latency", max=1e9)
    assert "POINT-IMPOSSIBLE" not in codes(points)
    change()
    (curve,), _ = read_curves(points[8].parent)
    findings = [finding for finding in findings_at(Stage.CURVE, curve) if finding.code == "POINT-IMPOSSIBLE"]
    assert words in [finding.field for finding in findings] and {finding.file for finding in findings} == {"point-14"}


def test_a_file_that_cannot_be_read_is_a_finding_and_the_rest_is_checked(points):
    (points[8] / "point.yaml").write_text("[")
    (points[11] / "performance" / "result_summary.json").write_text("{")
    score(points, 14, rouge2="0.55")
    (curve,), problems = read_curves(points[8].parent)
    assert {problem.file for problem in problems} == {"point-8/point.yaml", "point-11/performance/result_summary.json"}
    assert len(curve.points) == 7


def test_the_reason_why_the_official_checker_was_not_run_is_the_true_one(points, capsys):
    settings = EndpointsCheckSettings(folder=str(points[8].parent))
    report_endpoints_checks(settings)
    assert "not run, since it takes a bundle" in capsys.readouterr().out
    (points[8].parent / "results").mkdir()
    report_endpoints_checks(settings)
    assert "not run, as it was switched off" in capsys.readouterr().out


DOUBLED = "p0: &p0 [x, x]\n" + "".join(f"p{n}: &p{n} [*p{n - 1}, *p{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("point.yaml", DOUBLED, "stands for more than 250,000 values"),
        ("config.yaml", "a: " + "[" * 10**5, "nested too deep"),
        ("config.yaml", f"settings: {{load_pattern: {{target_concurrency: {10**400}}}}}", "beyond 64 bits"),
        (
            "performance/result_summary.json",
            f'{{"n_samples_issued": {10**400}}}',
            "n_samples_issued is a number beyond",
        ),
        ("system_desc.json", "[" * 10**5, "system_desc.json"),
    ],
)
def test_a_file_that_costs_more_than_it_weighs_is_a_finding_of_one_line(points, name, text, why, capsys):
    (points[14] / name).write_text(text)
    with pytest.raises(SubmissionError, match="has errors"):
        report_endpoints_checks(EndpointsCheckSettings(folder=str(points[8].parent)))
    _, problems = read_curves(points[8].parent)
    (problem,) = [problem for problem in problems if problem.code == "FILE-UNREADABLE"]
    assert why in problem.what and "\n" not in problem.what
    assert "official checker: not run, as a file above cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("value", [[256], {"a": 1}, "256", True, -256, None], ids=str)
def test_a_concurrency_that_is_no_number_is_none(points, value):
    for concurrency in points:
        declared(points, concurrency, max_supported_concurrency=value)
    change_yaml(points[14] / "point.yaml", lambda content: content.update(concurrency=value))
    (curve,), _ = read_curves(points[8].parent)
    assert curve.c_max is None
    assert [point.concurrency for point in curve.points].count(None) == 1
    assert "CHECK-FAILED" not in {finding.code for finding in findings_at(Stage.CURVE, curve)}


def test_a_first_piece_that_is_stamped_after_the_end_of_its_answer_is_no_fault_of_a_run(points):
    """The reference client at ea33275 wrote such a summary on a busy machine: 5 of 33 answers came in one piece."""
    summary_part(points, 8, "tpot", min=-11118.46)
    assert "POINT-IMPOSSIBLE" not in codes(points)
    summary_part(points, 8, "tpot", percentiles={"50.0": -1.0})
    assert "POINT-IMPOSSIBLE" in codes(points)

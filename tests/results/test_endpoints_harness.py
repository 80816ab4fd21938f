"""Results of the endpoints harness: files of the form that published ones of round v6.1 have, with small numbers."""

import json
from pathlib import Path

import pytest
import yaml

from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import round_terms

FOLDER = Path("closed") / "Someone" / "results" / "System" / "deepseek-r1" / "Server"
PERFORMANCE, ACCURACY, CONFIG = "performance/result_summary.json", "accuracy/accuracy_results.json", "config.yaml"
#: Codes of what is measured; a tree as small as this one has other faults.
MEASURED = tuple(
    (
        "RESULT-INVALID LOG- LATENCY- METRIC- TOKENS- ACCURACY- SCORE- RESULT-FILES COMPLIANCE "
        "PERFORMANCE- FILE-UNEXPECTED FILE-UNREADABLE TTFT- SCENARIO-UNKNOWN"
    ).split()
)


def times(scale):
    percentiles = {"50.0": 205e6, "90.0": 253e6, "95.0": 267e6, "97.0": 277e6, "99.0": 303e6, "99.9": 1874e6}
    return {
        "min": 101e6 * scale,
        "max": 3580e6 * scale,
        "avg": 212e6 * scale,
        "percentiles": {key: value * scale for key, value in percentiles.items()},
        "early_stopping_percentiles": {key: value * scale * 1.01 for key, value in percentiles.items()},
    }


@pytest.fixture
def tree(tmp_path):
    seeds = round_terms("v6.1").seeds
    put(
        tmp_path,
        PERFORMANCE,
        {
            "version": "0.1.0",
            "n_samples_issued": 6000,
            "n_samples_completed": 6000,
            "n_samples_failed": 0,
            "complete": True,
            "state": "complete",
            "duration_ns": 2_318_000_000_000,
            "qps": 310.0,
            "tps": 310.0 * 3792,
            "ttft": times(1),
            "tpot": times(0.2),
            "latency": times(100),
            "output_sequence_lengths": {"avg": 3792.0},
        },
    )
    score = {"dataset_type": "accuracy", "score": 81.42, "total_samples": 4388}
    put(tmp_path, ACCURACY, {"accuracy_scores": [{**score, "output_sequence_lengths": {"avg": 3743.2}}]})
    stated = {"dataloader_random_seed": seeds.sample_index, "scheduler_random_seed": seeds.schedule}
    runtime = {"min_duration_ms": 600_000, **stated}
    put(tmp_path, CONFIG, {"type": "online", "settings": {"runtime": runtime, "load_pattern": {"target_qps": 325.0}}})
    (tmp_path / FOLDER / "README.md").write_text("# Run it\n")
    return tmp_path


def put(tree, name, content):
    path = tree / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content) if name == CONFIG else json.dumps(content))


def codes_of(tree, round_name="v6.1"):
    codes = {finding.code for finding in check_tree(tree, round_name=round_name).findings}
    return {code for code in codes if code.startswith(MEASURED)}


def test_a_result_of_the_endpoints_harness_is_read(tree):
    (submission,) = read_tree(tree)
    (result,) = submission.results
    run = result.performance
    assert submission.round == "v6.1" and run and run.metric and result.accuracy
    assert (str(run.metric), run.samples, run.harness) == ("1,175,520.00 tokens/s", 6000, "endpoints")
    assert run.loadgen_valid
    assert str(run.metric.source).endswith("performance/result_summary.json: tps")
    ttft, tpot = ((latency.name, round(latency.p99, 2), latency.limit) for latency in run.latencies)
    assert (ttft, tpot) == (("TTFT", 306.03, 2000), ("TPOT", 61.21, 80))
    assert (run.target_qps, run.min_duration, run.duration) == (325.0, 600.0, 2318.0)
    scores = {name: figure.value for name, figure in result.accuracy.figures.items()}
    assert scores == {"exact_match": 81.42, "tokens_per_sample": 3743.2}


def test_a_good_result_has_no_findings_of_what_was_measured(tree):
    assert codes_of(tree, "") == set()


def change(name, edit):
    def apply(tree):
        content = yaml.safe_load((tree / FOLDER / name).read_text())
        edit(content)
        put(tree, name, content)

    return apply


@pytest.mark.parametrize(
    ("apply", "code"),
    [
        (change(PERFORMANCE, lambda content: content.update(n_samples_failed=3)), "RESULT-INVALID"),
        (change(PERFORMANCE, lambda content: content.update(n_samples_completed=5990)), "RESULT-INVALID"),
        (change(PERFORMANCE, lambda content: content.update(complete=False, state="interrupted")), "RESULT-INVALID"),
        (change(PERFORMANCE, lambda content: content.update(ttft=times(0))), "RESULT-INVALID"),
        (change(PERFORMANCE, lambda content: content.update(tps=0)), "RESULT-INVALID"),
        (change(PERFORMANCE, lambda content: content["ttft"].update(max=1e9)), "RESULT-INVALID"),
        (change(PERFORMANCE, lambda content: content.update(ttft=times(7))), "LATENCY-LIMIT"),
        (change(PERFORMANCE, lambda content: content.pop("tps")), "METRIC-MISSING"),
        (change(PERFORMANCE, lambda content: content.update(tps=310.0 * 8000)), "TOKENS-RANGE"),
        (change(CONFIG, lambda content: content["settings"]["runtime"].update(scheduler_random_seed=42)), "LOG-SEEDS"),
        (
            change(CONFIG, lambda content: content["settings"]["runtime"].update(min_duration_ms=1000)),
            "LOG-MIN-DURATION",
        ),
        (change(CONFIG, lambda content: content.update(type="offline")), "LOG-SCENARIO"),
        (change(ACCURACY, lambda content: content["accuracy_scores"][0].update(score=70.0)), "ACCURACY-TARGET"),
        (change(ACCURACY, lambda content: content["accuracy_scores"][0].update(total_samples=100)), "ACCURACY-SAMPLES"),
        (lambda tree: (tree / FOLDER / "README.md").unlink(), "RESULT-FILES"),
        (lambda tree: (tree / FOLDER / CONFIG).write_text("a: [1"), "FILE-UNREADABLE"),
    ],
)
def test_each_fault_of_such_a_result_is_found(tree, apply, code):
    apply(tree)
    assert code in codes_of(tree)


@pytest.mark.parametrize("value", ["a text", None, -1, True, [], {}, 1e400, [[]]])
def test_values_of_other_types_are_left_out_and_no_crash(tree, value):
    """Reading raises nothing; which findings there are depends on the key."""
    for name in (PERFORMANCE, ACCURACY, CONFIG):
        content = yaml.safe_load((tree / FOLDER / name).read_text())
        for key in content:
            put(tree, name, {**content, key: value})
            codes_of(tree)
        put(tree, name, content)
    put(tree, ACCURACY, {"accuracy_scores": [value]})
    codes_of(tree)

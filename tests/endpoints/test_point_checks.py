"""Changes that a cheater makes to a sound curve, one at a time: each has its finding, and no other check has one."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_points import BENCHMARK, POINTS, change_json, change_yaml, write_points
from test_curve_checks import HOLES, config, declared, score, summary, summary_part

from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.files import digests_of, write_json, write_text
from cm4vllm.results.checks import CHECKS, findings_at
from cm4vllm.results.endpoints.curves import read_curves

SUMMARY = Path("performance") / "result_summary.json"


def findings(points):
    (curve,), _ = read_curves(points[8].parent)
    return findings_at(Stage.CURVE, curve)


def of_config(*path, value, at=14):
    """Return a change of one key of the client's configuration; `value` None removes it."""

    def change(points):
        def set_value(content):
            for key in path[:-1]:
                content = content[key]
            if value is None:
                del content[path[-1]]
            else:
                content[path[-1]] = value

        config(points, at, set_value)

    return change


def of_entry(at=14, **fields):
    """Return a change of the entry of an accuracy run."""
    return lambda points: change_json(
        points[at] / "accuracy" / "accuracy_results.json", lambda content: content["accuracy_scores"][0].update(fields)
    )


def of_distribution(name, **fields):
    return lambda points: summary_part(points, 14, name, **fields)


def of_summary(**fields):
    return lambda points: summary(points, 14, **fields)


def of_declared(**fields):
    return lambda points: declared(points, 14, **fields)


def written(name, text, at=14):
    """Return a change that replaces a file of a point."""
    return lambda points: write_text(points[at] / name, text)


def copied(name):
    """Return a change that copies a file of one point to another."""
    return lambda points: shutil.copyfile(points[14] / name, points[32] / name)


def linked(points):
    path = points[32] / SUMMARY
    path.unlink()
    path.symlink_to(points[14] / SUMMARY)


def without_score(points):
    change_json(
        points[14] / "accuracy" / "accuracy_results.json", lambda content: content["accuracy_scores"][0].pop("score")
    )


def without_seed(key):
    def change(content):
        del content["runtime_settings"]["runtime"][key]

    return lambda points: change_yaml(points[14] / "point.yaml", change)


def of_histogram(name, counts):
    return lambda points: summary_part(points, 14, name, histogram={**histogram_of(points, name), "counts": counts})


def histogram_of(points, name):
    (curve,), _ = read_curves(points[8].parent)
    return next(point.summary[name]["histogram"] for point in curve.points if point.concurrency == 14)


def scaled(factor, *names):
    """Return a change of a summary that multiplies all values of distributions."""

    def change(content):
        for name in names:
            part = content[name]
            for key in ("total", "min", "max", "median", "avg", "std_dev"):
                part[key] *= factor
            part["percentiles"] = {key: factor * value for key, value in part["percentiles"].items()}
            part["histogram"]["buckets"] = [[factor * low, factor * high] for low, high in part["histogram"]["buckets"]]

    return change


def times_of(factor, *names):
    return lambda points: change_json(points[14] / SUMMARY, scaled(factor, *names))


def of_duration(factor):
    """Return a change of the time of a run, with the rates that follow from it."""

    def change(content):
        content["duration_ns"] *= factor
        for rate in ("qps", "tps"):
            content[rate] /= factor

    return lambda points: change_json(points[14] / SUMMARY, change)


def recorded(point, **fields):
    """Write our record of a point, with the digests of its files."""
    files = digests_of(point, without="point.json")
    window = {"status": "windowable", "window": {"n_samples": 5 * BENCHMARK.samples}}
    facts = {"files": files, "duration_s": 1800.0, "terms": {"concurrency": 14}, "steady_state": window}
    write_json(point / "point.json", {**facts, **fields})


def with_record(change):
    def make(points):
        recorded(points[14])
        change(points)

    return make


ZERO = "0" * 64
GENERATION = {"generation_config_override": {"max_new_tokens": 8}}
MUTATIONS = {
    # 1. the configuration against the point
    "another concurrency": (of_config("settings", "load_pattern", "target_concurrency", value=28), {"POINT-CONFIG"}),
    "no concurrency": (of_config("settings", "load_pattern", "target_concurrency", value=None), {"POINT-CONFIG"}),
    "another load pattern": (of_config("settings", "load_pattern", "type", value="poisson"), {"POINT-CONFIG"}),
    "no streaming": (of_config("model_params", "streaming", value="off"), {"POINT-CONFIG"}),
    "streaming that is not stated": (of_config("model_params", "streaming", value=None), {"POINT-CONFIG"}),
    "the name of another model": (
        lambda points: [of_config("model_params", "name", value="openai/gpt-oss-120b", at=at)(points) for at in POINTS],
        {"POINT-CONFIG"},
    ),
    "no name of a model": (
        lambda points: [of_config("model_params", "name", value="", at=at)(points) for at in POINTS],
        {"POINT-CONFIG"},
    ),
    "another temperature": (of_config("model_params", "temperature", value=0.7), {"POINT-CONFIG"}),
    "a temperature that is no number": (of_config("model_params", "temperature", value=float("nan")), {"POINT-CONFIG"}),
    "the temperature of the server": (of_config("model_params", "temperature", value=None), {"POINT-CONFIG"}),
    "shorter answers": (of_config("model_params", "max_new_tokens", value=64), {"POINT-CONFIG"}),
    "shorter answers of the dataset": (
        lambda points: config(points, 14, lambda content: content["datasets"][0].update(GENERATION)),
        {"POINT-CONFIG"},
    ),
    "a part of the dataset": (
        lambda points: config(points, 14, lambda content: content["datasets"][0].update(samples=100)),
        {"POINT-CONFIG"},
    ),
    "another dataset": (
        lambda points: config(points, 14, lambda content: content["datasets"][0].update(name="open_orca")),
        {"POINT-CONFIG"},
    ),
    "no dataset": (of_config("datasets", value=[]), {"POINT-CONFIG"}),
    "a warm-up that is not declared": (of_config("settings", "warmup", value={"enabled": True}), {"POINT-CONFIG"}),
    "the configuration of another run": (
        of_summary(run_config={"load_pattern": {"type": "concurrency", "target_concurrency": 28}}),
        {"POINT-CONFIG"},
    ),
    "an empty mapping": (written("config.yaml", "{}\n"), {"POINT-CONFIG"}),
    "an empty file": (written("config.yaml", ""), {"POINT-CONFIG"}),
    "a list": (written("config.yaml", "- a\n"), {"POINT-CONFIG"}),
    # 2. one run at two points
    "a copied summary": (copied(SUMMARY), {"POINT-TWICE", "POINT-CONCURRENCY"}),
    "a linked summary": (linked, {"POINT-TWICE", "POINT-CONCURRENCY"}),
    "a linked point": (lambda points: (points[8].parent / "r16").symlink_to(points[14]), {"POINT-TWICE"}),
    "copied times to the first token": (
        lambda points: change_json(
            points[11] / SUMMARY, lambda content: content.update(ttft=histogram_owner(points)["ttft"])
        ),
        {"POINT-TWICE"},
    ),
    "one accuracy run for two points": (
        lambda points: [of_entry(at, duration_s=61.234)(points) for at in (8, 14)],
        {"POINT-TWICE"},
    ),
    # 3. accuracy
    "an accuracy run of another dataset": (of_entry(dataset_name="open_orca"), {"POINT-ACCURACY"}),
    "an accuracy run without a dataset": (of_entry(dataset_name=""), {"POINT-ACCURACY"}),
    "a partial accuracy run": (of_entry(complete=False), {"POINT-ACCURACY"}),
    "a score that is no number": (lambda points: score(points, 14, rouge1="nan"), {"POINT-ACCURACY"}),
    "an endless score": (lambda points: score(points, 14, rouge1="Infinity"), {"POINT-ACCURACY"}),
    "a score above 100": (lambda points: score(points, 14, rouge1=999), {"POINT-ACCURACY"}),
    "a score below 0": (lambda points: score(points, 14, rouge1=-1), {"POINT-ACCURACY"}),
    "a score that is a text": (lambda points: score(points, 14, rouge1="good"), {"POINT-ACCURACY"}),
    "no score": (without_score, {"POINT-ACCURACY"}),
    "an empty score": (of_entry(score={}), {"POINT-ACCURACY"}),
    "no entry": (written("accuracy/accuracy_results.json", '{"accuracy_scores": []}'), {"POINT-ACCURACY"}),
    "no accuracy run": (lambda points: shutil.rmtree(points[14] / "accuracy"), {"POINT-ACCURACY"}),
    "answers that are all empty": (
        of_entry(response_counts={"issued": 13368, "scored": 0, "empty": 13368, "missing": 0}),
        {"POINT-ACCURACY", "POINT-WHOLE"},
    ),
    "some empty answers": (
        of_entry(response_counts={"issued": 13368, "scored": 13300, "empty": 68, "missing": 0}),
        {"POINT-ACCURACY", "POINT-WHOLE"},
    ),
    "answers that were not counted": (of_entry(response_counts={}), {"POINT-ACCURACY"}),
    "counts that do not add up": (
        of_entry(response_counts={"issued": 13368, "scored": 10, "empty": 0, "missing": 0}),
        {"POINT-ACCURACY"},
    ),
    "a part of the accuracy samples": (
        of_entry(unit_samples=100, response_counts={"issued": 100, "scored": 100, "empty": 0, "missing": 0}),
        {"POINT-ACCURACY"},
    ),
    "no number of accuracy samples": (of_entry(unit_samples=None), {"POINT-ACCURACY"}),
    # 4. distributions
    "percentiles that fall": (
        of_distribution("input_sequence_lengths", percentiles={"50.0": 900, "90.0": 800}),
        {"POINT-IMPOSSIBLE"},
    ),
    "a histogram with few samples": (of_histogram("latency", [10, 0, 1]), {"POINT-IMPOSSIBLE"}),
    "a histogram with more samples": (of_histogram("ttft", [72188, 1, 8020]), {"POINT-IMPOSSIBLE"}),
    "a histogram of answers in pieces": (of_histogram("tpot", [72188, 8021, 0]), {"POINT-IMPOSSIBLE"}),
    "a histogram of other values": (of_histogram("ttft", [8020, 0, 72188]), {"POINT-IMPOSSIBLE"}),
    "a histogram that is none": (of_distribution("ttft", histogram={"buckets": [[1, 2]]}), {"POINT-IMPOSSIBLE"}),
    "a lower 90th percentile": (
        lambda points: summary_part(points, 14, "tpot", percentiles={"90.0": 1, "50.0": 1}, min=1, median=1),
        {"POINT-IMPOSSIBLE"},
    ),
    "another mean": (lambda points: summary_part(points, 14, "ttft", avg=2.6e7), {"POINT-IMPOSSIBLE"}),
    "another median": (of_distribution("ttft", median=2.9e7), {"POINT-IMPOSSIBLE"}),
    "a large deviation": (of_distribution("ttft", std_dev=2.9e7), {"POINT-IMPOSSIBLE"}),
    "first tokens after the answers": (times_of(20, "ttft"), {"POINT-IMPOSSIBLE", "POINT-TOKENS"}),
    # 5. rates
    "another rate of samples": (of_summary(qps=100.0), {"POINT-IMPOSSIBLE"}),
    "another rate of tokens": (of_summary(tps=9999.0), {"POINT-IMPOSSIBLE"}),
    "no rate": (of_summary(tps=0), {"POINT-IMPOSSIBLE"}),
    "a rate below 0": (of_summary(qps=-5.0), {"POINT-IMPOSSIBLE"}),
    "a huge rate": (of_summary(tps=1e300), {"POINT-IMPOSSIBLE"}),
    "more samples than were issued": (of_summary(n_samples_issued=13368), {"POINT-IMPOSSIBLE", "POINT-WHOLE"}),
    "more ends of answers than answers": (
        of_summary(finish_reason_counts={"stop": 80208, "length": 80208}),
        {"POINT-IMPOSSIBLE"},
    ),
    "an answer longer than the run": (of_distribution("latency", max=1.9e12), {"POINT-IMPOSSIBLE"}),
    "a rate that is a text": (of_summary(tps="many"), {"POINT-IMPOSSIBLE"}),
    "a part of a sample": (of_summary(n_samples_failed=0.5), {"POINT-IMPOSSIBLE"}),
    "no time": (of_summary(duration_ns=None), {"POINT-FIGURES"}),
    "no tokens": (of_summary(output_sequence_lengths={}, tps=None), {"POINT-FIGURES"}),
    "no latency": (of_summary(latency={}), {"POINT-FIGURES"}),
    "no TPOT": (of_summary(tpot={}), {"POINT-FIGURES"}),
    "more tokens than were asked for": (
        lambda points: [times_of(3, "output_sequence_lengths")(points), summary(points, 14, tps=3 * 4456.0)],
        {"POINT-TOKENS", "CURVE-LENGTHS"},
    ),
    "many empty answers": (
        lambda points: [
            times_of(0.5, "output_sequence_lengths")(points),
            of_histogram("output_sequence_lengths", [32000, 0, 8104])(points),
            summary(points, 14, tps=4456.0 / 2),
            summary_part(points, 14, "output_sequence_lengths", avg=100.0),
        ],
        {"POINT-IMPOSSIBLE", "POINT-TOKENS"},
    ),
    "shorter times per token": (times_of(0.25, "tpot"), {"POINT-TOKENS"}),
    "half the times per token": (times_of(0.5, "tpot"), {"POINT-TOKENS"}),
    "more tokens than their time allows": (times_of(4, "tpot"), {"POINT-TOKENS"}),
    "prompts of another dataset": (times_of(1.5, "input_sequence_lengths"), {"CURVE-LENGTHS"}),
    # 6. seeds
    "no seed set": (of_declared(seed_set=""), {"POINT-SEEDS", "CURVE-DECLARED"}),
    "a seed set that is a list": (of_declared(seed_set=[]), {"POINT-SEEDS", "CURVE-DECLARED"}),
    "no declared seed of the scheduler": (without_seed("scheduler_rng_seed"), {"POINT-SEEDS"}),
    "no declared seed of the samples": (without_seed("sample_index_rng_seed"), {"POINT-SEEDS"}),
    "no declared seed of the model": (without_seed("model_seed"), {"POINT-SEEDS"}),
    "no seed of the scheduler": (
        of_config("settings", "runtime", "scheduler_random_seed", value=None),
        {"POINT-SEEDS"},
    ),
    "no seed of the samples": (of_config("settings", "runtime", "dataloader_random_seed", value=None), {"POINT-SEEDS"}),
    "an unknown seed set with other seeds": (
        lambda points: [
            *(declared(points, at, seed_set="Z") for at in POINTS),
            of_config("settings", "runtime", "scheduler_random_seed", value=7)(points),
        ],
        {"POINT-SEEDS"},
    ),
    # what else a cheater tries
    "requests with a penalty": (of_config("model_params", "repetition_penalty", value=2.0), {"POINT-CONFIG"}),
    "requests with a penalty at all points": (
        lambda points: [of_config("model_params", "repetition_penalty", value=2.0, at=at)(points) for at in POINTS],
        {"POINT-CONFIG"},
    ),
    "another tokenizer at one point": (of_config("model_params", "tokenizer_name", value="gpt2"), {"POINT-CONFIG"}),
    "tokens of longer words": (
        lambda points: [times_of(1.1, "output_sequence_lengths")(points), summary(points, 14, tps=1.1 * 4456.0)],
        {"CURVE-LENGTHS"},
    ),
    "other answers in the accuracy run": (of_entry(output_sequence_lengths={"avg": 127.0}), {"CURVE-LENGTHS"}),
    "a score of the benchmark left out": (
        lambda points: change_json(
            points[14] / "accuracy" / "accuracy_results.json",
            lambda content: content["accuracy_scores"][0]["score"].pop("rouge2"),
        ),
        {"POINT-ACCURACY"},
    ),
    "more common pairs of words than words": (lambda points: score(points, 14, rouge2=60), {"POINT-ACCURACY"}),
    "an accuracy run that is taken for the performance run": (of_entry(dataset_type="performance"), {"POINT-ACCURACY"}),
    "an accuracy run that is not declared": (of_declared(dataset_type="Performance"), {"POINT-ACCURACY"}),
    "another precision": (of_declared(model_precision="FP4"), {"CURVE-DECLARED"}),
    "another model behind a link": (of_declared(link_to_model="https://example.org/small"), {"CURVE-DECLARED"}),
    "a window of other passes": (
        lambda points: change_yaml(
            points[14] / "point.yaml", lambda content: content["steady_state"]["window"].update(super_pass_size=13)
        ),
        {"POINT-WINDOW"},
    ),
    "a window without numbers": (
        lambda points: change_yaml(
            points[14] / "point.yaml", lambda content: content["steady_state"].update(window={})
        ),
        {"POINT-WINDOW"},
    ),
    "an interrupted run that calls itself complete": (of_summary(state="interrupted"), {"POINT-WHOLE"}),
    "a client that was changed": (of_summary(git_sha="ea33275-dirty"), {"POINT-CLIENT", "CURVE-SOFTWARE"}),
    "percentiles that no mean fits": (
        lambda points: summary_part(
            points, 14, "tpot", histogram=None, percentiles={"90.0": 5e6, "50.0": 1e6}, median=1e6, min=1e6
        ),
        {"POINT-IMPOSSIBLE"},
    ),
    "the 90th percentile of TPOT alone": (of_summary(tpot={"percentiles": {"90.0": 1e5}}), {"POINT-FIGURES"}),
    "fewer samples than declared": (
        lambda points: change_yaml(
            points[14] / "point.yaml", lambda content: content["runtime_settings"].update(min_sample_count=10**6)
        ),
        {"POINT-WHOLE"},
    ),
    # 7. private text
    "the home folder of a person": (of_declared(model_notes="/home/jdoe42/weights"), {"POINT-PRIVATE"}),
    "an address": (of_config("endpoint_config", value={"endpoints": ["http://10.20.30.40:8000"]}), {"POINT-PRIVATE"}),
    "an address of IPv6": (
        of_config("endpoint_config", value={"endpoints": ["http://[fd00:1::5]:8000"]}),
        {"POINT-PRIVATE"},
    ),
    "the name of a server": (
        of_config("endpoint_config", value={"endpoints": ["http://gpu17.example.org:8000"]}),
        {"POINT-PRIVATE"},
    ),
    "a key of a service": (
        written("src/vllm/README.md", "export HF_TOKEN=hf_" + "aB3dE5gH7jK9mN1pQ3sT5vX7zA2cE4gI6k"[:34] + "\n"),
        {"POINT-PRIVATE"},
    ),
    "the name of a machine": (
        lambda points: change_json(points[14] / "system_desc.json", lambda content: content.update(hostname="gpu17")),
        {"POINT-PRIVATE"},
    ),
    # 8. C_max
    "another C_max": (of_declared(max_supported_concurrency=300), {"CURVE-MAXIMUM"}),
    "no C_max": (of_declared(max_supported_concurrency=None), {"CURVE-MAXIMUM"}),
    "another C_max of the system": (
        lambda points: change_json(
            points[14] / "system_desc.json", lambda content: content.update(max_supported_concurrency=300)
        ),
        {"CURVE-MAXIMUM"},
    ),
    # 9. digests
    "one digest for all files": (lambda points: recorded(points[14], files={"a": ZERO, "b": ZERO}), {"POINT-RECORD"}),
    "no digests": (lambda points: recorded(points[14], files={}), {"POINT-RECORD"}),
    "what is no digest": (lambda points: recorded(points[14], files={"a": "yes", "b": "no"}), {"POINT-RECORD"}),
    "a file that was changed": (with_record(lambda points: summary(points, 14, version="0.2.0")), {"POINT-RECORD"}),
    "a file that was removed": (
        with_record(
            lambda points: [
                shutil.rmtree(points[14] / "accuracy"),
                declared(points, 14, dataset_type="Performance"),
                recorded(points[14], files={"accuracy/accuracy_results.json": ZERO}),
            ]
        ),
        {"POINT-RECORD"},
    ),
    "the record of another run": (lambda points: recorded(points[14], duration_s=900.0), {"POINT-RECORD"}),
    "a better steady state than the record's": (
        lambda points: recorded(points[14], steady_state={"status": "insufficient_passes"}),
        {"POINT-RECORD"},
    ),
    # 10. time
    "half the time": (of_duration(0.5), {"POINT-CONCURRENCY", "POINT-WINDOW"}),
    "three times the time": (of_duration(3), {"POINT-CONCURRENCY"}),
    "half the latencies": (times_of(0.4, "latency", "tpot", "ttft"), {"POINT-CONCURRENCY"}),
    "two points at one concurrency": (
        lambda points: [
            change_yaml(points[11] / "point.yaml", lambda content: content.update(concurrency=8)),
            of_config("settings", "load_pattern", "target_concurrency", value=8, at=11)(points),
        ],
        {"POINT-TWICE", "POINT-CONCURRENCY"},
    ),
}


def histogram_owner(points):
    (curve,), _ = read_curves(points[8].parent)
    return next(point.summary for point in curve.points if point.concurrency == 14)


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_has_its_finding_and_no_other(points, name):
    change, expected = MUTATIONS[name]
    change(points)
    assert {finding.code for finding in findings(points)} == expected


@pytest.mark.parametrize(
    ("content", "accuracy"),
    [
        ({"accuracy_scores": [{"dataset_name": "performance", "dataset_type": "performance", "score": 1}]}, None),
        ({"performance": {"score": 1}}, None),
        ({"accuracy_scores": []}, 0),
        ({"cnn": {"score": 40}, "performance": {"score": 1}}, 1),
        ({"accuracy_scores": {"cnn": {"score": 40}}}, 1),
        ({"accuracy_scores": [{"dataset_name": "performance", "dataset_type": "accuracy", "score": 40}]}, 1),
    ],
)
def test_entries_of_accuracy_runs_are_told_from_the_score_of_the_performance_run(points, content, accuracy):
    write_json(points[54] / "accuracy" / "accuracy_results.json", content)
    (curve,), _ = read_curves(points[8].parent)
    (point,) = [point for point in curve.points if point.concurrency == 54]
    assert (None if point.accuracy is None else len(point.accuracy)) == accuracy
    assert len(point.scores) == (accuracy or 0)


def test_a_curve_of_an_agentic_benchmark_has_no_finding_of_what_is_not_known_of_it(points):
    for concurrency in points:
        declared(points, concurrency, model_name="kimi-k3", dataset="agentic_coding")
        of_config("model_params", "name", value="moonshotai/Kimi-K3", at=concurrency)(points)
    assert findings(points) == []


def test_a_dataset_that_is_measured_with_alone_may_have_another_limit_of_tokens(points):
    """The performance run of gpt-oss-120b has a dataset of its own, and the client an example with fewer tokens."""
    for concurrency in points:
        declared(points, concurrency, model_name="gpt-oss-120b", dataset="mlperf_gpt_oss_performance")
        config(
            points,
            concurrency,
            lambda content: content["model_params"].update(
                name="openai/gpt-oss-120b", temperature=1.0, max_new_tokens=10240
            ),
        )
        config(
            points,
            concurrency,
            lambda content: content["datasets"][0].update(name="perf", path="perf_eval_ref.parquet"),
        )
    severities = {finding.severity for finding in findings(points) if finding.code == "POINT-CONFIG"}
    assert severities == {Severity.WARNING}


def test_a_run_of_all_requests_at_once_has_a_bound_of_its_own(points):
    for name, change in (("point.yaml", "runtime_settings"), ("config.yaml", "settings")):
        change_yaml(
            points[256] / name,
            lambda content, key=change: content[key].update(
                load_pattern="max_throughput" if key == "runtime_settings" else {"type": "max_throughput"}
            ),
        )
    values = {"offline": "dedicated", "concurrency": BENCHMARK.samples}
    change_yaml(points[256] / "point.yaml", lambda content: content.update(values))
    at_once = 6 * BENCHMARK.samples
    change_json(points[256] / SUMMARY, scaled(0.5 * at_once / 256, "latency", "ttft", "tpot"))
    assert "POINT-CONCURRENCY" not in {finding.code for finding in findings(points)}
    change_json(points[256] / SUMMARY, scaled(0.1, "latency", "ttft", "tpot"))
    assert "POINT-CONCURRENCY" in {finding.code for finding in findings(points)}


def test_a_bundle_is_searched_for_private_text_with_its_program_and_documents(points, tmp_path):
    place = tmp_path / "bundle" / "org" / "id"
    for concurrency, folder in points.items():
        shutil.copytree(folder, place / "results" / "system" / "llama3_1-8b" / f"r{concurrency}")
    write_text(place / "docs" / "README.md", "http://10.20.30.40:8000\n")
    write_text(place / "src" / "vllm" / "run.sh", "cd /home/jdoe42\ncurl http://10.20.30.40:8000\n")
    (curve,), _ = read_curves(tmp_path / "bundle")
    private = [finding for finding in findings_at(Stage.CURVE, curve) if finding.code == "POINT-PRIVATE"]
    assert {(finding.file, finding.value) for finding in private} == {
        ("org/id/docs/README.md", "10.20.30.40"),
        ("org/id/src/vllm/run.sh", "jdoe42"),
    }
    (curve,), _ = read_curves(place / "results" / "system" / "llama3_1-8b")
    assert [finding for finding in findings_at(Stage.CURVE, curve) if finding.code == "POINT-PRIVATE"] == []


def test_each_check_of_a_curve_is_shown_by_a_change():
    shown = {code for _, code in HOLES.values()} | {code for _, expected in MUTATIONS.values() for code in expected}
    assert shown == {check.code for check in CHECKS.values() if check.stage is Stage.CURVE}


ODD = [
    None,
    True,
    False,
    0,
    -1,
    2**64,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "a",
    "1e400",
    "\0",
    "9" * 400,
    [],
    [[]],
]
ODD += [
    [None],
    {},
    {"a": {}},
    [1, "a", None],
    {"": None},
    "http://[",
    ["http://[::1"],
    [{"type": "performance", "name": 5}],
]
DOCUMENTS = [
    "point.yaml",
    "config.yaml",
    "system_desc.json",
    str(SUMMARY),
    "accuracy/accuracy_results.json",
    "point.json",
]


def places(value, path=()):
    """Yield the paths of all parts of a document."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


def with_value(document, path, value):
    """Return a document with another value in the place of one of its parts."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = with_value(document[path[0]], path[1:], value)
    return copy


@pytest.fixture(scope="module")
def read_points(tmp_path_factory):
    """Two points of a curve, of which the first has a record, and the documents of the first."""
    folder = tmp_path_factory.mktemp("odd")
    points = write_points(folder)
    for concurrency in set(points) - {14, 32}:
        shutil.rmtree(points[concurrency])
    recorded(points[14])
    return folder, {name: yaml.safe_load((points[14] / name).read_text()) for name in DOCUMENTS}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.randoms(use_true_random=False))
def test_no_value_in_a_document_keeps_a_check_from_being_made(read_points, choice):
    folder, documents = read_points
    name, value = choice.choice(DOCUMENTS), choice.choice(ODD)
    path = choice.choice(list(places(documents[name])))
    changed = with_value(documents[name], path, value)
    text = json.dumps(changed) if name.endswith("json") else yaml.safe_dump(changed)
    file = folder / "point-14" / name
    before = file.read_text()
    try:
        write_text(file, text)
        curves, _ = read_curves(folder)
        for curve in curves:
            failed = [str(finding) for finding in findings_at(Stage.CURVE, curve) if finding.code == "CHECK-FAILED"]
            assert failed == [], (name, path, value)
    finally:
        write_text(file, before)

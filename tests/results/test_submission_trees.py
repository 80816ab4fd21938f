import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cm4vllm.common.errors import SubmissionError
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.submission_trees import read_tree

H100 = "4xH100-SXM-80GB_vLLM_FP8-reference-cpu-pytorch-v2.3.1-default_config"
RTX = "GO_2xRTX4090-reference-cpu-pytorch-v2.2.1-default_config"
FP8_7B = "neuralmagic_Llama-2-7b-chat-hf-FP8"


def log_of(path):
    """Read a detail log as simply as can be: independently of the package."""
    lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]
    return {line["key"]: line["value"] for line in lines}


def logged(figure, log):
    return log[figure.source.field] / (1e6 if figure.unit == "ms" else 1)


def only(submissions):
    (submission,) = submissions
    return submission


def test_every_figure_of_the_published_tree_is_loadgens_own(neural_magic):
    root = neural_magic.parents[1]
    submission = only(read_tree(root))
    assert len(submission.results) == 10
    seen = 0
    for result in submission.results:
        assert result.performance and result.accuracy
        log = log_of(root / result.performance.log)
        figures = result.performance.figures
        tokens = figures.value("tokens_per_second") * figures.value("duration") / figures.value("samples")
        assert figures.value("tokens_per_sample") == pytest.approx(tokens, rel=1e-12)
        derived = ("samples", "duration", "tokens_per_sample")
        read = [figure for figure in figures.values() if figure.name not in derived]
        for figure in read:
            assert figure.value == logged(figure, log), str(figure.source)
        seen += len(read)
        numbers = {
            key
            for key, value in log.items()
            if key.startswith("result_") and isinstance(value, int | float) and not isinstance(value, bool)
        }
        assert numbers - {figure.source.field for figure in read} <= OTHERS
        assert result.performance.loadgen_valid == (log["result_validity"] == "VALID")
        for name in ("min_duration_ms", "target_qps", "scenario"):
            assert result.performance.settings[name] == log[f"effective_{name}"]
    assert seen == 180  # 3 x 32 in Server, 7 x 12 in Offline


#: Rates that no rule compares.
OTHERS = {"result_token_throughput", "result_token_throughput_with_loadgen_overhead"}


def test_scores_and_hashes_are_those_of_accuracy_txt(neural_magic):
    for result in only(read_tree(neural_magic.parents[1])).results:
        assert result.accuracy
        text = (result.accuracy.folder / "accuracy.txt").read_text()
        for label in ("rouge1", "rouge2", "rougeL", "tokens_per_sample"):
            (value,) = re.findall(rf"'{label}': ([\d.]+)", text)
            assert result.accuracy.figures[label].value == float(value)
        assert re.findall(r"hash=(\w+)", text) == [result.accuracy.hash]


def by_name(submission):
    return {(result.system, result.model, result.scenario): result for result in submission.results}


def test_a_result_has_its_round_benchmark_limits_and_weights(neural_magic):
    submission = only(read_tree(neural_magic.parents[1]))
    assert (submission.round, submission.division, submission.submitter) == ("v4.1", "open", "NeuralMagic")
    assert submission.problems == ()
    result = by_name(submission)[H100, "llama2-70b-99", "Server"]
    assert result.performance and result.performance.metric
    assert str(result.performance.metric) == "1,468.24 tokens/s"
    assert [(latency.name, str(latency.p99), latency.limit) for latency in result.performance.latencies] == [
        ("TTFT", "502.1 ms", 2000),
        ("TPOT", "94.1 ms", 200),
    ]
    assert result.measurements["input_data_types"] and "target_qps" in result.user_conf
    system = submission.system(H100)
    assert system and system.description["accelerators_per_node"]
    mapped = by_name(submission)[RTX, FP8_7B, "Server"]
    assert (mapped.benchmark, mapped.mapped) == ("llama2-70b-99.9", True)


def test_a_tree_may_be_named_by_a_folder_in_it(neural_magic):
    whole = only(read_tree(neural_magic.parents[1]))
    for folder in (neural_magic.parent, neural_magic):
        part = only(read_tree(folder))
        assert [result.folder for result in part.results] == [result.folder for result in whole.results]
    with pytest.raises(SubmissionError, match="holds no submission"):
        read_tree(neural_magic / "systems")


def test_divisions_and_submitters_are_submissions_of_their_own(tree):
    shutil.copytree(tree / "open", tree / "closed")
    shutil.copytree(tree / "open", tree / "network")
    shutil.copytree(tree / "open" / "NeuralMagic", tree / "open" / "Another")
    counts = [(submission.division, submission.submitter, len(submission.results)) for submission in read_tree(tree)]
    assert sorted(counts) == [
        ("closed", "NeuralMagic", 10),
        ("network", "NeuralMagic", 10),
        ("open", "Another", 10),
        ("open", "NeuralMagic", 10),
    ]


def test_the_layout_of_later_rounds_is_read(tree):
    home = tree / "open" / "NeuralMagic"
    before = only(read_tree(tree))
    for result in before.results:
        folder = Path(str(tree)) / result.folder
        old = home / "measurements" / folder.relative_to(home / "results")
        shutil.copy(old / f"{result.system}.json", folder / "measurements.json")
        shutil.copy(old / "user.conf", folder / "user.conf")
        (folder / "TEST06").mkdir()
    shutil.rmtree(home / "measurements")
    after = only(read_tree(tree))
    assert after.problems == ()
    for earlier, other in zip(before.results, after.results, strict=True):
        assert (earlier.measurements, earlier.user_conf) == (other.measurements, other.user_conf)
        assert other.compliance == ("TEST06",)


def spoil(home):
    """Spoil one file after the other; give each with the code of the finding."""
    run = home / "results" / RTX / FP8_7B / "server" / "performance" / "run_1" / "mlperf_log_detail.txt"
    text = run.read_text()
    run.unlink()
    yield run, "FILE-MISSING"
    run.write_text(text[: len(text) // 2])
    yield run, "LOG-UNREADABLE"
    run.write_text(text + text)
    yield run, "LOG-UNREADABLE"
    run.write_text(text)
    mapping = home / "model_mapping.json"
    for content in ("[1]", "{", "\xff", "[" * 100_000):
        mapping.write_bytes(content.encode("latin-1"))
        yield mapping, "FILE-UNREADABLE"
    mapping.unlink()
    (home / "systems" / f"{RTX}.json").unlink()
    yield home / "systems" / f"{RTX}.json", "FILE-MISSING"
    (home / "results" / RTX / FP8_7B / "elsewhere").mkdir()
    yield home / "results" / RTX / FP8_7B / "elsewhere", "SCENARIO-UNKNOWN"


def test_what_cannot_be_read_is_a_finding_and_the_rest_is_read(tree):
    for path, code in spoil(tree / "open" / "NeuralMagic"):
        submission = only(read_tree(tree))
        assert (code, path.relative_to(tree).as_posix()) in {
            (problem.code, problem.file) for problem in submission.problems
        }
        assert len(submission.results) == 10


METRICS = {
    ("Offline", "tokens"): "tokens_per_second",
    ("Offline", "samples"): "samples_per_second",
    ("Server", "tokens"): "tokens_per_second",
    ("Server", "samples"): "samples_per_second",
    ("SingleStream", "tokens"): "latency_p90",
    ("SingleStream", "samples"): "early_stopping_latency_ss",
    ("MultiStream", "tokens"): "query_latency_p99",
    ("MultiStream", "samples"): "early_stopping_latency_ms",
}


def test_any_scenario_is_read_with_tokens_and_without(any_scenario, tmp_path):
    accuracy = any_scenario["Offline", "accuracy"]
    for (scenario, kind), logs in any_scenario.items():
        if kind == "accuracy":
            continue
        folder = tmp_path / "closed" / "Someone" / "results" / "System" / kind / scenario
        shutil.copytree(logs, folder / "performance" / "run_1")
        shutil.copytree(accuracy, folder / "accuracy")
    submission = only(read_tree(tmp_path))
    assert [str(problem) for problem in submission.problems if problem.code != "FILE-MISSING"] == []
    assert submission.round == "v6.1"
    assert len(submission.results) == 8
    for result in submission.results:
        performance = result.performance
        assert performance and performance.metric
        assert performance.metric.name == METRICS[result.scenario, result.model]
        log = log_of(tmp_path / performance.log)
        assert performance.metric.value == logged(performance.metric, log)
        assert performance.samples == log["result_query_count"] * log["generated_samples_per_query"]
        assert performance.loadgen_valid is (log["result_validity"] == "VALID")
        assert bool(performance.reasons) is not performance.loadgen_valid


INFERRED = ["resnet50/singlestream", "resnet50/multistream", "resnet50/offline"]
ANOTHER_SCENARIO = {"LOG-TWICE error", "LOG-SCENARIO error"}


@pytest.mark.parametrize(
    ("ran", "folders", "system_type", "expected"),
    [
        # An edge system may infer a result from another scenario.
        (("SingleStream", "samples"), INFERRED, "edge", {"LOG-TWICE note"}),
        (("SingleStream", "samples"), INFERRED, "datacenter", ANOTHER_SCENARIO),
        (("Server", "samples"), INFERRED[1:], "edge", ANOTHER_SCENARIO),
        # Variants of a benchmark may share a run, however they are called.
        (("Offline", "samples"), ["yolo-95/Offline", "yolo-99/Offline"], "edge", {"ONE-RUN-TWO-VARIANTS note"}),
        (("Offline", "samples"), ["yolo-95/Offline", "rgat/Offline"], "edge", {"LOG-TWICE error"}),
        # A score with only an upper bound may be left out.
        (("Offline", "tokens"), ["gpt-oss-120b/Offline"], "datacenter", set()),
        (("Offline", "tokens"), ["llama2-70b-99/Offline"], "datacenter", {"SCORE-UNREADABLE error"}),
    ],
)
def test_results_of_a_closed_v6_tree_may_share_logs_and_leave_out_scores(
    any_scenario, tmp_path, ran, folders, system_type, expected
):
    home = tmp_path / "closed" / "Someone"
    for folder in folders:
        place = home / "results" / "System" / folder
        shutil.copytree(any_scenario[ran], place / "performance" / "run_1")
        shutil.copytree(any_scenario["Offline", "accuracy"], place / "accuracy")
        (place / "accuracy" / "accuracy.txt").write_text("'exact_match': 83.396\naccuracy=76\nmAP=53\n\nhash=ab12\n")
    (home / "systems").mkdir()
    (home / "systems" / "System.json").write_text(json.dumps({"system_type": system_type}))
    codes = ("LOG-TWICE", "LOG-SCENARIO", "ONE-RUN-TWO-VARIANTS", "SCORE-UNREADABLE")
    all_findings = check_tree(tmp_path, round_name="v6.0").findings
    assert {f"{finding.code} {finding.severity}" for finding in all_findings if finding.code in codes} == expected


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("accuracy=76.078%, good=38039, total=50000\n", {"accuracy": 76.078}),
        ("mAP=37.358%\n", {"mAP": 37.358}),
        ("AUC=80.166%, accuracy=96.6%, good=1\n", {"AUC": 80.166, "accuracy": 96.6}),
        ('{"exact_match": 82.92, "f1": 90.35}\n', {"exact_match": 82.92, "f1": 90.35}),
        ("Accuracy: mean = 0.86112, kidney = 0.9, tumor = 0.8\n", {"Accuracy": 0.86112}),
        ("Word Error Rate: 2.07%, accuracy=97.93%\n", {"accuracy": 97.93}),
        ("{'FID_SCORE': '23.66', 'CLIP_SCORE': '31.78'}\n", {"FID_SCORE": 23.66, "CLIP_SCORE": 31.78}),
        ("{'rouge1': 44.5, 'gen_len': 28437684}\nhash=ab12\n", {"rouge1": 44.5, "gen_len": 28437684}),
        ("{'rouge1': np.float64(44.5)}\n", {"rouge1": 44.5}),
        ("no scores here\n", {}),
        ("", {}),
    ],
)
def test_scores_are_read_as_each_reference_script_prints_them(any_scenario, tmp_path, text, scores):
    folder = tmp_path / "accuracy"
    shutil.copytree(any_scenario["Server", "samples"], folder)
    (folder / "accuracy.txt").write_text(text)
    accuracy = Reader(tmp_path).accuracy(folder, None)
    assert accuracy and {name: figure.value for name, figure in accuracy.figures.items()} == scores
    assert accuracy.hash == ("ab12" if "hash" in text else "")


def test_an_accuracy_log_of_several_parts_of_the_samples_is_one_log(any_scenario, tmp_path):
    folder = any_scenario["Offline", "accuracy"]
    assert (folder / "mlperf_log_detail.txt").read_text().count('"power_begin"') == 4
    reader = Reader(folder)
    assert reader.accuracy(folder, None) and reader.problems == []


def test_the_official_sample_of_a_closed_v6_tree_is_read(tmp_path):
    git = os.environ.get("INFERENCE_GIT")
    if not git:
        pytest.skip("INFERENCE_GIT does not name a git directory of mlcommons/inference")
    sample = "tools/submission/directory_structure_samples/sample_1"
    listing = subprocess.run(
        ["git", f"--git-dir={git}", "ls-tree", "-r", "HEAD", f"{sample}/closed/AMD/results"],
        capture_output=True,
        check=True,
        text=True,
    )
    for line in listing.stdout.splitlines():
        entry, _, name = line.partition("\t")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        blob = subprocess.run(["git", f"--git-dir={git}", "cat-file", "blob", entry.split()[2]], capture_output=True)
        if blob.returncode == 0:  # a copy of the repository may lack its largest files
            (tmp_path / name).write_bytes(blob.stdout)
    submission = only(read_tree(tmp_path / sample))
    assert (submission.division, submission.round) == ("closed", "v5.1")  # the sample's logs are older than its layout
    read = [result for result in submission.results if result.performance]
    assert len(read) >= 18 and {result.scenario for result in read} == {"Offline", "Server", "Interactive"}
    for result in read:
        assert result.performance and result.performance.metric and result.accuracy
        images = result.benchmark == "stable-diffusion-xl"
        assert result.performance.metric.unit == ("samples/s" if images else "tokens/s")
        assert result.performance.loadgen_valid and result.compliance and result.measurements and result.user_conf
        assert all(latency.met for latency in result.performance.latencies)
        assert {"rouge1", "FID_SCORE"} & set(result.accuracy.figures)

"""Every number of the rules against the official checkers' own constants, of all benchmarks and in both directions.

With INFERENCE_GIT naming a git directory of mlcommons/inference the checkers' constants are read and compared; without
it, our numbers are compared with the digest that they had when that comparison last passed.
"""

import ast
import hashlib
import re
import textwrap
from functools import partial
from posixpath import normpath
from types import SimpleNamespace

import pytest

from cm4vllm.results.log_folders import scores_of
from cm4vllm.rules import (
    Category,
    Mode,
    Scenario,
    accuracy_targets,
    audit,
    benchmark_names,
    benchmark_of,
    benchmark_terms,
    compliance_rules,
    language_models,
    round_names,
    round_terms,
    terms,
)
from offenders import offenders

NEWEST = "b66003e1"
TABLES = ("MODEL_CONFIG", "LLM_LATENCY_LIMITS", "OFFLINE_MIN_SPQ_SINCE_V4", "REQUIRED_ACC_BENCHMARK", "ACC_PATTERN")
#: SHA-256 of `numbers()`, taken when the comparison with both checkers passed.
DIGEST = "0923285e38a3f3334fc3a47968568782e33de7ce665689139132859f6a01dfa3"
KINDS = ("datacenter", "edge", "datacenter,edge")
#: The checker's own oddities, which our data state with the source that decides.
TEST06_BY_THE_OLDER_CHECKER = {("v5.0", "llama3.1-405b")}
#: Benchmarks whose target the checkers state as a part, though the scores that they compare with it are percent.
PARTS_FOR_PERCENT = {"rgat", "pointpainting"}
#: Offline is no scenario of this benchmark.
WITHOUT_OFFLINE = {"pointpainting"}
#: The keys of a round's configuration that are compared below.
COMPARED = {
    "models",
    *(f"{need}-scenarios-{kind.replace(',', '-')}" for need in ("required", "optional") for kind in KINDS),
    *("accuracy-target", "accuracy-upper-limit", "accuracy-delta-perc"),
    *("performance-sample-count", "accuracy-sample-count", "dataset-size", "min-queries", "latency-constraint"),
    *("model_mapping", "seeds", "test05_seeds"),
    *(f"models_TEST0{number}" for number in (1, 4, 6, 7, 8, 9)),
}
#: Its further keys, and why they are no data here.
LEFT_OUT = {"ignore_errors": "empty in all rounds"}
#: Names in tables of rounds that do not have them as benchmarks: they left, or are scenarios of another name.
NO_BENCHMARKS = {
    *("dlrm-v2-99", "dlrm-v2-99.9", "retinanet", "llama2-70b-interactive-99", "llama2-70b-interactive-99.9"),
    *("llama3.1-8b-interactive", "llama3.1-405b-interactive"),
}
#: The compliance tests of language models, and where their settings lie in mlcommons/inference.
AUDITS = {
    ("TEST01", "whisper"): "compliance/TEST01/whisper/audit.config",
    ("TEST06", ""): "compliance/TEST06/audit.config",
    ("TEST07", ""): "compliance/TEST07/gpt-oss-120b/audit.config",
    ("TEST09", ""): "compliance/TEST09/gpt-oss-120b/audit.config",
    ("TEST09", "e2e-rag-qna"): "compliance/TEST09/e2e-rag-qna/audit.config",
}
#: A line of each score as the reference's script prints it.
PRINTED = {
    "acc": "accuracy=76.078%, good=38039, total=50000",
    "AUC": "AUC=80.166%, accuracy=96.605%, good=86110748, total=89137319, queries=330067",
    "DLRM_NE": "WARNING:main:metric/lifetime_ne/rating: 0.8668",
    "DLRM_ACC": "WARNING:main:metric/lifetime_accuracy/rating: 0.6965",
    "DLRM_AUC": "WARNING:main:metric/lifetime_gauc/rating: 0.7866",
    "mAP": "mAP=37.358%",
    "mAP Total": "{'Pedestrian': [57.7], 'Cyclist': [48.8], 'Car': [56.2], 'Total': 54.256}",
    "F1": '{"exact_match": 82.819, "f1": 90.279}',
    "ACCURACY": "Word Error Rate: 2.1660306251605967%, accuracy=97.8339693748394%",
    "DICE": "Accuracy: mean = 0.86112, kidney = 0.9346, tumor = 0.7877",
    "E2E_ACCURACY": "Accuracy: 34.5",
    "F1_HIERARCHICAL": '{"f1": 0.7886741346065558}',
}


def constants(text, *names):
    """Return top-level assignments of a Python source, tables and single numbers."""
    namespace = {
        name: float(value) for name, value in re.findall(r"^([A-Z][A-Z0-9_]+) = ([\d.]+)$", text, re.MULTILINE)
    }
    for name in names:
        exec(re.search(rf"^{name} = .*?^[}}\]]", text, re.MULTILINE | re.DOTALL)[0], namespace)
    return namespace


def method(text, name):
    """Return a method of a Python source as a function."""
    namespace = {}
    source = re.search(rf"^    def {name}\(.*?(?=^    def |^\S|\Z)", text, re.MULTILINE | re.DOTALL)[0]
    exec(textwrap.dedent(source), namespace)
    return namespace[name]


@pytest.fixture(scope="module")
def newest(official_file):
    files = {
        "methods": "submission_checker/configuration/configuration.py",
        "compliance": "submission_checker/checks/compliance_check.py",
        "performance": "submission_checker/checks/performance_check.py",
        "mlperf.conf": "../../loadgen/mlperf.conf",
    }
    texts = {name: official_file(NEWEST, normpath(f"tools/submission/{path}")) for name, path in files.items()}
    return constants(official_file(NEWEST, "tools/submission/submission_checker/constants.py"), *TABLES) | texts


@pytest.fixture(scope="module")
def of_v41(official_file):
    text = official_file("v4.1", "tools/submission/submission_checker.py")
    start = text.index('    test_list = ["TEST01"')
    tests = textwrap.dedent(text[start : text.index("    if test_list and not", start)])
    more = {"methods": text, "tests": tests, "mlperf.conf": official_file("v4.1", "mlperf.conf")}
    return constants(text, *TABLES) | more


def numbers():
    """Return all that is compared, as text."""
    lines = [
        repr((name, audited.audit, audited.thresholds, audited.samples))
        for name in AUDITS
        for audited in [audit(*name)]
    ]
    for round_name in round_names():
        lines.append(repr((round_terms(round_name).seeds, round_terms(round_name).test_seeds)))
        for name in benchmark_names(round_name):
            benchmark = benchmark_terms(round_name, name)
            facts = (
                benchmark.category,
                benchmark.required,
                benchmark.compliance,
                benchmark.samples,
                benchmark.accuracy_files,
            )
            lines.append(repr((round_name, name, *facts, targets(round_name, name))))
            for scenario in benchmark.scenarios:
                cells = [terms(round_name, name, scenario, mode) for mode in Mode]
                lines.append(repr((scenario, [_numbers_of_run(cell) for cell in cells])))
    return "\n".join(re.sub(r", source='[^']*'|, source=\"[^\"]*\"", "", line) for line in lines)


def _numbers_of_run(run):
    return run.samples, run.min_samples, run.min_duration_ms, run.min_queries, run.early_stopping, run.limits


def targets(round_name, name):
    return [targets_of(round_name, name, scenario) for scenario in benchmark_terms(round_name, name).scenarios]


def targets_of(round_name, name, scenario):
    return [(t.metric, t.lower, t.upper) for t in accuracy_targets(round_name, name, scenario)]


LEAST_ISSUED = re.compile(r"^([\w.-]+)\.Offline\.min_query_count = \d+$", re.MULTILINE)


def config(request, round_name):
    source = request.getfixturevalue("of_v41" if round_name == "v4.1" else "newest")
    return source["MODEL_CONFIG"][round_name], source


def pairs(values):
    return dict(zip(values[::2], values[1::2], strict=True))


@pytest.mark.parametrize("round_name", round_names())
class TestEachRound:
    def test_benchmarks_and_seeds(self, request, round_name):
        checker, _ = config(request, round_name)
        assert set(benchmark_names(round_name)) == set(checker["models"])
        seeds = round_terms(round_name).seeds
        assert [seeds.qsl, seeds.sample_index, seeds.schedule] == [
            checker["seeds"][f"{name}_rng_seed"] for name in ("qsl", "sample_index", "schedule")
        ]
        theirs = {f"TEST05 {name}": seed for name, seed in checker.get("test05_seeds", {}).items()}
        assert theirs == {
            f"{test} {name}_rng_seed": getattr(seeds, name)
            for test, seeds in round_terms(round_name).test_seeds.items()
            for name in ("qsl", "sample_index", "schedule")
        }

    def test_no_table_of_the_checker_is_left_out(self, request, round_name):
        checker, _ = config(request, round_name)
        assert set(checker) - COMPARED <= set(LEFT_OUT) and checker["ignore_errors"] == []
        for key in COMPARED & set(checker) - {"seeds", "test05_seeds", "model_mapping"}:
            assert set(checker[key]) - set(checker["models"]) <= NO_BENCHMARKS, key

    def test_names_of_folders(self, request, round_name):
        checker, source = config(request, round_name)
        asked = method(source["methods"], "get_mlperf_model")
        state = SimpleNamespace(models=checker["models"], base=checker)
        mapping = {"own-8b": checker["models"][0], "resnet50": "bert-99", "my-resnet50": "bert-99"}
        own = [f"{before}{name}" for name in checker["models"] for before in ("", "tuned-")]
        others = "efficientnet-fp32-lite0 mobilenet-v1-precision_uint8-0.25-128 obert-large-none-bert-99 rnnt".split()
        others += ["obert-large-none-bert-99.9", "llama3_1-405b_pruned", "llama3_1-8b", "llama3_1-70b", "ssd-resnet34"]
        for folder in [*own, *others, *checker["model_mapping"], *mapping]:
            theirs = asked(state, folder, mapping)
            ours = benchmark_of(round_name, folder, mapping)
            assert ours == theirs or not {ours, theirs} & set(checker["models"]), folder


def check_accuracy(request, round_name, name):
    checker, _ = config(request, round_name)
    unit = 100 if name in PARTS_FOR_PERCENT else 1
    lower, upper = checker["accuracy-target"][name], checker["accuracy-upper-limit"].get(name, ())
    for scenario in benchmark_terms(round_name, name).scenarios:
        values = lower[scenario] if isinstance(lower, dict) else lower
        ours = targets_of(round_name, name, scenario)
        least = {metric: bound for metric, bound, _ in ours if bound is not None}
        most = {metric: bound for metric, _, bound in ours if bound is not None}
        assert least == pytest.approx({key: bound * unit for key, bound in pairs(values).items()}, rel=1e-12)
        assert most == pytest.approx(pairs(upper), rel=1e-12)


def check_tolerances(request, round_name, name):
    checker, source = config(request, round_name)
    asked = method(source["methods"], "get_delta_perc")
    for target in accuracy_targets(round_name, name, benchmark_terms(round_name, name).scenarios[0]):
        if "TEST01" in benchmark_terms(round_name, name).compliance:
            state = SimpleNamespace(accuracy_delta_perc=checker["accuracy-delta-perc"])
            assert target.tolerance == asked(state, name, target.metric)


def check_score_lines(request, round_name, name):
    _, source = config(request, round_name)
    for target in accuracy_targets(round_name, name, benchmark_terms(round_name, name).scenarios[0]):
        plain = f"{{'{target.label}': 31.5, 'other': 2}}"
        line = PRINTED.get(f"{target.metric} {target.label}") or PRINTED.get(target.metric, plain)
        path = request.getfixturevalue("tmp_path") / "accuracy.txt"
        path.write_text(f"log\n{line}\nhash=12\n")
        theirs = re.match(source["ACC_PATTERN"][target.metric], line)
        assert scores_of(path)[target.label] == float(theirs[1])


def check_scenarios(request, round_name, name):
    checker, _ = config(request, round_name)
    benchmark = benchmark_terms(round_name, name)
    for kind in KINDS:
        key = kind.replace(",", "-")
        required = checker[f"required-scenarios-{key}"].get(name)
        optional = checker[f"optional-scenarios-{key}"].get(name, [])
        ours = benchmark.required_on(kind)
        assert ours == benchmark.required_on(",".join(reversed(kind.split(","))))
        assert (ours is None) == (required is None), kind
        if ours is not None:
            assert set(ours.all_of) == set(required) and set(ours.one_of) == set(optional)
    # A benchmark of both categories is one of the datacenter unless a user says otherwise.
    kinds = [kind for kind in Category if name in checker[f"required-scenarios-{kind}"]]
    assert benchmark.category == [*kinds, Category.DATACENTER][0]


def check_samples(request, round_name, name):
    checker, source = config(request, round_name)
    sizes = checker.get("dataset-size") or config(request, "v5.0")[0]["dataset-size"]  # v4.1 has none
    whole = checker.get("accuracy-sample-count", {}).get(name, sizes.get(name))
    benchmark = benchmark_terms(round_name, name)
    for scenario in benchmark.scenarios:
        performance, accuracy = (terms(round_name, name, scenario, mode) for mode in Mode)
        assert performance.samples == checker["performance-sample-count"].get(name, whole)
        assert accuracy.samples == (whole[scenario] if isinstance(whole, dict) else whole)
        least = checker["min-queries"].get(name, {}).get(scenario)
        assert scenario is Scenario.INTERACTIVE or performance.min_queries == least
        stops = method(source["methods"], "uses_early_stopping")(None, performance.loadgen_scenario)
        assert performance.early_stopping == stops
    if Scenario.OFFLINE in benchmark.scenarios:
        ours = terms(round_name, name, Scenario.OFFLINE, Mode.PERFORMANCE).min_samples
        least = source["OFFLINE_MIN_SPQ_SINCE_V4"].get(name)
        # The newest checker has dropped GPT-J's, which round v5.0 still had.
        assert ours == (checker["dataset-size"][name] if least is None and name.startswith("gptj") else least)
    else:
        assert name in WITHOUT_OFFLINE or name not in source["OFFLINE_MIN_SPQ_SINCE_V4"]


def check_least_samples_in_user_conf(request, round_name, name):
    """user.conf asks for the samples of an Offline run where mlperf.conf does not."""
    _, source = config(request, round_name)
    if Scenario.OFFLINE in benchmark_terms(round_name, name).scenarios:
        run_terms = terms(round_name, name, Scenario.OFFLINE, Mode.PERFORMANCE)
        by_conf = run_terms.loadgen_name in LEAST_ISSUED.findall(source["mlperf.conf"])
        assert run_terms.user_conf.get("min_query_count") == (None if by_conf else run_terms.min_samples)


def check_duration(request, round_name, name):
    _, source = config(request, round_name)
    free = re.search(r'self\.model in \(("e2e-rag[^)]*)\):\s+return True', source.get("performance", ""))
    least = 0 if free and f'"{name}"' in free[1] else source["TEST_DURATION_MS"]
    for scenario in benchmark_terms(round_name, name).scenarios:
        assert terms(round_name, name, scenario, Mode.PERFORMANCE).min_duration_ms == least


def check_limits(request, round_name, name):
    checker, source = config(request, round_name)
    benchmark = benchmark_terms(round_name, name)
    limits = source["LLM_LATENCY_LIMITS"].get(name, {})
    if "conversational" in limits:
        limits = {"Server": limits["conversational"]}
    for scenario in benchmark.scenarios:
        run_terms = terms(round_name, name, scenario, Mode.PERFORMANCE)
        whole = checker["latency-constraint"].get(name, {}).get(scenario)
        if run_terms.limits is None or run_terms.limits.ttft_ms is None:
            assert (run_terms.limits.latency_ms * 1e6 if run_terms.limits else None) == whole
            assert scenario not in limits
            continue
        assert {"ttft": run_terms.limits.ttft_ms * 1e6, "tpot": run_terms.limits.tpot_ms * 1e6} == limits[scenario]
        # LoadGen gets no target latency where the latencies of tokens are limited: the checker's limits nothing.
        assert not whole or f"{run_terms.loadgen_name}.Server.target_latency = 0" in source["mlperf.conf"]


def check_accuracy_files(request, round_name, name):
    _, source = config(request, round_name)
    theirs = source["REQUIRED_ACC_BENCHMARK"].get(name, {}).get(round_name, {})
    assert benchmark_terms(round_name, name).accuracy_files == {key: tuple(names) for key, names in theirs.items()}


def check_compliance(request, round_name, name):
    checker, source = config(request, round_name)
    ours = benchmark_terms(round_name, name).compliance
    assert all(compliance_rules(test).files for test in ours)
    if round_name == "v4.1":  # its code takes tests off a list, model by model
        run = {"model": name, "config": SimpleNamespace(version=round_name)}
        exec(source["tests"], run)
        assert list(ours) == run["test_list"]
        return
    theirs = {key.removeprefix("models_") for key in checker if key.startswith("models_") and name in checker[key]}
    if (round_name, name) in TEST06_BY_THE_OLDER_CHECKER:
        theirs.add("TEST06")
    assert set(ours) == theirs


CHECKS = (
    check_accuracy,
    check_tolerances,
    check_score_lines,
    check_scenarios,
    check_samples,
    check_least_samples_in_user_conf,
    check_duration,
    check_limits,
    check_accuracy_files,
    check_compliance,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_each_benchmark_of_each_round_is_that_of_the_checker(request, check):
    cases = [(round_name, name) for round_name in round_names() for name in benchmark_names(round_name)]
    assert len(cases) > 90
    assert offenders(partial(check, request), cases) == []


def test_language_models_are_those_that_generate_text():
    assert {"gptj-99", "llama3.1-8b-edge", "qwen3-vl-235b-a22b", "whisper", "e2e-rag-db"} <= set(language_models())
    assert not {"resnet", "bert-99", "dlrm-v3", "wan-2.2-t2v-a14b"} & set(language_models())


@pytest.mark.parametrize("test", [f"TEST0{number}" for number in (1, 4, 6, 7, 8, 9)])
def test_what_a_passed_test_holds_is_what_the_checker_reads(newest, test):
    source = newest["compliance"]
    for file in compliance_rules(test).files:
        assert f'"{file.name}"' in source
        assert all(line.removesuffix(":") in source for line in file.lines)


@pytest.mark.parametrize(("of", "path"), AUDITS.items())
def test_the_settings_and_thresholds_of_a_compliance_test(newest, official_file, of, path):
    lines = re.findall(r"^\*\.\*\.(\w+) = (\S+)$", official_file(NEWEST, path), re.MULTILINE)
    theirs = {key: ast.literal_eval(value) for key, value in lines}
    ours, name = audit(*of), of[0]
    thresholds = {f"{name.lower()}_{key}": value for key, value in ours.thresholds.items()}
    assert theirs == {**ours.audit, **thresholds}
    if of == ("TEST09", ""):
        assert list(ours.thresholds.values()) == [newest["TEST09_LOW"], newest["TEST09_HIGH"]]
    whole = newest["MODEL_CONFIG"]["v6.1"]["performance-sample-count"]
    assert ours.samples == theirs.get("min_query_count", whole.get(of[1]))


def test_our_numbers_are_those_that_were_compared():
    assert hashlib.sha256(numbers().encode()).hexdigest() == DIGEST

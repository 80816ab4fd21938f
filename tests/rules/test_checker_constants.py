"""Every number of the rules against the official checkers' own constants.

With INFERENCE_GIT naming a git directory of mlcommons/inference the checkers' constants are read and compared; without
it, our numbers are compared with the digest that they had when that comparison last passed.
"""

import ast
import hashlib
import os
import re
import subprocess
import textwrap
from types import SimpleNamespace

import pytest

from cm4vllm.rules import (
    Category,
    Mode,
    Scenario,
    accuracy_targets,
    audit,
    benchmark_names,
    benchmark_terms,
    round_names,
    round_terms,
    terms,
)

NEWEST = "b66003e1"
#: SHA-256 of `numbers()`, taken when the comparison with both checkers passed.
DIGEST = "83e43ea3a615cd8c20c09f48f0d8c8a2681a92e300f8ad692635551ef20fc955"
#: The checker's own oddities, which our data state with the source that decides.
TEST06_BY_THE_OLDER_CHECKER = {("v5.0", "llama3.1-405b")}
#: The compliance tests of language models, and where their settings lie in mlcommons/inference.
AUDITS = {
    ("TEST06", ""): "compliance/TEST06/audit.config",
    ("TEST07", ""): "compliance/TEST07/gpt-oss-120b/audit.config",
    ("TEST09", ""): "compliance/TEST09/gpt-oss-120b/audit.config",
    ("TEST09", "e2e-rag-qna"): "compliance/TEST09/e2e-rag-qna/audit.config",
}
MODELS = re.compile("llama|mixtral|gptj|gpt-oss|deepseek|qwen|e2e-rag")


def numbers():
    """Return all that is compared, as text."""
    lines = [repr((name, found.audit, found.thresholds, found.samples)) for name in AUDITS for found in [audit(*name)]]
    for round_name in round_names():
        lines.append(repr(round_terms(round_name).seeds))
        for name in benchmark_names(round_name):
            found = benchmark_terms(round_name, name)
            lines.append(
                repr(
                    (
                        round_name,
                        name,
                        found.category,
                        found.required,
                        found.compliance,
                        found.samples,
                        targets(round_name, name),
                    )
                )
            )
            for scenario in found.scenarios if found.loadgen else ():
                cells = [terms(round_name, name, scenario, mode) for mode in Mode]
                lines.append(repr((scenario, [(c.samples, c.min_samples, c.min_duration_ms, c.limits) for c in cells])))
    return "\n".join(re.sub(r", source='[^']*'|, source=\"[^\"]*\"", "", line) for line in lines)


def targets(round_name, name):
    return [targets_of(round_name, name, scenario) for scenario in benchmark_terms(round_name, name).scenarios]


def targets_of(round_name, name, scenario):
    return [(t.metric, t.lower, t.upper) for t in accuracy_targets(round_name, name, scenario)]


def constants(text, *names):
    """Return top-level assignments of a Python source."""
    found = {}
    for name in names:
        start = text.index(f"\n{name} = ") if f"\n{name} = " in text else text.index(f"{name} = ")
        source = text[start:].lstrip("\n")
        end = re.search(r"^[}\]]", source, re.MULTILINE).end()
        exec(source[:end], found)
    return found


def show(commit, path):
    git = os.environ.get("INFERENCE_GIT")
    if not git:
        pytest.skip("INFERENCE_GIT does not name a git directory of mlcommons/inference")
    return subprocess.run(
        ["git", "--git-dir", git, "show", f"{commit}:{path}"], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def newest():
    text = show(NEWEST, "tools/submission/submission_checker/constants.py")
    return constants(text, "MODEL_CONFIG", "LLM_LATENCY_LIMITS", "OFFLINE_MIN_SPQ_SINCE_V4") | numbers_of(text)


@pytest.fixture(scope="module")
def of_v41():
    text = show("v4.1", "tools/submission/submission_checker.py")
    found = constants(text, "MODEL_CONFIG", "LLM_LATENCY_LIMITS", "OFFLINE_MIN_SPQ_SINCE_V4") | numbers_of(text)
    start = text.index('    test_list = ["TEST01"')
    return found | {"tests": textwrap.dedent(text[start : text.index("    if test_list and not", start)])}


def config(request, round_name):
    source = request.getfixturevalue("of_v41" if round_name == "v4.1" else "newest")
    return source["MODEL_CONFIG"][round_name], source


def numbers_of(text):
    """Return the constants of one number each."""
    return {name: float(value) for name, value in re.findall(r"^([A-Z][A-Z0-9_]+) = ([\d.]+)$", text, re.MULTILINE)}


def pairs(values):
    return dict(zip(values[::2], values[1::2], strict=True))


@pytest.mark.parametrize("round_name", round_names())
def test_the_round_has_the_checkers_benchmarks_and_seeds(request, round_name):
    checker, _ = config(request, round_name)
    assert set(benchmark_names(round_name)) == {name for name in checker["models"] if MODELS.search(name)}
    seeds = round_terms(round_name).seeds
    assert [seeds.qsl, seeds.sample_index, seeds.schedule] == [
        checker["seeds"][f"{name}_rng_seed"] for name in ("qsl", "sample_index", "schedule")
    ]


@pytest.mark.parametrize(("round_name", "name"), [(r, n) for r in round_names() for n in benchmark_names(r)])
class TestEachBenchmark:
    def test_accuracy(self, request, round_name, name):
        checker, _ = config(request, round_name)
        lower, upper = checker["accuracy-target"][name], checker["accuracy-upper-limit"].get(name, ())
        for scenario in benchmark_terms(round_name, name).scenarios:
            values = lower[scenario] if isinstance(lower, dict) else lower
            ours = targets_of(round_name, name, scenario)
            least = {metric: bound for metric, bound, _ in ours if bound is not None}
            most = {metric: bound for metric, _, bound in ours if bound is not None}
            assert least == pytest.approx(pairs(values), rel=1e-12)
            assert most == pytest.approx(pairs(upper), rel=1e-12)

    def test_scenarios(self, request, round_name, name):
        checker, _ = config(request, round_name)
        found = benchmark_terms(round_name, name)
        for kind in ("datacenter", "edge", "datacenter,edge"):
            key = kind.replace(",", "-")
            required = checker[f"required-scenarios-{key}"].get(name)
            optional = checker[f"optional-scenarios-{key}"].get(name, [])
            ours = found.required_on(kind)
            assert (ours is None) == (required is None), kind
            if ours is not None:
                assert set(ours.all_of) == set(required) and set(ours.one_of) == set(optional)
        # A benchmark of both categories is one of the datacenter unless a user says otherwise.
        kinds = [kind for kind in Category if name in checker[f"required-scenarios-{kind}"]]
        assert found.category == kinds[0]

    def test_samples(self, request, round_name, name):
        checker, source = config(request, round_name)
        found = benchmark_terms(round_name, name)
        if not found.loadgen:
            assert found.samples == checker["dataset-size"].get(name)
            return
        for scenario in found.scenarios:
            performance, accuracy = (terms(round_name, name, scenario, mode) for mode in Mode)
            assert performance.samples == checker["performance-sample-count"][name]
            sizes = checker.get("accuracy-sample-count", {})
            expected = sizes.get(name, checker.get("dataset-size", checker["performance-sample-count"])[name])
            assert accuracy.samples == expected
            assert performance.min_duration_ms == source["TEST_DURATION_MS"]
        if Scenario.OFFLINE in found.scenarios:
            ours = terms(round_name, name, Scenario.OFFLINE, Mode.PERFORMANCE).min_samples
            least = source["OFFLINE_MIN_SPQ_SINCE_V4"].get(name)
            # The newest checker has dropped GPT-J's, which round v5.0 still had.
            assert ours == (checker["dataset-size"][name] if least is None and name.startswith("gptj") else least)

    def test_limits(self, request, round_name, name):
        checker, source = config(request, round_name)
        found = benchmark_terms(round_name, name)
        limits = source["LLM_LATENCY_LIMITS"].get(name, {})
        if "conversational" in limits:
            limits = {"Server": limits["conversational"]}
        for scenario in found.scenarios if found.loadgen else ():
            ours = terms(round_name, name, scenario, Mode.PERFORMANCE).limits
            if ours is None or ours.ttft_ms is None:
                whole = checker["latency-constraint"].get(name, {}).get(scenario)
                assert (ours.latency_ms * 1e6 if ours else None) == (whole if ours else None)
                continue
            assert {"ttft": ours.ttft_ms * 1e6, "tpot": ours.tpot_ms * 1e6} == limits[scenario]

    def test_compliance(self, request, round_name, name):
        checker, source = config(request, round_name)
        if round_name == "v4.1":  # its code takes tests off a list, model by model
            run = {"model": name, "config": SimpleNamespace(version=round_name)}
            exec(source["tests"], run)
            assert list(benchmark_terms(round_name, name).compliance) == run["test_list"]
            return
        theirs = {test for test in ("TEST06", "TEST07", "TEST09") if name in checker.get(f"models_{test}", ())}
        if (round_name, name) in TEST06_BY_THE_OLDER_CHECKER:
            theirs.add("TEST06")
        assert set(benchmark_terms(round_name, name).compliance) == theirs


@pytest.mark.parametrize(("of", "path"), AUDITS.items())
def test_the_settings_and_thresholds_of_a_compliance_test(newest, of, path):
    lines = re.findall(r"^\*\.\*\.(\w+) = (\S+)$", show(NEWEST, path), re.MULTILINE)
    theirs = {key: ast.literal_eval(value) for key, value in lines}
    ours, name = audit(*of), of[0]
    thresholds = {
        f"{name.lower()}_{key.replace('accuracy', 'accuracy_threshold')}": value
        for key, value in ours.thresholds.items()
    }
    assert theirs == {**ours.audit, **thresholds}
    if of == ("TEST09", ""):
        assert list(ours.thresholds.values()) == [newest["TEST09_LOW"], newest["TEST09_HIGH"]]
    assert ours.samples == theirs["min_query_count"]


def test_our_numbers_are_those_that_were_compared():
    assert hashlib.sha256(numbers().encode()).hexdigest() == DIGEST

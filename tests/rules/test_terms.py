"""The lookup: each cell of round, benchmark, scenario and mode, and what is refused with which hint."""

import ast
import json
import subprocess
from io import BytesIO
from types import SimpleNamespace

import msgspec
import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.rules import (
    ExecutionMode,
    Mode,
    Scenario,
    Terms,
    accuracy_targets,
    audit,
    benchmark_names,
    benchmark_terms,
    chat_prompts,
    require_text,
    round_names,
    round_terms,
    terms,
)
from cm4vllm.rules.entries import Entry
from cm4vllm.rules.tables import families, matching, round_entries, scenario_entries, sources
from commands import beside_checkout
from offenders import offenders

BENCHMARKS = [(round_name, name) for round_name in round_names() for name in benchmark_names(round_name)]
CELLS = [
    (round_name, name, scenario, mode)
    for round_name, name in BENCHMARKS
    for scenario in benchmark_terms(round_name, name).scenarios
    for mode in Mode
]


def check_cell(round_name, name, scenario, mode):
    run_terms = terms(round_name, name, scenario, mode)
    family = next(family for family in families() if name in [entry.name for entry in family.benchmarks])
    cell = (round_name, name, scenario, mode)
    run = benchmark_terms(round_name, name).loadgen
    for facts in (family.loadgen, family.samples, family.generation) if run else (family.samples,):
        assert len(matching(facts, *cell)) == 1
    refused = scenario in benchmark_terms(round_name, name).refused
    limited = 1 if run_terms.paced else 0
    assert len(matching(family.limits, *cell)) == limited or ((refused or not run) and run_terms.limits is None)
    assert all(len(matching(facts, *cell)) < 2 for facts in (family.least_issued, family.min_queries))
    assert bool(run_terms.generation.source) == run
    labels = [target.label for target in run_terms.targets]
    assert len(labels) == len(set(labels)) and labels
    assert msgspec.json.decode(msgspec.json.encode(run_terms), type=Terms) == run_terms


def test_every_cell_has_one_value_for_each_fact_and_survives_a_record():
    assert len(CELLS) > 400
    assert offenders(check_cell, CELLS) == []


def test_every_fact_names_a_known_source_and_every_selector_what_exists():
    facts = [
        (fact, {entry.name for entry in family.benchmarks})
        for family in families()
        for field in family.__struct_fields__
        for fact in (getattr(family, field) if isinstance(getattr(family, field), tuple) else ())
    ]
    assert all(isinstance(fact, Entry) for fact, _ in facts) and len(facts) > 100
    for fact, names in facts:
        assert {fact.since or "v4.1", fact.until or "v6.1"} <= set(round_names())
        assert set(fact.benchmarks) <= names
    named = [fact.source for fact, _ in facts] + [entry.source for entry in scenario_entries().values()]
    named += [source for entry in round_entries() for source in entry.sources.values()]
    for source in named:
        assert source.split()[0] in sources(), source


@pytest.mark.parametrize("name", ["v6.1", "r6.1", "6.1"])
def test_a_round_has_several_spellings(name):
    assert round_terms(name).loadgen.wheel == "6.0.17"


@pytest.mark.parametrize(
    ("lookup", "words", "remedy"),
    [
        (lambda: round_terms("r7.0"), "unknown round", "v6.0"),
        (lambda: benchmark_terms("v6.1", "llama3-8b"), "unknown model", "llama3.1-8b"),
        (lambda: benchmark_terms("v6.1", "resnet5000"), "unknown model", "gpt-oss-120b"),
        (lambda: benchmark_terms("v6.1", "llama2-70b-99"), "not in round v6.1", "llama2-70b-99.9"),
        (
            lambda: terms("v5.0", "llama3.1-405b", Scenario.INTERACTIVE, Mode.PERFORMANCE),
            "no scenario Interactive in round v5.0",
            "Offline, Server",
        ),
        (lambda: require_text(benchmark_terms("v6.1", "e2e-rag-db")), "LoadGen does not measure e2e-rag-db", ""),
        (lambda: require_text(benchmark_terms("v6.1", "resnet")), "resnet is no language model", "llama3.1-8b"),
        (lambda: audit("TEST01"), "unknown compliance test", "TEST06"),
    ],
)
def test_what_the_rules_do_not_have_or_cannot_be_run_is_refused_and_the_nearest_named(lookup, words, remedy):
    with pytest.raises(UsageError, match=words) as refused:
        lookup()
    assert remedy in (refused.value.remedy or "") and "resnet" not in (refused.value.remedy or "")


def test_a_benchmark_that_is_not_run_has_rules_for_its_results():
    for name in ("e2e-rag-db", "resnet"):
        assert terms("v6.1", name, Scenario.OFFLINE, Mode.PERFORMANCE).samples


def test_scenarios_are_read_in_any_case():
    assert Scenario.parse("offline") is Scenario.OFFLINE
    assert ExecutionMode.parse("VALID") is ExecutionMode.VALID
    with pytest.raises(UsageError, match="unknown execution mode"):
        ExecutionMode.parse("fast")


def test_interactive_is_loadgens_server_under_another_name():
    run_terms = terms("v6.1", "llama3.1-8b", Scenario.INTERACTIVE, Mode.PERFORMANCE)
    assert (run_terms.loadgen_scenario, run_terms.loadgen_name) == ("Server", "llama3_1-8b-interactive")
    assert (run_terms.limits.ttft_ms, run_terms.limits.tpot_ms) == (500, 30)
    assert run_terms.paced and run_terms.first_token and run_terms.needs_rate


def test_single_stream_has_no_limits_and_a_rate_that_sizes_its_performance_run():
    run_terms, answers = (terms("v6.1", "llama3.1-8b-edge", Scenario.SINGLE_STREAM, mode) for mode in Mode)
    assert run_terms.limits is None and run_terms.first_token and not run_terms.paced and not run_terms.at_once
    assert run_terms.one_by_one and run_terms.needs_rate and not answers.needs_rate
    assert run_terms.min_samples == 1


def test_samples_and_lengths_differ_by_mode():
    performance, accuracy = (terms("v6.1", "gpt-oss-120b", Scenario.OFFLINE, mode) for mode in Mode)
    assert (performance.samples, accuracy.samples) == (6396, 4395)
    assert (performance.generation.max_tokens, accuracy.generation.max_tokens) == (10240, 32768)
    assert performance.user_conf == {"min_query_count": 6396} and accuracy.user_conf == {}
    assert not accuracy.first_token_reported_again


def test_settings_that_a_rounds_loadgen_lacks_come_with_that_round_alone():
    def conf(round_name):
        return terms(round_name, "mixtral-8x7b", Scenario.OFFLINE, Mode.PERFORMANCE).user_conf

    assert conf("v4.1") == {"performance_sample_count_override": 15000}
    assert conf("v5.0") == {}


def test_a_total_is_judged_over_the_whole_dataset_alone():
    targets = {t.label: t for t in accuracy_targets("v6.1", "llama3.1-8b", Scenario.OFFLINE)}
    assert targets["gen_len"].met(9e6) is False and targets["gen_len"].met(9e6, whole=False) is None
    assert targets["rouge1"].met(40, whole=False) is True


def test_a_target_with_an_upper_bound_alone_has_no_lower_one():
    tokens = {t.label: t for t in accuracy_targets("v6.1", "gpt-oss-120b", Scenario.OFFLINE)}["tokens_per_sample"]
    assert tokens.lower is None and tokens.met(1) and not tokens.met(11_000)


def test_required_scenarios_depend_on_the_type_of_system():
    benchmark = benchmark_terms("v5.1", "deepseek-r1")
    assert benchmark.required_on("datacenter").all_of == (Scenario.SERVER, Scenario.OFFLINE)
    assert Scenario.SINGLE_STREAM in benchmark.required_on("datacenter,edge").all_of
    assert benchmark.required_on("edge") is None


def test_the_seeds_of_each_round_are_different():
    seeds = [round_terms(name).seeds for name in round_names()]
    assert len({value for seed in seeds for value in (seed.qsl, seed.sample_index, seed.schedule)}) == 3 * len(seeds)


def test_a_compliance_test_has_its_audit_settings():
    assert audit("TEST06").audit["accuracy_log_sampling_target"] == 100
    assert audit("TEST07").thresholds == {"accuracy_threshold": 60.698}


# --- the prompts of samples with pictures are those of the references, to the last character


COMMIT, TASK = "b66003e1", "multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl/task.py"
ROW = {
    "title": "Kettle {red}",
    "description": 'It\'s "new"; <script>if (a) { b() }</script>\n```json',
    "categories": ["Home > Kettles & Co", 'It\'s > a "b"', "é > c"],
}
PUBLISHED = {
    "product_title": ROW["title"],
    "product_description": ROW["description"],
    "potential_product_categories": ROW["categories"],
}


def prompt(name):
    return next(prompt_of_round for prompt_of_round in chat_prompts() if prompt_of_round.name == name)


def schema(system):
    """Return the schema that a system's text shows, as a class that gives it."""
    text = system.split("```json\n")[1].split("\n```\n")[0]
    assert text == json.dumps(json.loads(text), indent=2)
    return SimpleNamespace(model_json_schema=lambda: json.loads(text))


class Picture:
    format = "PNG"

    def save(self, file: BytesIO, format: str) -> None:
        file.write(b"picture")


def function(source, name):
    """Return a function of a source, without its module."""
    tree = ast.parse(source)
    *_, node_found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    node_found.decorator_list = []
    node_found.returns = None
    for argument in (*node_found.args.args, *node_found.args.kwonlyargs):
        argument.annotation = None
    return ast.Module([node_found], [])


def test_v60_asks_as_the_reference_of_mlcommons_inference(official_file):
    ours = prompt("v6.0")
    module = {
        "BytesIO": BytesIO,
        "base64": __import__("base64"),
        "json": json,
        "ProductMetadata": schema(ours.system),
        "LoadedSample": SimpleNamespace,
    }
    exec(compile(function(official_file(COMMIT, TASK), "formulate_loaded_sample"), TASK, "exec"), module)
    messages = module["formulate_loaded_sample"]({**PUBLISHED, "product_image": Picture()}).messages
    system, user = ours.messages(ROW)
    assert messages[0] == {"role": "system", "content": system}
    assert messages[1]["content"][0] == {"type": "text", "text": user}
    assert messages[1]["content"][1]["image_url"]["url"].startswith("data:image/PNG;base64,")


def test_v61_asks_as_the_client_of_mlperf_endpoints():
    git = beside_checkout("upstream/mlcommons-endpoints.git", "mlcommons/endpoints")
    path = "src/inference_endpoint/dataset_manager/predefined/shopify_product_catalogue/presets.py"
    words = ["git", f"--git-dir={git}", "show", f"HEAD:{path}"]
    source = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    ours = prompt("v6.1")
    module = {"json": json, "ProductMetadata": schema(ours.system)}
    exec(compile(function(source, "process_row"), path, "exec"), module)
    listed = {**PUBLISHED, "potential_product_categories": json.dumps(ROW["categories"])}
    row = module["process_row"](None, {**listed, "product_image_base64": "YQ==", "product_image_format": "PNG"})
    system, user = ours.messages(ROW)
    assert (row["system"], row["prompt"][0]["text"]) == (system, user)

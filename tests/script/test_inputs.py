"""The inputs of the recipes: described once, as the code behind them reads them, and as the docs name them."""

import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cm4vllm.campaign.endpoints.settings import EndpointsSettings
from cm4vllm.campaign.entry import checked_job, input_values
from cm4vllm.campaign.settings import CampaignSettings
from cm4vllm.common.errors import CmError
from cm4vllm.common.settings import env_keys, parts_of
from cm4vllm.compliance.verification import verified_tests
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.run.flags import ENGINE_FLAGS
from cm4vllm.rules import Category, Division, ExecutionMode, Scenario
from recipes import recipe, recipes

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = list(recipes().values())
MAIN = recipe("run-mlperf-inference-app")
DESCRIBED = {
    entry["key"]: (script, flag, entry)
    for script in SCRIPTS
    for flag, entry in (script.raw.get("inputs") or {}).items()
}
INPUTS = runpy.run_path(str(ROOT / "docs/tools/recipe_inputs.py"))


def test_a_recipe_has_a_purpose_examples_and_inputs_of_one_form():
    assert [script.alias for script in SCRIPTS if not (script.purpose and script.examples)] == []
    other_forms = {"input_mapping", "input_description"}
    assert [script.alias for script in SCRIPTS if other_forms & yaml_of(script).keys()] == []


def yaml_of(script: ScriptMeta) -> dict[str, Any]:
    return dict(yaml.safe_load((script.path / "_cm.yaml").read_text()))


# --- defaults ---------------------------------------------------------------------------------------------------------

#: The words between a default and the case in which it applies, as in `256 on a CPU, else from vLLM`.
CASE = re.compile(r" (?:on|with|without|in|for|where) ")


def default_fault(entry: Mapping[str, Any]) -> str:
    """Return why the default of an input does not say what applies without it; empty where it does."""
    if "default" not in entry:
        return "it has no default"
    for default in (CASE.split(case)[0] for case in str(entry["default"]).split(", else ")):
        if default not in ("none", "required") and not default.startswith("from ") and not takes(entry, default):
            return f"{default!r} is no value of it, nor none, required, or `from ...`"
    return ""


def takes(entry: Mapping[str, Any], text: str) -> bool:
    if choices := entry.get("choices"):
        return text in choices
    shapes = {"integer": r"\d+", "number": r"\d+(\.\d+)?", "switch": "yes|no"}
    return re.fullmatch(shapes.get(str(entry["type"]), r"\S+"), text) is not None


def test_every_input_says_what_applies_without_it():
    assert {
        f"{script.alias} --{flag}": fault
        for script in SCRIPTS
        for flag, entry in script.input_description.items()
        if (fault := default_fault(entry))
    } == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "text"},
        {"type": "integer", "default": "many"},
        {"type": "switch", "default": "yes on a CPU, else vLLM's choice"},
        {"type": "text", "choices": ["open", "closed"], "default": "closde"},
    ],
)
def test_an_input_without_a_default_or_with_another_than_it_takes_is_found(entry):
    assert default_fault(entry)


# --- the code behind them ---------------------------------------------------------------------------------------------


def test_type_values_and_default_of_each_input_are_those_of_the_code_that_reads_it():
    """`python docs/tools/recipe_inputs.py` writes them."""
    assert {script.alias: changed for script in SCRIPTS if (changed := INPUTS["stale"](script.path / "_cm.yaml"))} == {}


def test_an_input_that_differs_from_the_code_is_written_again(tmp_path):
    meta, text = tmp_path / "_cm.yaml", (ROOT / "script/run-vllm-server/_cm.yaml").read_text()
    changed = text.replace("READY_TIMEOUT, group: server, type: number", "READY_TIMEOUT, group: server, type: switch")
    meta.write_text(changed.replace("chat], default: auto", "other], default: chat"))
    assert INPUTS["stale"](meta).keys() == {"api", "ready_timeout"}
    INPUTS["renew"](meta)
    assert yaml.safe_load(meta.read_text())["inputs"] == yaml.safe_load(text)["inputs"]


@pytest.mark.parametrize("flag", [flag for flag, entry in MAIN.input_description.items() if entry.get("choices")])
def test_the_main_job_takes_the_values_that_are_listed_and_no_other(tmp_path, flag):
    key = MAIN.input_mapping[flag]
    # The network division takes servers on other machines alone; of a plan for another machine none is asked.
    base = {
        "OUTPUT_BASE_DIR": str(tmp_path),
        "CM_MLPERF_INFERENCE_API_SERVER": "http://192.0.2.1:1",
        "CM_MLPERF_MACHINE": "8xH200",
    }
    with pytest.raises(CmError) as caught:
        checked_job(CampaignSettings.of({**base, key: "nonsense"}))
    assert caught.value.exit_code == 20
    assert "nonsense" in str(caught.value)
    for value in MAIN.input_description[flag]["choices"]:
        try:
            checked_job(CampaignSettings.of({**base, key: value}))
        except CmError as error:
            assert not re.search(rf"\b{re.escape(value)}\b", error.what) or flag == "device", error


def keys_of(cls):
    return {*env_keys(cls).values(), *(key for part in parts_of(cls).values() for key in keys_of(part))}


@pytest.mark.parametrize(
    ("alias", "settings"), [(MAIN.alias, CampaignSettings), ("run-mlperf-endpoints", EndpointsSettings)]
)
def test_all_inputs_of_a_job_are_fields_of_its_settings(alias, settings):
    (script,) = (script for script in SCRIPTS if script.alias == alias)
    assert {flag for flag, key in script.input_mapping.items() if key not in keys_of(settings)} == set()


def test_all_values_that_the_rules_have_are_listed():
    wanted = {"division": Division, "category": Category, "execution_mode": ExecutionMode}
    listed = {flag: MAIN.input_description[flag]["choices"] for flag in wanted}
    assert listed == {flag: [str(value) for value in kind] for flag, kind in wanted.items()}


def test_the_main_job_lists_the_benchmarks_of_the_round_and_their_scenarios():
    assert "llama3.1-8b" in input_values(CampaignSettings())["model"]
    assert "llama3.1-8b" not in input_values(CampaignSettings(round="v4.1"))["model"]
    assert input_values(CampaignSettings())["scenario"][:2] == ["Offline", "Server"]
    assert "scenario" not in input_values(CampaignSettings(round="v4.1"))
    assert DESCRIBED["CM_MLPERF_SEARCH_SCENARIOS"][2]["values"] == [
        str(scenario) for scenario in Scenario if scenario is not Scenario.MULTI_STREAM
    ]


def test_a_run_of_a_compliance_test_lists_the_tests_that_can_be_verified():
    place = str(ROOT / "script/app-mlperf-inference-vllm/customize.py")
    customize = runpy.run_path(place)
    assert customize["values"]({"env": {}})["values"]["compliance_test"] == list(verified_tests())


# --- the docs ---------------------------------------------------------------------------------------------------------

FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_]*)(?![\w-]|-\w)")
#: The flags of the main job that a file for sbatch is to have, and further ones of sbatch itself.
IN_QUOTES = re.compile(r"--(?:job|slurm_options)='([^']*)'")
COMMAND = re.compile(r"cm (?:run|plan|show|docker|dockerfile) script [^`\n]*?--tags=([\w,.#<>/-]+)([^`\n]*)")
#: Flags of other commands and programs that the docs name: other actions of cm, the benchmarks, vLLM, sbatch, ...
OTHERS = set(
    (
        "url config template json only quick rounds samples first drift settings vllm endpoints cores "
        "uds tool app list bind reuid real nnodes headless exclusive qos constraint "
        "command ipc network rm ulimit volume hash requires minutes resume capability"
    ).split()
)
KNOWN = {flag for script in SCRIPTS for flag in script.input_mapping} | ENGINE_FLAGS
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "script").glob("*/README.md"))]


def unknown_flags(text: str) -> list[str]:
    """Return the flags of a page that no recipe takes, and those that the recipe of their command does not."""
    unknown = sorted({flag for flag in FLAG.findall(text) if flag not in KNOWN | OTHERS})
    for tags, rest in COMMAND.findall(text.replace("\\\n", " ")):
        words = {word for word in tags.split(",") if word and word[0] not in "_<#-."}
        for script in [script for script in SCRIPTS if words and words <= set(script.tags)]:
            accepted = {*script.input_mapping, *ENGINE_FLAGS}
            own = IN_QUOTES.sub("", rest)
            unknown += [f"{tags} {flag}" for flag in FLAG.findall(own) if flag not in accepted]
            inner = " ".join(IN_QUOTES.findall(rest))
            unknown += [f"{tags} --job {flag}" for flag in FLAG.findall(inner) if flag not in MAIN.input_mapping]
    return unknown


def test_a_page_names_only_flags_that_a_recipe_takes():
    unknown = {str(page.relative_to(ROOT)): unknown_flags(page.read_text(encoding="utf-8")) for page in PAGES}
    assert {page: flags for page, flags in unknown.items() if flags} == {}

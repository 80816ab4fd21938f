"""A tree of the closed division, as only this test makes one: the official checkers refuse what its model answers.

Its runs are LoadGen's own over the whole dataset, of a system under test that answers each sample with the same eight
tokens; their least duration is written into the logs as in conftest.py. All else is as the division asks.
"""

import json
import os
import re
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import write_json, write_text
from cm4vllm.common.findings import Severity
from cm4vllm.common.records import read_record, write_record
from cm4vllm.compliance.audit import audit_config
from cm4vllm.compliance.verification import verify_run
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.records.assets import IDENTITY
from cm4vllm.records.described_system import NETWORK_KEYS, folder_name
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.rules import Division, Mode, Scenario, over_network, terms
from cm4vllm.submission.checker.official_checker import run_checkers
from cm4vllm.submission.log_truncation import truncate_tree
from cm4vllm.submission.tree import TreeAsked, build_tree

BENCHMARK, TEST = "llama3.1-8b", "TEST06"
SCENARIOS = (Scenario.OFFLINE, Scenario.INTERACTIVE)
WHOLE = terms("v6.1", BENCHMARK, Scenario.OFFLINE, Mode.ACCURACY).samples
#: Characters of all answers: below the lower bound, above the upper one.
GEN_LEN = {Scenario.OFFLINE: 21.0 * WHOLE, Scenario.INTERACTIVE: 9e6}
#: The checkers' lines on a result whose accuracy they refuse, and on what follows from that.
ACCURACY = re.compile(
    r"^NoResults |^SUMMARY: |Some accuracy checks Checks failed for|, accuracy not valid$"
    r"|is OK but accuracy has issues$"
)
WARNED = re.compile("accuracy not met|^Execution of check .* skipped|^accuracy_sample_count not found for model")
CONF = (
    f"*.Server.target_qps = 8000\n*.Server.min_duration = 500\n*.Offline.target_qps = 20\n"
    f"*.Offline.min_duration = 500\n*.Offline.min_query_count = {WHOLE}\n"
)


@pytest.fixture(scope="module")
def runs(parts: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LoadGen's logs of both modes and of the compliance test in each scenario: <scenario>/<mode or test>/."""
    folder = tmp_path_factory.mktemp("closed")
    for scenario in SCENARIOS:
        run_terms = terms("v6.1", BENCHMARK, scenario, Mode.PERFORMANCE)
        for place in (*Mode, TEST):
            parts.run_loadgen(
                folder / scenario / place,
                run_terms.loadgen_scenario,
                Mode.PERFORMANCE if place == TEST else place,
                samples=WHOLE,
                spread_s=0.7,
                conf=CONF,
                name=run_terms.loadgen_name,
                audit_config=audit_config(TEST if place == TEST else ""),
            )
    return folder


#: The facts of the network that a submitter states, with an accelerator-free system on another machine.
NETWORK = dict.fromkeys(NETWORK_KEYS[1:], "1") | {"network_type": "Ethernet", "nic_sut": "a card of 100 Gbit/s"}
ELSEWHERE = {"here": False, "stated": {**NETWORK, "number_of_nodes": "1", "accelerators_per_node": "0"}}


@pytest.fixture
def closed(request: pytest.FixtureRequest, parts: ModuleType, tmp_path: Path, runs: Path) -> TreeAsked:
    """Lay out a campaign in the closed division, or another one that has its rules, over the logs."""
    division = getattr(request, "param", Division.CLOSED)
    out, model = tmp_path / "out", tmp_path / "model"
    model.mkdir()
    (model / "generation_config.json").write_text('{"eos_token_id": [128001, 128009]}')
    machine = detect_machine()
    system = describe_system(
        machine,
        SystemAsked(
            submitter=parts.SUBMITTER,
            division=division,
            system_type="datacenter",
            vllm=parts.VLLM,
            packages={"torch": "2.13.0+cpu", "python": "3.11.7"},
            used=(),
            rehearsal=False,
            **(ELSEWHERE if over_network(division) else {}),
        ),
    )
    write_json(out / "system" / "system.json", system)
    write_record(out / "system" / "machine.json", machine)
    write_record(out / "system" / "software.json", parts.software())
    for scenario in SCENARIOS:
        for place in (*Mode, TEST):
            lay_out(
                parts,
                runs / scenario / place,
                out / "runs" / folder_name(system) / BENCHMARK / scenario / place,
                model,
                division,
            )
    return TreeAsked(
        out=out,
        submitter=parts.SUBMITTER,
        model=BENCHMARK,
        division=division,
        command="cm run script",
        readmes={scenario: f"# {scenario}: measured\n" for scenario in SCENARIOS},
    )


def lay_out(parts: ModuleType, logs: Path, folder: Path, model: Path, division: Division) -> None:
    """Make one run's folder of its logs: the record, and the scores or the verdict."""
    folder.mkdir(parents=True)
    scenario, place = Scenario(folder.parent.name), folder.name
    for log in logs.iterdir():
        if log.name == DETAIL_LOG and place != TEST:
            text = parts.SHORT.sub(r"\g<1>600000", log.read_text())
            named = text.replace('"PySUT"', '"Network SUT: node-1"') if over_network(division) else text
            write_text(folder / log.name, named)
        else:
            os.link(log, folder / log.name)
    mode = Mode.PERFORMANCE if place == TEST else Mode(place)
    record = parts.run_record(
        folder, terms("v6.1", BENCHMARK, scenario, mode), rehearsal=False, samples=WHOLE, source="made by the test"
    )
    own = replace(record.settings.model, name=BENCHMARK, path=str(model), recipe={IDENTITY: BENCHMARK})
    settings = replace(
        record.settings,
        model=own,
        min_tokens=1,
        network=over_network(division),
        user_conf=CONF.replace("= 500", "= 600000"),
        **({"compliance_test": TEST, "audit_config": audit_config(TEST)} if place == TEST else {}),
    )
    record = replace(record, settings=settings)
    write_record(folder / RUN_FILE, record)
    if place == TEST:
        assert verify_run(folder).passed
    elif mode is Mode.ACCURACY:
        parts.write_scores(
            folder, record, WHOLE, rouge1=1.5, rouge2=0.1, rougeL=1.2, rougeLsum=1.4, gen_len=GEN_LEN[scenario]
        )


@pytest.mark.parametrize("closed", [Division.NETWORK], indirect=True)
def test_a_tree_of_the_network_division_says_how_its_machines_are_connected(closed):
    tree = build_tree(closed)
    page = (tree / "network" / closed.submitter / "documentation" / "network.md").read_text()
    assert "| node node-1 " in page and "cards: 1 x a card of 100 Gbit/s" in page and "POST /v1/completions" in page
    (system,) = tree.glob("network/*/systems/*.json")
    stated = json.loads(system.read_text())
    assert {key: stated[key] for key in NETWORK_KEYS} == {"is_network": "true", **NETWORK}
    codes = {finding.code for finding in check_tree(tree).findings if finding.severity is Severity.ERROR}
    short = {"ACCURACY-TARGET", "ACCURACY-LOG-SIZE", "ACCURACY-HASH"}
    # The fixture states other tokens in the log than LoadGen measured.
    assert codes == short | {"TOKENS-DIFFER", "LOG-FIGURES", "LOG-REQUESTED", "SUMMARY-DIFFERS"}


@pytest.mark.parametrize("closed", [Division.CLOSED, Division.NETWORK], indirect=True)
def test_the_official_checkers_refuse_its_accuracy_and_lengths_alone(closed, inference):
    tree = build_tree(closed)
    truncate_tree(tree)
    assert sorted(path.name for path in tree.glob("*/*/results/*/*/*/*") if path.is_dir()) == sorted(
        ["TEST06", "accuracy", "performance"] * 2
    )
    for run in run_checkers(tree, closed.submitter, "v6.1", inference, tree.parent / "checker").runs:
        assert not run.crashed and not run.passed
        assert [error for error in run.errors if not ACCURACY.search(error)] == [], run.name
        assert [warning for warning in run.warnings if not WARNED.search(warning)] == [], run.name
        for target in terms("v6.1", BENCHMARK, Scenario.OFFLINE, Mode.ACCURACY).targets:
            missed = f"accuracy not met: expected={target.lower:f}"
            assert any(missed in warning and "/Offline/" in warning for warning in run.warnings), target.metric
        assert any("upper limit=8984408.4" in warning and "/Interactive/" in warning for warning in run.warnings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda run: replace(run, settings=replace(run.settings, model=replace(run.settings.model, recipe={}))),
            "does not say that llama3.1-8b is the model",
        ),
        (lambda run: replace(run, settings=replace(run.settings, max_tokens=64)), "with other lengths"),
    ],
)
def test_no_tree_is_made_of_runs_that_the_division_has_no_place_for(closed, change, words):
    for path in closed.out.glob("runs/*/*/*/*/run.json"):
        write_record(path, change(read_record(path, RunRecord)))
    with pytest.raises(SubmissionError, match=words):
        build_tree(closed)

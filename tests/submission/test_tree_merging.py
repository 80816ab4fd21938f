"""Several results in one tree: added and removed without a change to the others, refused where they contradict."""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from builders import campaign_record
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.files import write_text
from cm4vllm.common.records import read_record, write_record
from cm4vllm.compliance.audit import audit_config
from cm4vllm.compliance.verification import verify_run
from cm4vllm.records.assets import IDENTITY
from cm4vllm.records.campaign import CAMPAIGN_FILE
from cm4vllm.records.described_system import NETWORK_KEYS, folder_name
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.rules import Division, Mode, Scenario, over_network, terms
from cm4vllm.submission import tree_writer
from cm4vllm.submission.checker.official_checker import run_checkers
from cm4vllm.submission.log_truncation import truncate_tree
from cm4vllm.submission.result_removal import remove_results
from cm4vllm.submission.tree import TreeAsked, build_tree, system_folder
from cm4vllm.submission.tree_inputs import TreeSettings, place_of_tree
from cm4vllm.submission.tree_writer import digests

pytestmark = pytest.mark.xdist_group("runs-submission")  # one process makes the runs of these files

#: The files that several results share: pages with a part for each, and the mapping.
SHARED = {"README.md", "documentation/calibration.md", "model_mapping.json"}


@pytest.fixture
def two(lay_out):
    """Lay out the results of two systems; give what their trees are asked to be, each with a server's command."""

    def results(name, system=""):
        asked = lay_out(name)
        if system:
            path = asked.out / "system" / "system.json"
            described = json.loads(path.read_text()) | {"system_name": system}
            runs = asked.out / "runs" / system_folder(asked.out)
            runs.rename(runs.with_name(folder_name(described)))
            path.write_text(json.dumps(described))
            asked = dataclasses.replace(asked, page=page(asked.model))
        return dataclasses.replace(asked, server_command=f"vllm serve '${{MODEL:?}}' --name={name}")

    return results("one"), results("two", "other-system")


def page(model):
    return f'<title>{model} on it</title><h3 id="tile-Offline"></h3><h3 id="tile-Server"></h3>\n'


def home(tree):
    return tree / "open" / "Nobody"


def apart(before, after):
    """Return the files that were there before and are others now, and those that are gone."""
    return ({name for name in before if name in after and before[name] != after[name]}, set(before) - set(after))


def below(names):
    return {name.removeprefix("open/Nobody/") for name in names}


def test_a_result_is_added_and_no_other_file_changes(two, tmp_path):
    first, other = two
    tree = build_tree(first, tree=tmp_path / "tree")
    truncate_tree(tree)
    before = digests(tree)
    build_tree(other, tree=tree, add=True)
    truncate_tree(tree)
    changed, gone = apart(before, digests(tree))
    assert below(changed) <= SHARED | {f"src/{first.model}/README.md"} and not gone
    for asked in two:
        for scenario in ("Offline", "Server"):
            assert (home(tree) / "results" / system_folder(asked.out) / asked.model / scenario).is_dir()
    root = (home(tree) / "README.md").read_text()
    assert "--name=one" in root and "--name=two" in root and root.count("### Quantisation") == 2
    assert root.count("| [README](results/") == 4
    ran = (home(tree) / "src" / first.model / "README.md").read_text()
    assert "## other-system: Offline, Server" in ran
    at_once = build_tree(first, other, tree=tmp_path / "at-once")
    truncate_tree(at_once)
    assert {name for name, digest in digests(at_once).items() if digests(tree).get(name) != digest} <= {
        "open/Nobody/README.md"
    }  # the table of results stands where it was first written


def test_what_was_added_is_removed_and_the_tree_is_what_it_was(two, tmp_path):
    first, other = two
    tree = build_tree(first, tree=tmp_path / "tree")
    before = digests(tree)
    with pytest.raises(SubmissionError, match="already") as refused:
        build_tree(first, tree=tree, add=True)
    assert "--remove=" in refused.value.remedy and digests(tree) == before
    build_tree(other, tree=tree, add=True)
    assert remove_results(tree, "other-system") == [
        f"other-system/{first.model}/Offline",
        f"other-system/{first.model}/Server",
    ]
    assert digests(tree) == before


def test_one_scenario_is_removed_with_the_pages_that_show_it(two, tmp_path, capsys):
    other = dataclasses.replace(two[1], capsule="runs: []\n")
    tree = build_tree(two[0], other, tree=tmp_path / "tree")
    capsule = home(tree) / "src" / other.model / "rerun-other-system-Offline-Server.yaml"
    assert capsule.is_file()
    remove_results(tree, f"other-system/{other.model}/Offline")
    assert not (home(tree) / "results/other-system" / other.model / "Offline").exists()
    assert (
        "other-system/summary.html is removed" in capsys.readouterr().err + capsys.readouterr().out
        or not (home(tree) / "results/other-system/summary.html").exists()
    )
    assert f"## {other.model} on other-system: Server" in (home(tree) / "README.md").read_text()
    assert capsule.is_file() and (home(tree) / "systems/other-system.json").is_file()
    remove_results(tree, f"other-system/{other.model}/server")
    assert not capsule.exists() and not (home(tree) / "systems/other-system.json").exists()
    with pytest.raises(SubmissionError, match="all that"):
        remove_results(tree, system_folder(two[0].out))
    with pytest.raises(SubmissionError, match="has no result nonesuch"):
        remove_results(tree, "nonesuch")


def test_the_second_scenario_of_a_system_comes_with_pages_of_its_own(two, tmp_path):
    asked = two[1]
    parts = [
        dataclasses.replace(
            asked, readmes={scenario: asked.readmes[scenario]}, server_command=f"vllm serve m --{scenario}"
        )
        for scenario in (Scenario.OFFLINE, Scenario.SERVER)
    ]
    tree = build_tree(parts[0], tree=tmp_path / "tree")
    build_tree(parts[1], tree=tree, add=True)
    names = {path.name for path in (home(tree) / "results/other-system").glob("*.html")}
    assert names == {"summary.html", f"summary-{asked.model}-Server.html"}
    assert (home(tree) / "README.md").read_text().count("--Offline") == 1


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"submitter": "Another"}, "one submitter"),
        ({"description": {"cooling": "liquid"}}, "cooling: "),
        ({"mapping": "llama2-70b-99"}, "llama2-70b-99"),
        ({"program": True}, "is not what its MANIFEST.sha256 lists"),
        ({"round": True}, "one round"),
    ],
)
def test_what_contradicts_the_tree_is_refused_and_the_tree_stays(two, tmp_path, rewrite, parts, change, fault):
    first, other = two
    tree = build_tree(first, tree=tmp_path / "tree")
    if "description" in change:  # the same system, with another description
        other = dataclasses.replace(first, readmes={Scenario.SERVER: first.readmes[Scenario.SERVER]})
        remove_results(tree, f"{system_folder(first.out)}/{first.model}/Server")
        rewrite(first.out / "system" / "system.json", lambda system: system.update(change["description"]))
    if "submitter" in change:
        shutil.move(home(tree), home(tree).with_name("Another"))
    if "mapping" in change:
        rewrite(home(tree) / "model_mapping.json", lambda mapping: mapping.update({first.model: change["mapping"]}))
    if "program" in change:
        (home(tree) / "src/cm4vllm/cmr.yaml").write_text("alias: another\n")
    if "round" in change:
        for log in tree.rglob("mlperf_log_detail.txt"):
            log.write_text(parts.of_round(log.read_text(), "v5.0"))
    before = digests(tree)
    with pytest.raises(SubmissionError) as refused:
        build_tree(other, tree=tree, add=True)
    assert fault in str(refused.value), refused.value
    assert digests(tree) == before


def test_results_of_an_updated_program_are_added_beside_those_of_the_old_one(two, tmp_path, capsys):
    first, other = two
    tree = build_tree(first, tree=tmp_path / "tree")
    manifest = home(tree) / "src/cm4vllm/MANIFEST.sha256"
    manifest.write_text(re.sub(r"commit .*", "commit 0ld", manifest.read_text(), count=1))
    truncate_tree(tree)
    before = digests(tree)
    build_tree(other, tree=tree, add=True)
    changed, gone = apart(before, digests(tree))
    assert below(changed) <= SHARED | {f"src/{first.model}/README.md"} and not gone
    versions = {path.name for path in (home(tree) / "src").glob("cm4vllm*")}
    (new,) = versions - {"cm4vllm"}
    page = (home(tree) / "src" / first.model / "README.md").read_text()
    assert f"`../{new}`" in page and "`../cm4vllm`" in page
    captured = capsys.readouterr()
    said = " ".join((captured.err + captured.out).split())
    assert "2 versions of the program" in said and f"src/{new} goes with the results that are added now" in said
    remove_results(tree, "other-system")
    assert {path.name for path in (home(tree) / "src").glob("cm4vllm*")} == {"cm4vllm"}
    truncate_tree(tree)
    assert digests(tree) == before


def test_a_tree_that_changes_meanwhile_is_not_overwritten(two, tmp_path, monkeypatch):
    first, other = two
    tree = build_tree(first, tree=tmp_path / "tree")
    log = next(tree.rglob("performance/run_1/mlperf_log_summary.txt"))
    copied = shutil.copytree

    def copy_and_change(source: Path, *args, **named):
        done = copied(source, *args, **named)
        if Path(source) == tree:  # it calls itself for each folder in it
            log.write_text("changed meanwhile\n")
        return done

    monkeypatch.setattr(tree_writer.shutil, "copytree", copy_and_change)
    with pytest.raises(SubmissionError, match="was not changed"):
        build_tree(other, tree=tree, add=True)
    assert log.read_text() == "changed meanwhile\n"


def test_a_run_killed_between_the_two_renames_has_lost_nothing(two, tmp_path):
    first, other = two
    tree = build_tree(first, tree=tmp_path / "tree")
    before = digests(tree)
    (tmp_path / ".tree.cm4vllm.json").rename(tmp_path / ".kept-tree.cm4vllm.json")
    tree.rename(tmp_path / "kept-tree")  # where the older tree waits for the newer one to take its place
    (tmp_path / "tree.partial" / "open").mkdir(parents=True)
    build_tree(other, tree=tree, add=True)
    assert not apart(before, digests(tree))[1]
    assert not (tmp_path / "kept-tree").exists()


def test_results_are_added_to_a_tree_of_somebody_else(two, tmp_path, neural_magic):
    """A published tree is for reading only, in the layout of v4.1, and has pages of its own words."""
    tree = tmp_path / "tree"
    shutil.copytree(neural_magic.parents[1], tree)
    removed = remove_results(tree, "vLLM_8xL40S-reference-cpu-pytorch-v2.3.1-default_config")
    assert len(removed) == 3
    with pytest.raises(SubmissionError, match="one submitter"):
        build_tree(two[0], tree=tree, add=True)
    words = (tree / "open/NeuralMagic/README.md").read_text()
    assert words.startswith((neural_magic / "README.md").read_text())


@pytest.mark.parametrize("name", ["closed/OtherOrg/results/r.txt", "notes.txt", "a/b/c/thesis.tex"])
def test_a_folder_of_other_files_is_not_replaced_by_a_tree(two, tmp_path, name):
    tree = tmp_path / "tree"
    write_record(two[0].out / CAMPAIGN_FILE, campaign_record(system=system_folder(two[0].out), model=two[0].model))
    (tree / name).parent.mkdir(parents=True)
    (tree / name).write_text("mine")
    for call in (
        lambda: build_tree(two[0], tree=tree),
        lambda: place_of_tree(TreeSettings(results=str(two[0].out), tree=str(tree))),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert "--submission_dir" in caught.value.remedy
        assert [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()] == [name]


def test_a_tree_with_somebody_elses_submission_is_added_to_and_never_replaced(two, tmp_path):
    first, other = two
    tree = build_tree(first, tree=tmp_path / "tree")
    (tree / "notes.txt").write_text("mine")
    build_tree(other, tree=tree, add=True)
    assert (tree / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "kept-tree").exists()
    theirs = tree / "closed/OtherOrg/results/r.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    with pytest.raises(UsageError) as caught:
        build_tree(first, tree=tree)
    assert "closed/OtherOrg" in caught.value.cause
    assert theirs.read_text() == "theirs"


def test_notes_and_changed_pages_of_a_tree_are_kept_when_it_is_built_again(two, tmp_path):
    first, _ = two
    tree = build_tree(first, tree=tmp_path / "tree")
    (tree / "notes.txt").write_text("mine")
    page = next(tree.rglob("README.md"))
    page.write_text("my own words")
    build_tree(first, tree=tree)
    assert (tmp_path / "kept-tree" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "kept-tree" / page.relative_to(tree)).read_text() == "my own words"
    assert page.read_text() != "my own words"
    shutil.rmtree(tmp_path / "kept-tree")
    (tmp_path / ".tree.cm4vllm.json").unlink()  # earlier versions wrote no note: the program in it says whose it is
    before = digests(tree)
    build_tree(first, tree=tree)
    assert digests(tmp_path / "kept-tree") == before


@pytest.mark.parametrize("place", ["tree", "left/tree", "."])
def test_a_tree_of_another_submitter_that_cm4vllm_built_is_not_replaced(two, tmp_path, place):
    tree = build_tree(two[0], tree=tmp_path / place / "submission")
    before = digests(tree)
    out = two[1].out
    described = json.loads((out / "system" / "system.json").read_text()) | {"submitter": "OrgB"}
    (out / "system" / "system.json").write_text(json.dumps(described))
    record = campaign_record(system=system_folder(out), model=two[1].model, submitter="OrgB")
    write_record(out / CAMPAIGN_FILE, record)
    inputs = TreeSettings(results=str(out), tree=str(tree))
    place_of_tree(replace(inputs, submitter="Nobody"))
    for call in (
        lambda: build_tree(dataclasses.replace(two[1], submitter="OrgB"), tree=tree),
        lambda: place_of_tree(replace(inputs, submitter="OrgB")),
        lambda: place_of_tree(inputs),  # the submitter of the results
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert "open/Nobody" in caught.value.cause and "--submission_dir" in caught.value.remedy
    assert digests(tree) == before


# --- a tree of the closed division, as only this test makes one: the official checkers refuse what its model answers
# Its runs are LoadGen's own over the whole dataset, of a system under test that answers each sample with the same eight
# tokens; their least duration is written into the logs as in conftest.py. All else is as the division asks.


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
    elsewhere = ELSEWHERE if over_network(division) else {}
    system = parts.write_system_files(out, rehearsal=False, division=division, **elsewhere)
    for scenario in SCENARIOS:
        for place in (*Mode, TEST):
            folder = out / "runs" / folder_name(system) / BENCHMARK / scenario / place
            lay_out(parts, runs / scenario / place, folder, model, division)
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

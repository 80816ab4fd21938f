import dataclasses
import json
import re
import socket
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

import cm4vllm
from cm4vllm import REHEARSAL_NOTICE, STAND_IN_NOTICE
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.errors import CheckerFailed, SubmissionError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.programs import own_program
from cm4vllm.common.programs.own_program import commit_of_this_repository
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.assets import DUMMY_SOURCE, STAND_IN_SOURCE
from cm4vllm.records.compliance import CheckResult, ComplianceRecord
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.judgement.campaign_verdict import unexpected_findings
from cm4vllm.rules import Division, Scenario, tree_layout
from cm4vllm.submission import published_program
from cm4vllm.submission import tree as tree_module
from cm4vllm.submission.checker.official_checker import check_submission
from cm4vllm.submission.log_truncation import truncate_tree
from cm4vllm.submission.tree import build_tree, system_folder


def measurement(asked, scenario=Scenario.OFFLINE):
    home = asked.out / "submission" / "open" / asked.submitter
    return home / "results" / system_folder(asked.out) / asked.model / scenario


def runs(asked, scenario="Offline", mode="performance"):
    return asked.out / "runs" / system_folder(asked.out) / asked.model / scenario / mode


def test_the_tree_has_every_file_of_the_round(built):
    for scenario in (Scenario.OFFLINE, Scenario.SERVER):
        files = {
            path.relative_to(measurement(built, scenario)).as_posix()
            for path in measurement(built, scenario).rglob("*")
            if path.is_file()
        }
        assert files == set(
            (
                "measurements.json user.conf README.md accuracy/accuracy.txt "
                "accuracy/mlperf_log_accuracy.json accuracy/mlperf_log_detail.txt "
                "accuracy/mlperf_log_summary.txt performance/run_1/mlperf_log_detail.txt "
                "performance/run_1/mlperf_log_summary.txt pip_freeze.json cpu_info.json os_info.json"
            ).split()
        )
    home = built.out / "submission" / "open" / built.submitter
    assert (home / "systems" / f"{system_folder(built.out)}.json").is_file()
    assert json.loads((home / "model_mapping.json").read_text()) == {built.model: "llama3.1-8b"}
    assert (measurement(built).parents[1] / "summary.html").read_text() == "<html></html>\n"
    page = (home / "README.md").read_text()
    assert f"| [{system_folder(built.out)}](results/{system_folder(built.out)}/summary.html) |" in page
    links = re.findall(r"\| \[[^\]]+\]\(([^)]+)\)", page)
    assert links and all((home / link).is_file() for link in links)


def test_logs_are_those_of_the_runs_byte_for_byte(built):
    copied = list(measurement(built).rglob("mlperf_log_*"))
    assert len(copied) == 5
    for path in copied:
        mode = "accuracy" if path.parent.name == "accuracy" else "performance"
        assert sha256_of(path) == sha256_of(runs(built, mode=mode) / path.name)


def test_a_rehearsal_says_so_in_every_file_that_may_carry_text(built):
    tree = built.out / "submission"
    marked = [
        path
        for path in tree.rglob("*")
        if path.name in ("README.md", "user.conf", "measurements.json", "accuracy.txt")
        and "/src/cm4vllm/" not in str(path)
    ]
    marked += list(tree.glob("*/*/systems/*.json"))
    assert len(marked) == 2 * 4 + 3
    for path in marked:
        assert REHEARSAL_NOTICE in path.read_text(), path


def test_a_result_carries_no_notice_of_a_rehearsal(campaign):
    tree = build_tree(campaign(rehearsal=False))
    program = tree / "open" / "Nobody" / "src" / "cm4vllm"
    for path in tree.rglob("*"):
        if path.is_file() and program not in path.parents:
            assert REHEARSAL_NOTICE not in path.read_text(), path


@pytest.mark.parametrize("rehearsal", [False, True])
def test_stand_in_weights_are_named_as_such_wherever_a_rehearsal_is(campaign, rehearsal):
    tree = build_tree(campaign(rehearsal=rehearsal, source=STAND_IN_SOURCE))
    files = [
        path
        for path in tree.rglob("*")
        if path.name in ("README.md", "user.conf", "measurements.json", "accuracy.txt")
        and "/src/cm4vllm/" not in str(path)
    ]
    files += tree.glob("*/*/systems/*.json")
    assert len(files) == 2 * 4 + 3
    for path in files:
        text = path.read_text()
        assert STAND_IN_NOTICE in text, path
        assert (REHEARSAL_NOTICE in text) is rehearsal, path
    system = json.loads(files[-1].read_text())
    assert all(system[key].count(STAND_IN_NOTICE) == 1 for key in ("hw_notes", "sw_notes"))


def test_no_tree_is_made_of_random_weights(campaign):
    asked = campaign(rehearsal=True, source=DUMMY_SOURCE)
    with pytest.raises(SubmissionError) as caught:
        build_tree(asked)
    assert "WEIGHTS-DUMMY" in str(caught.value) and "DUMMY WEIGHTS" in str(caught.value)
    assert not (asked.out / "submission").exists()


def test_measurements_state_the_five_keys_and_no_path_of_the_machine(built):
    content = json.loads((measurement(built) / "measurements.json").read_text())
    assert content["input_data_types"] == "int32"
    assert content["weight_data_types"] == "bf16"
    assert content["starting_weights_filename"] == "tiny-llama"
    assert content["retraining"] == "not the benchmark's weights: trained in tiny-llama"
    assert content["weight_transformations"] == "none"


def test_the_source_page_names_version_command_and_commit(campaign):
    asked = dataclasses.replace(campaign(), commit="0123abc", command=f"cm run script --output_dir={Path.home()}/r")
    build_tree(asked)
    page = (asked.out / "submission" / "open" / asked.submitter / "src" / asked.model / "README.md").read_text()
    assert "The runs were made by cm4vllm, commit 0123abc. The program that built this part of the tree" in page
    here = commit_of_this_repository()
    own = build_tree(dataclasses.replace(asked, commit=here), tree=asked.out / "own")
    page = next(own.glob(f"*/*/src/{asked.model}/README.md")).read_text()
    assert (
        f"made by cm4vllm {cm4vllm.__version__}" in page and f"commit {here}. All of it lies beside this page" in page
    )
    assert '\ncm run script \\\n    --output_dir="${OUTPUT_DIR:?}"\n' in page


def test_nothing_private_reaches_the_tree(built):
    tree = built.out / "submission"
    private = [re.escape(str(built.out)), rf"\b{re.escape(socket.gethostname())}\b", r"/models/"]
    for path in tree.rglob("*"):
        if path.is_file() and "src/cm4vllm" not in path.as_posix():
            for word in private:
                assert not re.search(word, path.read_text()), f"{word} in {path}"


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("Offline/performance/run.json", "no submission without"),
        ("Server/accuracy/run.json", "no submission without"),
        ("Server/accuracy/accuracy.json", "no submission without"),
        ("Server/accuracy/accuracy.txt", "accuracy.txt is missing"),
        ("Server/accuracy/mlperf_log_accuracy.json", "mlperf_log_accuracy.json is missing"),
        ("Offline/performance/mlperf_log_detail.txt", "mlperf_log_detail.txt is missing"),
    ],
)
def test_a_missing_file_is_refused(campaign, path, fault):
    asked = campaign()
    (runs(asked).parents[1] / path).unlink()
    with pytest.raises(SubmissionError, match=fault):
        build_tree(asked)


def change_settings(rewrite, path, **values):
    rewrite(path, lambda record: record["settings"]["terms"].update(values))


@pytest.mark.parametrize(
    ("values", "fault"), [({"benchmark": "llama2-70b-99.9"}, "benchmark"), ({"round": "v6.0"}, "round")]
)
def test_runs_of_different_settings_are_refused(campaign, rewrite, values, fault):
    asked = campaign()
    change_settings(rewrite, runs(asked, "Server") / "run.json", **values)
    with pytest.raises(SubmissionError, match="do not belong together") as refused:
        build_tree(asked)
    assert f"differ in their {fault}" in str(refused.value)


@pytest.mark.parametrize("part", ["model", "dataset"])
def test_runs_of_different_models_or_datasets_are_refused(campaign, rewrite, part):
    asked = campaign()
    rewrite(
        runs(asked, "Server", "accuracy") / "run.json", lambda record: record["settings"][part].update(sha256="f" * 64)
    )
    with pytest.raises(SubmissionError, match="do not belong together") as refused:
        build_tree(asked)
    assert f"differ in their {part}" in str(refused.value)


def test_runs_of_different_servers_are_refused(campaign, rewrite):
    asked = campaign()
    rewrite(runs(asked, "Server") / "run.json", lambda record: record["settings"]["server"].update(version="0.31.0"))
    with pytest.raises(SubmissionError, match="do not belong together"):
        build_tree(asked)


def test_a_rehearsal_among_results_is_refused(campaign, rewrite):
    asked = campaign(rehearsal=False)

    def rehearse(record):
        record["settings"]["rehearsal"] = True
        record["notice"] = REHEARSAL_NOTICE

    rewrite(runs(asked, "Server") / "run.json", rehearse)
    with pytest.raises(SubmissionError, match="do not belong together"):
        build_tree(asked)


def test_a_short_run_that_calls_itself_a_result_is_refused(campaign):
    asked = campaign(rehearsal=False)
    folder = runs(asked, "Server")
    log = folder / "mlperf_log_detail.txt"
    log.write_text(
        log.read_text().replace(
            '"effective_min_duration_ms", "value": 600000', '"effective_min_duration_ms", "value": 1000'
        )
    )
    record = json.loads((folder / "run.json").read_text())
    record["files"][log.name] = sha256_of(log)
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(SubmissionError, match="a result needs a minimum duration of 600 s"):
        build_tree(asked)


def test_every_error_is_listed_not_the_first(campaign, rewrite):
    asked = campaign()
    (runs(asked, "Offline", "accuracy") / "accuracy.txt").unlink()
    (runs(asked, "Server") / "mlperf_log_summary.txt").unlink()
    rewrite(runs(asked, "Server", "accuracy") / "run.json", lambda record: record.update(loadgen_version="5.0"))
    with pytest.raises(SubmissionError, match="3 errors") as refused:
        build_tree(asked)
    for code in ("RUNS-DIFFER", "SCORES-MISSING", "LOG-MISSING"):
        assert f"error {code}: " in refused.value.cause


def test_a_rehearsal_that_lost_its_notice_is_refused(campaign, rewrite):
    asked = campaign(rehearsal=True)
    for mode in ("performance", "accuracy"):
        for scenario in (Scenario.OFFLINE, Scenario.SERVER):
            rewrite(runs(asked, scenario, mode) / "run.json", lambda record: record.update(notice=""))
    with pytest.raises(SubmissionError, match="contradicts itself"):
        build_tree(asked)


def test_the_description_of_a_rehearsal_is_refused_for_a_result(campaign, rewrite):
    asked = campaign(rehearsal=False)
    rewrite(asked.out / "system" / "system.json", lambda system: system.update(sw_notes=REHEARSAL_NOTICE))
    with pytest.raises(SubmissionError, match="is that of a rehearsal"):
        build_tree(asked)


def test_a_record_in_the_wrong_place_is_refused(campaign):
    asked = campaign()
    (runs(asked) / "run.json").write_text((runs(asked, "Server") / "run.json").read_text())
    with pytest.raises(SubmissionError, match="record of a Server performance run"):
        build_tree(asked)


def test_a_changed_log_is_refused(campaign):
    asked = campaign()
    log = runs(asked) / "mlperf_log_detail.txt"
    changed = log.read_text().replace("INVALID", "VALID")
    log.unlink()
    log.write_text(changed)
    with pytest.raises(SubmissionError, match="is not the log of the run beside it"):
        build_tree(asked)


def test_scores_of_another_log_are_refused(campaign, rewrite):
    asked = campaign()
    rewrite(runs(asked, mode="accuracy") / "accuracy.json", lambda record: record.update(log_sha256="0" * 64))
    with pytest.raises(SubmissionError, match="those of another log"):
        build_tree(asked)


def test_scores_of_a_part_of_the_samples_are_refused_for_a_result(campaign, rewrite):
    asked = campaign(rehearsal=False)
    rewrite(runs(asked, mode="accuracy") / "accuracy.json", lambda record: record.update(samples=7))
    with pytest.raises(SubmissionError, match="is not whole"):
        build_tree(asked)


def test_a_model_whose_weights_are_unknown_is_refused(campaign, rewrite):
    asked = campaign()
    for scenario in (Scenario.OFFLINE, Scenario.SERVER):
        for mode in ("performance", "accuracy"):
            rewrite(
                runs(asked, scenario, mode) / "run.json",
                lambda record: record["settings"]["model"].update(weight_data_types=""),
            )
    with pytest.raises(SubmissionError, match="type of its weights"):
        build_tree(asked)


def test_a_description_of_another_server_is_refused(campaign, rewrite):
    asked = campaign()
    rewrite(asked.out / "system" / "system.json", lambda system: system.update(framework="vLLM 0.9.0"))
    with pytest.raises(SubmissionError, match=r"vLLM 0\.9\.0"):
        build_tree(asked)


def test_all_differences_of_the_description_are_listed_with_those_of_the_runs(campaign, rewrite):
    asked = dataclasses.replace(campaign(), submitter="Other")
    rewrite(asked.out / "system" / "system.json", lambda system: system.update(framework="vLLM 0.9.0"))
    rewrite(runs(asked, "Server", "accuracy") / "run.json", lambda record: record.update(loadgen_version="5.0"))
    with pytest.raises(SubmissionError, match="3 errors") as refused:
        build_tree(asked)
    for text in ("submitter 'Nobody'", "vLLM 0.9.0", "LoadGen version"):
        assert text in refused.value.cause


@pytest.mark.parametrize("change", [{"submitter": "Other"}, {"division": Division.CLOSED}])
def test_another_submitter_or_division_than_described_is_refused(campaign, change):
    with pytest.raises(SubmissionError):
        build_tree(dataclasses.replace(campaign(), **change))


def test_an_empty_readme_is_refused(campaign):
    asked = campaign()
    with pytest.raises(SubmissionError, match="README text of Server"):
        build_tree(dataclasses.replace(asked, readmes={**asked.readmes, Scenario.SERVER: " \n"}))


def test_a_refused_tree_leaves_the_earlier_one_as_it_was(campaign):
    asked = campaign()
    tree = build_tree(asked)
    before = sorted((path.name, path.stat().st_size) for path in tree.rglob("*"))
    (runs(asked, "Server") / "run.json").unlink()
    with pytest.raises(SubmissionError):
        build_tree(asked)
    assert sorted((path.name, path.stat().st_size) for path in tree.rglob("*")) == before


def test_one_scenario_alone_makes_a_tree(campaign):
    asked = campaign()
    build_tree(dataclasses.replace(asked, readmes={Scenario.OFFLINE: "# Offline\n"}))
    assert measurement(asked).is_dir()
    assert not measurement(asked, Scenario.SERVER).exists()


#: The findings on a short run, or a dataset of 200 samples; any other would be a fault of the tree itself.
SHORT = set(
    (
        "RESULT-INVALID ACCURACY-SAMPLES PERFORMANCE-SAMPLES ACCURACY-HASH ACCURACY-LOG-SIZE "
        "LOG-MIN-DURATION ACCURACY-TARGET MODEL-MAPPED MODEL-NOT-VERIFIABLE LOG-ERRORS"
    ).split()
)
#: Of the logs and pages that the fixture writes: a README without commands, tokens of another run.
MADE_UP = {"README-NO-COMMAND", "TOKENS-DIFFER"}


def test_the_checks_for_trees_of_anyone_find_nothing_in_ours_but_that_it_is_short(built):
    left = [finding for finding in check_tree(built.out / "submission").findings if finding.code not in SHORT | MADE_UP]
    assert [str(finding) for finding in left if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("git", [[], ["init"], ["init", "add"]], ids=["no git", "no commit", "files without a commit"])
def test_a_program_of_no_commit_is_named_as_that_without_a_list_of_all_its_files(campaign, git, tmp_path, monkeypatch):
    root = tmp_path / "program"
    (root / "src").mkdir(parents=True)
    (root / "cmr.yaml").write_text("alias: cm4vllm\n")
    for number in range(40):
        (root / "src" / f"part_{number}.py").touch()
    for word in git:
        subprocess.run(["git", word, *(["--quiet"] if word == "init" else ["."])], cwd=root, check=True)
    monkeypatch.setattr(own_program, "_root", lambda: root)
    monkeypatch.setattr(published_program, "program_files", own_program.program_files)
    warned = []
    monkeypatch.setattr(tree_module, "warn", warned.append)
    build_tree(campaign())
    (text,) = [text for text in warned if "program" in text]
    assert "no known commit" in text and "more" not in text and "part_" not in text


# --- the compliance tests of a campaign in its submission tree, in the layout of each round


VERDICT = "First token check pass: Skipped\nEOS check pass: True\nSample length check pass: True\n"


def add_test(asked, test, *, scenario="Offline", file="verify_accuracy.txt", shows_logs=False, **other):
    """Lay the run of a test beside a performance run, made as that one was but for `other`."""
    place = asked.out / "runs" / system_folder(asked.out) / asked.model / scenario
    folder = place / test
    folder.mkdir()
    for log in (place / "performance").glob("mlperf_log_*"):
        (folder / log.name).write_bytes(log.read_bytes())
    (folder / "mlperf_log_accuracy.json").write_text("[]\n")
    (folder / file).write_text(VERDICT)
    run = read_record(place / "performance" / RUN_FILE, RunRecord)
    write_record(folder / RUN_FILE, replace(run, settings=replace(run.settings, compliance_test=test, **other)))
    write_record(
        folder / "compliance.json",
        ComplianceRecord(
            notice=run.notice,
            test=test,
            round="v6.1",
            benchmark="llama3.1-8b",
            scenario=scenario,
            passed=True,
            checks=(CheckResult(name="EOS check pass", passed=True, found=""),),
            answers=100,
            file=file,
            log_sha256="",
            source="",
            shows_logs=shows_logs,
        ),
    )


def files_of(asked, test="TEST06", scenario="Offline"):
    home = asked.out / "submission" / "open" / asked.submitter / "results" / system_folder(asked.out) / asked.model
    return {
        path.relative_to(home / scenario / test).as_posix()
        for path in (home / scenario / test).rglob("*")
        if path.is_file()
    }


def test_test06_lies_beside_the_result_with_its_verdict_and_answers(campaign):
    asked = campaign()
    add_test(asked, "TEST06")
    tree = build_tree(asked)
    assert files_of(asked) == {"verify_accuracy.txt", "accuracy/mlperf_log_accuracy.json"}
    assert files_of(asked, scenario="Server") == set()
    (verdict,) = tree.rglob("verify_accuracy.txt")
    assert verdict.read_text() == f"{REHEARSAL_NOTICE}\n{VERDICT}"  # whose lines the checkers find


def test_test09_has_loadgens_logs_too(campaign):
    asked = campaign()
    add_test(asked, "TEST09", file="verify_output_len.txt", shows_logs=True)
    build_tree(asked)
    assert files_of(asked, "TEST09") == set(
        (
            "verify_output_len.txt accuracy/mlperf_log_accuracy.json "
            "performance/run_1/mlperf_log_detail.txt performance/run_1/mlperf_log_summary.txt"
        ).split()
    )


@pytest.mark.parametrize("other", [{"max_tokens": 64}, {"samples": 3}])
def test_a_test_of_another_setup_is_left_out_with_a_warning(campaign, capsys, other):
    asked = campaign()
    add_test(asked, "TEST06", **other)
    build_tree(asked)
    assert files_of(asked) == set()
    said = capsys.readouterr()
    assert "TEST06 of Offline is not part of the submission" in said.out + said.err


@pytest.mark.parametrize(
    ("layout", "place"), [("v4.1", "compliance/sys/model/Offline"), ("v6.0", "results/sys/model/Offline")]
)
def test_each_layout_has_its_place_for_the_tests(layout, place):
    home = Path("closed/Tester")
    assert tree_layout(layout).compliance_of(home, "sys", "model", "Offline") == home / place


# --- trees in the layout of each round, held against the official checkers that take the round


#: Each round with a benchmark that it has, and where its tree keeps the program and a scenario's settings.
ROUNDS = {
    "v5.0": ("llama2-70b-99.9", "code", "measurements"),
    "v5.1": ("llama3.1-8b", "code", "measurements"),
    "v6.0": ("llama3.1-8b", "src", "results"),
}


@pytest.mark.parametrize("round_name", ROUNDS)
def test_a_tree_of_two_systems_has_the_layout_of_the_round_and_only_its_shortness_against_it(
    lay_out, inference, tmp_path, round_name, rewrite
):
    benchmark, program, settings = ROUNDS[round_name]
    asked = lay_out("one", round_name=round_name, benchmark=benchmark)
    other = lay_out("two", round_name=round_name, benchmark=benchmark)
    runs = other.out / "runs" / system_folder(other.out)
    rewrite(other.out / "system" / "system.json", lambda system: system.update(system_name="other-system"))
    runs.rename(runs.with_name("other-system"))
    tree = build_tree(asked, dataclasses.replace(other, page=""), tree=tmp_path / "submission")
    truncate_tree(tree)
    home = tree / "open" / "Nobody"
    for system in (system_folder(asked.out), "other-system"):
        for scenario in ("Offline", "Server"):
            assert (home / settings / system / asked.model / scenario / "user.conf").is_file()
            assert (home / "results" / system / asked.model / scenario / "performance/run_1").is_dir()
    assert (home / program / asked.model / "README.md").is_file() and (home / program / "cm4vllm/cmr.yaml").is_file()
    record = check_submission(tree, "Nobody", round_name, inference)
    assert unexpected_findings(record) == [] and not any(run.crashed for run in record.runs)
    (home / settings / "other-system" / asked.model / "Offline" / "user.conf").unlink()
    with pytest.raises(CheckerFailed, match="does not explain"):
        check_submission(tree, "Nobody", round_name, inference)

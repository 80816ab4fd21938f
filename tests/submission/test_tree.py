import dataclasses
import json
import re
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

pytestmark = pytest.mark.xdist_group("runs-submission")  # one process makes the runs of these files

LOGS = ("detail.txt", "summary.txt")


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
        assert files == {
            *"measurements.json user.conf README.md pip_freeze.json cpu_info.json os_info.json".split(),
            "accuracy/accuracy.txt",
            *(f"accuracy/mlperf_log_{log}" for log in (*LOGS, "accuracy.json")),
            *(f"performance/run_1/mlperf_log_{log}" for log in LOGS),
        }
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


def files_of_text(tree):
    """Return all files that may carry a notice, the system's description last."""
    names = ("README.md", "user.conf", "measurements.json", "accuracy.txt")
    files = [path for path in tree.rglob("*") if path.name in names and "/src/cm4vllm/" not in str(path)]
    files += tree.glob("*/*/systems/*.json")
    assert len(files) == 2 * 4 + 3
    return files


def test_a_rehearsal_says_so_in_every_file_that_may_carry_text(built):
    for path in files_of_text(built.out / "submission"):
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
    for path in (files := files_of_text(tree)):
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


def with_record(path, change):
    """Change a record, or another file of JSON, in place."""
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def with_log(asked, old, new):
    """Change the log of the Server run, with its digest in the record."""
    log = runs(asked, "Server") / "mlperf_log_detail.txt"
    log.write_text(log.read_text().replace(old, new))
    with_record(log.with_name("run.json"), lambda record: record["files"].update({log.name: sha256_of(log)}))


def in_each_run(asked, change):
    for path in asked.out.glob("runs/*/*/*/*/run.json"):
        with_record(path, change)


def in_settings(asked, mode="performance", part="", **values):
    """Change the settings of a Server run, or a part of them."""

    def change(record):
        (record["settings"][part] if part else record["settings"]).update(values)

    with_record(runs(asked, "Server", mode) / "run.json", change)


def rehearse(record):
    record["settings"]["rehearsal"] = True
    record["notice"] = REHEARSAL_NOTICE


def in_scores(asked, **values):
    with_record(runs(asked, mode="accuracy") / "accuracy.json", lambda record: record.update(values))


def in_system(asked, **values):
    with_record(asked.out / "system" / "system.json", lambda system: system.update(values))


MINIMUM = '"effective_min_duration_ms", "value": '


@pytest.mark.parametrize(
    ("rehearsal", "change", "fault"),
    [
        (True, lambda asked: in_settings(asked, part="terms", benchmark="llama2-70b-99.9"), "in their benchmark"),
        (True, lambda asked: in_settings(asked, part="terms", round="v6.0"), "in their round"),
        (True, lambda asked: in_settings(asked, "accuracy", "model", sha256="f" * 64), "in their model"),
        (True, lambda asked: in_settings(asked, "accuracy", "dataset", sha256="f" * 64), "in their dataset"),
        (True, lambda asked: in_settings(asked, part="server", version="0.31.0"), "do not belong together"),
        (False, lambda asked: with_record(runs(asked, "Server") / "run.json", rehearse), "do not belong together"),
        (
            False,
            lambda asked: with_log(asked, f"{MINIMUM}600000", f"{MINIMUM}1000"),
            "a result needs a minimum duration of 600 s",
        ),
        (True, lambda asked: in_each_run(asked, lambda record: record.update(notice="")), "contradicts itself"),
        (False, lambda asked: in_system(asked, sw_notes=REHEARSAL_NOTICE), "is that of a rehearsal"),
        (
            True,
            lambda asked: (runs(asked) / "run.json").write_text((runs(asked, "Server") / "run.json").read_text()),
            "record of a Server performance run",
        ),
        (True, lambda asked: swapped(runs(asked) / "mlperf_log_detail.txt"), "is not the log of the run beside it"),
        (True, lambda asked: in_scores(asked, log_sha256="0" * 64), "those of another log"),
        (False, lambda asked: in_scores(asked, samples=7), "is not whole"),
        (
            True,
            lambda asked: in_each_run(asked, lambda record: record["settings"]["model"].update(weight_data_types="")),
            "type of its weights",
        ),
        (True, lambda asked: in_system(asked, framework="vLLM 0.9.0"), "vLLM 0.9.0"),
    ],
)
def test_what_contradicts_itself_or_the_rules_is_refused(campaign, rehearsal, change, fault):
    asked = campaign(rehearsal=rehearsal)
    change(asked)
    with pytest.raises(SubmissionError) as refused:
        build_tree(asked)
    assert fault in str(refused.value)


def swapped(log):
    """Put another log in the place of one, not into the file that it shares with others."""
    changed = log.read_text().replace("INVALID", "VALID")
    log.unlink()
    log.write_text(changed)


def test_every_error_is_listed_not_the_first(campaign, rewrite):
    asked = campaign()
    (runs(asked, "Offline", "accuracy") / "accuracy.txt").unlink()
    (runs(asked, "Server") / "mlperf_log_summary.txt").unlink()
    rewrite(runs(asked, "Server", "accuracy") / "run.json", lambda record: record.update(loadgen_version="5.0"))
    with pytest.raises(SubmissionError, match="3 errors") as refused:
        build_tree(asked)
    for code in ("RUNS-DIFFER", "SCORES-MISSING", "LOG-MISSING"):
        assert f"error {code}: " in refused.value.cause


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
    assert files_of(asked, "TEST09") == {
        "verify_output_len.txt",
        "accuracy/mlperf_log_accuracy.json",
        *(f"performance/run_1/mlperf_log_{log}" for log in LOGS),
    }


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

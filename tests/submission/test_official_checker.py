import ast
import json
import random
import shutil
import subprocess
import time

import pytest
from msgspec.structs import replace

from cm4vllm.common.errors import CheckerFailed, SourceUnavailable, SubmissionError
from cm4vllm.common.records import read_record
from cm4vllm.records.checker import CheckerRecord, CheckerRun
from cm4vllm.results.checks import CHECKS
from cm4vllm.results.judgement.campaign_verdict import unexpected_findings
from cm4vllm.results.log_folders import PROBLEMS
from cm4vllm.rules import endpoints_rules, round_terms
from cm4vllm.submission.checker import source
from cm4vllm.submission.checker.official_checker import (
    _MEANINGS,
    check_submission,
    codes_of,
    disagreements,
    explain,
    is_rehearsal,
    run_checkers,
)
from cm4vllm.submission.checker.source import extract_checker, fetch, open_source
from cm4vllm.submission.log_truncation import truncate_tree
from cm4vllm.submission.tree import build_tree, system_folder

pytestmark = pytest.mark.xdist_group("runs-submission")  # one process makes the runs of these files

ROUND = "v6.1"


@pytest.fixture(scope="module")
def truncated(built, tmp_path_factory):
    """The results of a rehearsal, whose tree has its accuracy logs cut."""
    out = shutil.copytree(built.out, tmp_path_factory.mktemp("truncated") / "out")
    truncate_tree(out / "submission")
    return out


@pytest.fixture
def tree(truncated, tmp_path):
    return shutil.copytree(truncated, tmp_path / "out") / "submission"


def home(tree, scenario="Offline"):
    return next(tree.glob(f"open/Nobody/results/*/*/{scenario}"))


def check(tree, inference):
    return run_checkers(tree, "Nobody", ROUND, inference, tree.parent / "checker")


def test_of_a_rehearsal_the_checkers_find_its_shortness_and_nothing_else(tree, inference):
    record = check_submission(tree, "Nobody", ROUND, inference)
    assert not record.passed
    assert unexpected_findings(record) == []
    new, old = record.runs
    where = f"open/Nobody/results/{system_folder(tree.parent)}/tiny-llama"
    detail = "performance/run_1/mlperf_log_detail.txt"
    part = "accurcy run does not cover all dataset, accuracy samples: 200, dataset size: 13368"
    expected_new = {
        "Early stopping condition was not met, msg=None",
        f"{where}/Server/{detail} Test duration less than 600s in user config. expected=600000, found=1000",
        *(f"{where}/{scenario}/accuracy/mlperf_log_detail.txt {part}" for scenario in ("Offline", "Server")),
    }
    assert expected_new <= set(new.errors)
    expected_old = {
        f"{where}/Offline/{detail} Required minimum samples per query not met by user config, "
        "Expected=13368, Found=200",
        f"{where}/Server/{detail} Test duration less than 600s in user config. expected=600000, found=1000",
        f"{where}/Offline/performance/run_1 has issues",
    }
    assert expected_old <= set(old.errors)


def test_the_record_and_the_logs_are_kept(tree, inference):
    record = check_submission(tree, "Nobody", ROUND, inference)
    assert read_record(tree.parent / "checker.json", CheckerRecord) == record
    assert record.commit == inference.commit
    for run in record.runs:
        assert (tree.parent / "checker" / f"{run.name}.log").stat().st_size
        assert str(tree.parent) not in "".join([*run.argv, *run.errors, *run.warnings])


def test_a_tree_that_names_somebody_is_not_checked_but_refused(tree, inference, monkeypatch):
    monkeypatch.setenv("USER", "jdoe" + "4711x")
    next(tree.glob("*/*/results/*/summary.html")).write_text("<p>by jdoe" + "4711x</p>")
    with pytest.raises(SubmissionError, match="names this machine's user"):
        check_submission(tree, "Nobody", ROUND, inference)
    assert not (tree.parent / "checker.json").exists()


def test_a_short_run_that_calls_itself_a_result_is_refused(campaign, inference):
    asked = campaign(rehearsal=False)
    tree = build_tree(asked)
    truncate_tree(tree)
    duration = '"effective_min_duration_ms", "value": '
    for log in tree.rglob("Server/performance/run_1/mlperf_log_detail.txt"):  # our own checks would not build this
        swap(log, f"{duration}600000", f"{duration}1000")
    with pytest.raises(CheckerFailed, match="refuses the submission") as refused:
        check_submission(tree, "Nobody", ROUND, inference)
    assert "Test duration less than 600s" in refused.value.cause


def change_system(tree, **values):
    path = next(tree.glob("open/*/systems/*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def detail(tree):
    return home(tree) / "performance/run_1/mlperf_log_detail.txt"


MUTATIONS = {
    "README missing": lambda tree: (home(tree) / "README.md").unlink(),
    "README empty": lambda tree: (home(tree) / "README.md").write_text(""),
    "user.conf missing": lambda tree: (home(tree) / "user.conf").unlink(),
    "wrong status": lambda tree: change_system(tree, status="soon"),
    "cooling empty": lambda tree: change_system(tree, cooling=""),
    "accelerators as words": lambda tree: change_system(tree, accelerators_per_node=0),
    "system missing": lambda tree: next(tree.glob("open/*/systems/*.json")).unlink(),
    "measurement key missing": lambda tree: swap(home(tree) / "measurements.json", "retraining", "training"),
    "accuracy.txt missing": lambda tree: (home(tree) / "accuracy" / "accuracy.txt").unlink(),
    "scores as numpy prints them": lambda tree: (home(tree) / "accuracy" / "accuracy.txt").write_text(
        "{'rouge1': np.float64(38.8)}\nhash=abc\n"
    ),
    "accuracy log whole": lambda tree: shutil.copyfile(
        next(tree.parent.glob("runs/*/*/Offline/accuracy/mlperf_log_accuracy.json")),
        home(tree) / "accuracy" / "mlperf_log_accuracy.json",
    ),
    "another round's seed": lambda tree: swap(detail(tree), "2085463073848966840", "6023615788873153749"),
    "error in the log": lambda tree: add_error(detail(tree)),
    "file that does not belong": lambda tree: (home(tree) / "accuracy" / "notes.txt").write_text("x"),
    "no src": lambda tree: shutil.rmtree(next(tree.glob("open/*/src"))),
    "no model mapping": lambda tree: next(tree.glob("open/*/model_mapping.json")).unlink(),
}


def swap(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def add_error(path):
    """Let the log say that its first message was an error, and that there was one."""
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace('"is_error": false', '"is_error": true')
    path.write_text("\n".join(lines))
    swap(path, '"key": "num_errors", "value": 0', '"key": "num_errors", "value": 1')


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_defect_of_the_tree_is_found_behind_a_rehearsals_shortness(tree, inference, mutation):
    MUTATIONS[mutation](tree)
    with pytest.raises(CheckerFailed, match="does not explain"):
        check_submission(tree, "Nobody", ROUND, inference)


def test_a_crash_is_a_failure_and_is_told(tree, inference):
    next(tree.glob("open/*/systems/*.json")).unlink()
    record = check(tree, inference)
    assert record.runs[0].crashed
    assert any("crashed" in finding for finding in unexpected_findings(record))


def test_a_fault_of_the_checkers_own_is_no_finding_on_the_tree(tree, inference, rewrite, capsys):
    mapping = next(tree.glob("open/*/model_mapping.json"))
    rewrite(mapping, lambda models: models.update(dict.fromkeys(models, "qwen3-vl-235b-a22b")))
    record = check_submission(tree, "Nobody", ROUND, inference)
    new, old = record.runs
    assert "'<' not supported" in old.own_fault and not old.crashed and not old.passed
    assert not new.own_fault and unexpected_findings(record) == []
    assert "submission_checker_old gives no verdict on this tree" in capsys.readouterr().out


def test_a_checker_is_taken_at_the_commit_that_the_rules_name(tree, inference):
    shipped = endpoints_rules()
    known = [shipped.checker_commit(ROUND, checker.name) for checker in round_terms(ROUND).checkers]
    assert known == [checker.commit for checker in round_terms(ROUND).checkers]
    named = replace(shipped.inference_checkers[-1], round=ROUND, checker="submission_checker", commit="0" * 40)
    with pytest.raises(SourceUnavailable, match="does not hold 0000000"):
        check_submission(tree, "Nobody", ROUND, inference, replace(shipped, inference_checkers=(named,)))


def test_one_result_among_rehearsals_makes_it_no_rehearsal(tree, rewrite):
    assert is_rehearsal(tree, "Nobody")
    rewrite(home(tree) / "measurements.json", lambda content: content.pop("notice"))
    assert not is_rehearsal(tree, "Nobody")


def test_a_checker_that_fails_without_a_word_is_not_taken_for_fine():
    silent = CheckerRun(name="c", argv=[], status=1, results=0, errors=[], warnings=[], crashed=False, passed=False)
    assert unexpected_findings(CheckerRecord(commit="", round=ROUND, passed=False, runs=[silent]))


def test_no_tree_is_an_error_of_its_own(tmp_path, inference):
    with pytest.raises(SubmissionError, match="no submission in"):
        check_submission(tmp_path / "submission", "Nobody", ROUND, inference)


def test_a_rehearsal_explains_the_scores_that_it_said_it_would_not_have():
    without, other = (f"open/x/results/s/m/{scenario}/accuracy" for scenario in ("Offline", "Server"))
    errors = [f"{folder}, accuracy not valid" for folder in (without, other)]
    run = CheckerRun(name="old", argv=[], status=1, results=1, errors=errors, warnings=[], crashed=False, passed=False)
    record = CheckerRecord(commit="", round=ROUND, passed=False, runs=[run], unscored=[without])
    assert unexpected_findings(record) == [f"old: {errors[1]}"]


# --- checker_explanations


#: Sums of other messages, and what a result of a language model, without a measurement of its power, never meets.
NOT_EXPLAINED = (
    *("has issues|SUMMARY|NoResults|Some |Not all checks|caused exception|\t|equal issue|disallowed model").split("|"),
    *("TTFT/TPOT latency limits missing|ower|ptd|Execution occurred|invalid division|Root contains").split("|"),
    *("extra files|ranging").split("|"),
)


def test_every_meaning_is_a_code_that_there_is() -> None:
    assert {code for _, codes in _MEANINGS for code in codes} <= {*CHECKS, *PROBLEMS}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("open/A/x/mlperf_log_detail.txt qsl_rng_seed is wrong, expected=1, found=2", "LOG-SEEDS"),
        ("open/A/x Test duration less than 600s in user config. expected=600000, found=1000", "LOG-MIN-DURATION"),
        ("Failed extra check for TTFT and TPOT. Obtained: TTFT 99-tile: 1, TPOT 99-tile: 2.", "LATENCY-LIMIT"),
        ("systems/a.json, field cooling requires a meaningful response but is empty", "SYSTEM-KEYS"),
        ("open/A/results/x accuracy not valid", "ACCURACY-TARGET"),
        ("open/A/results/x/accuracy accuracy not met: expected=20.103376, found=20.0913", "ACCURACY-TARGET"),
        ("open/A/results/x/accuracy expected to have the following extra files (['images'])", "RESULT-FILES"),
        ("Yaml file not found in directory closed/A/results/x/rgat/Offline/", "FILE-MISSING"),
        ("closed/A/x/TEST07/performance/run_1/mlperf_log_detail.txt Test duration less than 600s", "LOG-MIN-DURATION"),
        ("closed/A/compliance/x contains broken symbolic links", "FILE-UNEXPECTED"),
        ("closed/A/results/x/TEST07/verify_performance.txt is missing in closed/A/results/x/TEST07", "COMPLIANCE"),
        ("closed/A: has not calibration file. One of a or b is required", "CALIBRATION-MISSING"),
    ],
)
def test_a_message_is_explained_by_the_code_of_its_rule(message: str, code: str) -> None:
    assert codes_of(message)[0] == code
    assert explain(message).startswith(f"{message} [{code}")


def test_a_sum_of_others_and_a_default_of_the_checker_are_left_as_they_are() -> None:
    for message in (
        "SUMMARY: submission has errors",
        "accuracy_sample_count not found for model whisper, using performance_sample_count",
        "Execution of check endpoints_model_check skipped for closed/A/compliance/x/Offline/TEST01.",
    ):
        assert explain(message) == message


@pytest.mark.parametrize(
    "message",
    [
        "crashed: UnboundLocalError: cannot access local variable 'compliance_perf_valid'",
        "closed/A/results/x/yolo-99/offline/TEST01/performance/run_1 "
        "caused exception in check_performance_dir: 'yolo-99'",
    ],
)
def test_a_failure_of_the_checker_is_no_finding(message: str) -> None:
    assert codes_of(message) == []
    assert "the checker itself failed" in explain(message)


def test_rules_that_one_checker_alone_calls_broken_are_named() -> None:
    both, old = "a qsl_rng_seed is wrong, expected=1", "open/A contains files with spaces in their names: b"
    assert disagreements({"new": [both], "old": [both, old, "SUMMARY: submission has errors"]}) == [
        "only old refuses: FILE-UNEXPECTED"
    ]
    assert disagreements({"new": [both], "old": [both]}) == disagreements({"one": [both]}) == []


def test_the_official_messages_are_explained(inference) -> None:  # type: ignore[no-untyped-def]
    if inference.git is None:
        pytest.skip("the source is no git directory")
    git = ["git", f"--git-dir={inference.git}"]

    def shown(*words):
        return subprocess.run([*git, *words], check=True, capture_output=True, text=True).stdout

    listing = shown("ls-tree", "-r", "--name-only", "b66003e1", "tools/submission").split()
    files = [name for name in listing if name.endswith(("_check.py", "checker_old.py"))]
    messages = set()
    for name in files:
        messages |= {
            node.args[0].value
            for node in ast.walk(ast.parse(shown("show", f"b66003e1:{name}")))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "error"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        }
    assert len(messages) > 60
    unknown = [
        message
        for message in messages - {"%s", "{}", ""}
        if not codes_of(message) and not any(part in message for part in NOT_EXPLAINED)
    ]
    assert sorted(unknown) == []


# --- source


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository shaped like mlcommons/inference: a checker among other things."""
    folder = tmp_path / "repository"
    tools = folder / "tools" / "submission" / "submission_checker"
    tools.mkdir(parents=True)
    (tools / "main.py").write_text("print('as published')\n")
    (tools.parent / "submission_checker_old.py").write_text("pass\n")
    (tools.parent / "notes.md").write_text("notes\n")
    (folder / "large.bin").write_bytes(random.Random(1).randbytes(1_000_000))
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.fixture
def pinned(repository, monkeypatch):
    """Take the repository's commit for the pinned one."""
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setattr(source, "COMMIT", commit)
    return commit


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


AS_PUBLISHED = {"submission_checker/main.py": "print('as published')\n", "submission_checker_old.py": "pass\n"}


def test_a_checkout_or_a_bare_git_directory_gives_the_pinned_commit(repository, pinned, tmp_path):
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare")
    (repository / "tools/submission/submission_checker/main.py").write_text("print('patched')\n")
    for place in (repository, tmp_path / "bare"):
        source = open_source(place)
        assert source.commit == pinned
        assert files(extract_checker(source, tmp_path / "out" / place.name)[0]) == AS_PUBLISHED


def test_plain_files_are_taken_and_named_by_their_digest(repository, tmp_path):
    plain = tmp_path / "plain"
    (repository / "tools").rename(plain.joinpath("tools").parent.mkdir() or plain / "tools")
    source = open_source(plain)
    assert source.commit.startswith("files with sha256 ")
    assert files(extract_checker(source, tmp_path / "out")[0]) == AS_PUBLISHED


def test_a_checkout_of_another_commit_is_taken_when_its_checker_is_unchanged(repository, tmp_path):
    assert open_source(repository).commit == git(repository, "rev-parse", "HEAD")
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare")
    with pytest.raises(SourceUnavailable, match="does not hold commit"):
        open_source(tmp_path / "bare")
    (repository / "tools/submission/submission_checker/main.py").write_text("print('patched')\n")
    with pytest.raises(SourceUnavailable, match="was changed"):
        open_source(repository)


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_folder_without_a_checker_is_refused_with_a_remedy(tmp_path, name):
    with pytest.raises(SourceUnavailable) as refused:
        open_source(tmp_path / name)
    assert "--inference_src=DIR" in refused.value.remedy


def test_only_the_checkers_files_are_fetched(repository, pinned, tmp_path):
    git(repository, "config", "uploadpack.allowFilter", "true")
    with pytest.raises(SourceUnavailable, match="cannot be fetched"):
        fetch(tmp_path / "fetched", f"file://{tmp_path}/nowhere", pinned)
    assert not (tmp_path / "fetched").exists()
    source = fetch(tmp_path / "fetched", f"file://{repository}", pinned)
    assert not (tmp_path / "fetched" / "large.bin").exists()
    assert sum(file.stat().st_size for file in (tmp_path / "fetched").rglob("*")) < 500_000
    assert not (tmp_path / "fetched" / "tools/submission/notes.md").exists()
    assert files(extract_checker(source, tmp_path / "out")[0]) == AS_PUBLISHED
    assert fetch(tmp_path / "fetched", "file:///nowhere", pinned) == source


def test_without_network_the_failure_is_quick_and_names_the_remedy(tmp_path, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(source, "URL", "https://no-such-host.invalid/inference")
    begin = time.monotonic()
    with pytest.raises(SourceUnavailable) as refused:
        fetch(tmp_path / "fetched", source.URL)
    assert time.monotonic() - begin < 30  # git itself waits for minutes
    assert "--inference_src=DIR" in refused.value.remedy


def test_the_pinned_commit_of_mlcommons_inference_has_both_checkers(inference, tmp_path):
    assert inference.commit == source.COMMIT
    tools, _ = extract_checker(inference, tmp_path)
    assert (tools / "submission_checker" / "main.py").is_file()
    assert (tools / "submission_checker_old.py").is_file()

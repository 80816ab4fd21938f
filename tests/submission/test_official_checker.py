import shutil

import pytest

from cm4vllm.common.errors import CheckerFailed, SubmissionError
from cm4vllm.common.records import read_record
from cm4vllm.records.checker import CheckerRecord, CheckerRun
from cm4vllm.results.judgement.expected_findings import unexpected_findings
from cm4vllm.submission.checker.official_checker import check_submission, is_rehearsal, run_checkers
from cm4vllm.submission.log_truncation import truncate_tree
from cm4vllm.submission.tree import build_tree, system_folder

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
    for log in tree.rglob("Server/performance/run_1/mlperf_log_detail.txt"):  # our own checks would not build this
        log.write_text(
            log.read_text().replace(
                '"effective_min_duration_ms", "value": 600000', '"effective_min_duration_ms", "value": 1000'
            )
        )
    with pytest.raises(CheckerFailed, match="refuses the submission") as refused:
        check_submission(tree, "Nobody", ROUND, inference)
    assert "Test duration less than 600s" in refused.value.cause


MUTATIONS = {
    "README missing": lambda tree, _: (home(tree) / "README.md").unlink(),
    "README empty": lambda tree, _: (home(tree) / "README.md").write_text(""),
    "user.conf missing": lambda tree, _: (home(tree) / "user.conf").unlink(),
    "wrong status": lambda tree, rewrite: rewrite(
        next(tree.glob("open/*/systems/*.json")), lambda system: system.update(status="soon")
    ),
    "cooling empty": lambda tree, rewrite: rewrite(
        next(tree.glob("open/*/systems/*.json")), lambda system: system.update(cooling="")
    ),
    "accelerators as words": lambda tree, rewrite: rewrite(
        next(tree.glob("open/*/systems/*.json")), lambda system: system.update(accelerators_per_node=0)
    ),
    "system missing": lambda tree, _: next(tree.glob("open/*/systems/*.json")).unlink(),
    "measurement key missing": lambda tree, rewrite: rewrite(
        home(tree) / "measurements.json", lambda content: content.pop("retraining")
    ),
    "accuracy.txt missing": lambda tree, _: (home(tree) / "accuracy" / "accuracy.txt").unlink(),
    "scores as numpy prints them": lambda tree, _: (home(tree) / "accuracy" / "accuracy.txt").write_text(
        "{'rouge1': np.float64(38.8)}\nhash=abc\n"
    ),
    "accuracy log whole": lambda tree, _: shutil.copyfile(
        next(tree.parent.glob("runs/*/*/Offline/accuracy/mlperf_log_accuracy.json")),
        home(tree) / "accuracy" / "mlperf_log_accuracy.json",
    ),
    "another round's seed": lambda tree, _: swap(
        home(tree) / "performance/run_1/mlperf_log_detail.txt", "2085463073848966840", "6023615788873153749"
    ),
    "error in the log": lambda tree, _: add_error(home(tree) / "performance/run_1/mlperf_log_detail.txt"),
    "file that does not belong": lambda tree, _: (home(tree) / "accuracy" / "notes.txt").write_text("x"),
    "no src": lambda tree, _: shutil.rmtree(next(tree.glob("open/*/src"))),
    "no model mapping": lambda tree, _: next(tree.glob("open/*/model_mapping.json")).unlink(),
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
def test_a_defect_of_the_tree_is_found_behind_a_rehearsals_shortness(tree, inference, rewrite, mutation):
    MUTATIONS[mutation](tree, rewrite)
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

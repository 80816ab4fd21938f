"""One run under two submitters, or the compliance test of another system: found whatever was changed beside it."""

import json
import re
import shutil
from pathlib import Path

import good_tree
import pytest

from cm4vllm.results.check_command.tree_check import check_tree

RESULT = f"results/{good_tree.SYSTEM}/{good_tree.MODEL}"


@pytest.fixture
def home(neural_magic: Path, tmp_path: Path) -> Path:
    return good_tree.make(tmp_path / "round" / "closed" / "Somebody", neural_magic)


def copy(home: Path) -> Path:
    """Copy the submission to another submitter, with the description of another system."""
    other = home.with_name("Another")
    shutil.copytree(home, other)
    (other / "results" / good_tree.SYSTEM).rename(other / "results" / "other_system")
    stated = json.loads((other / "systems" / f"{good_tree.SYSTEM}.json").read_text())
    (other / "systems" / f"{good_tree.SYSTEM}.json").unlink()
    (other / "systems" / "other_system.json").write_text(json.dumps(stated | {"submitter": "Another"}))
    return other


def change_logs(home: Path, pattern: str, new: str) -> None:
    for path in home.rglob("mlperf_log_detail.txt"):
        path.write_text(re.sub(pattern, new, path.read_text()))


def files_with(home: Path, code: str) -> list[str]:
    return [finding.file for finding in check_tree(home.parents[1]).findings if finding.code == code]


def test_one_submitter_alone_has_no_copies(home: Path) -> None:
    assert files_with(home, "LOG-COPIED") == []


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        ("$^", ""),
        (r'("key": "test_datetime", "value": ")2024-07-\d+', r"\g<1>2024-07-28"),
        (r'"key": "', '"key":  "'),
        (r'("time_ms": )(\d+)', r"\g<1>1\2"),
        (r'("key": "result_(?:mean|max|50.00_percentile)_latency_ns", "value": )(\d)', r"\g<1>1\2"),
        (r'("key": "loadgen_version", "value": ")[^"]+', r"\g<1>6.0.14 @ 0123456789"),
    ],
    ids=["as it is", "another day", "white space", "other time stamps", "some latencies", "another version"],
)
def test_each_log_of_a_copied_submission_is_named(home: Path, pattern: str, new: str) -> None:
    change_logs(copy(home), pattern, new)
    files = files_with(home, "LOG-COPIED")
    for scenario in ("Server", "Offline"):
        for who, system in (("Somebody", good_tree.SYSTEM), ("Another", "other_system")):
            log = f"closed/{who}/results/{system}/{good_tree.MODEL}/{scenario}/performance/run_1/mlperf_log_detail.txt"
            assert log in files


def test_copied_accuracy_runs_are_named_by_their_times(home: Path) -> None:
    other = copy(home)
    shutil.rmtree(other / "results" / "other_system" / good_tree.MODEL / "Offline")
    files = files_with(home, "LOG-COPIED")
    assert f"closed/Another/results/other_system/{good_tree.MODEL}/Server/accuracy/mlperf_log_detail.txt" in files


def test_the_two_divisions_of_a_submitter_may_share_a_run(home: Path) -> None:
    shutil.copytree(home, home.parents[1] / "open" / home.name)
    assert files_with(home, "LOG-COPIED") == []


def test_a_log_that_only_changed_its_dates_is_one_run_under_two_results(home: Path) -> None:
    shutil.copytree(home / "results" / good_tree.SYSTEM, home / "results" / "4xH100_copy")
    shutil.copy(home / "systems" / f"{good_tree.SYSTEM}.json", home / "systems" / "4xH100_copy.json")
    change_logs(
        home / "results" / "4xH100_copy", r'("key": "test_datetime", "value": ")2024-07-\d+', r"\g<1>2024-07-28"
    )
    assert len(files_with(home, "LOG-TWICE")) == 2


# --- compliance tests -------------------------------------------------------------------------------------------------


def answers(test: Path, first: int) -> None:
    (test / "accuracy").mkdir(parents=True)
    entries = [{"seq_id": number, "qsl_idx": number, "data": f"{first + number:08X}" * 30} for number in range(100)]
    (test / "accuracy" / "mlperf_log_accuracy.json").write_text(json.dumps(entries))


@pytest.mark.parametrize(("second", "count"), [(7, 1), (8, 0)])
def test_the_answers_of_a_test_under_two_systems_are_a_note(home: Path, second: int, count: int) -> None:
    other = copy(home)
    answers(home / RESULT / "Server" / "TEST06", 7)
    answers(other / "results" / "other_system" / good_tree.MODEL / "Server" / "TEST06", second)
    assert len(files_with(home, "TEST-ALIKE")) == count


def test_the_log_of_a_test_is_of_the_system_of_the_result(home: Path) -> None:
    folder = home / RESULT / "Server" / "TEST06" / "performance" / "run_1"
    shutil.copytree(home / RESULT / "Server" / "performance" / "run_1", folder)
    assert files_with(home, "RUNS-APART") == []
    change_logs(folder, '"PySUT"', '"OtherSUT"')
    assert len(files_with(home, "RUNS-APART")) == 1


def test_the_log_of_one_test_under_two_systems_is_an_error(home: Path) -> None:
    folder = home / RESULT / "Server" / "TEST06" / "performance" / "run_1"
    shutil.copytree(home / RESULT / "Offline" / "performance" / "run_1", folder)
    system = home / "results" / "4xH100_copy"
    shutil.copytree(home / "results" / good_tree.SYSTEM, system)
    assert sum("/TEST06/" in file for file in files_with(home, "LOG-COPIED")) == 2

"""The figures of compliance verifications, compared with the logs of the result and of the test."""

import re
import shutil
from pathlib import Path

import pytest
from test_coverage import codes, put

from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.submission_trees import read_tree

Logs = dict[tuple[str, str], Path]
LOG = "yolo-95/Offline/TEST01/verify_performance.txt"


@pytest.fixture
def place(any_scenario: Logs, tmp_path: Path) -> Path:
    """A result of yolo with a run of TEST01 at twice its rate: those of two real runs may be the same by chance."""
    place = put(tmp_path, any_scenario, "yolo-95/Offline")
    run = Path(shutil.copytree(any_scenario["Offline", "tokens"], place / "TEST01" / "performance" / "run_1"))
    own, log = place / "performance" / "run_1" / "mlperf_log_detail.txt", run / "mlperf_log_detail.txt"
    rate = re.compile(r'(?<="key": "result_samples_per_second", "value": )[0-9.e+]+')
    log.write_text(rate.sub(str(2 * float(rate.findall(own.read_text())[0])), log.read_text()))
    return place


def rates(tree: Path) -> tuple[float, float]:
    """Return the samples/s of the result and of its test."""
    (result,) = read_tree(tree)[0].results
    assert result.performance is not None
    own, test = result.performance.samples_per_second, result.test_runs["TEST01"].samples_per_second
    assert own and test and test / own == pytest.approx(2, rel=1e-3)
    return own, test


def other(tree: Path, rate: float) -> float:
    """Return a rate 10 % higher or a little more, which none of the many figures of the logs is near by chance."""
    (result,) = read_tree(tree)[0].results
    runs = [run for run in (result.performance, *result.test_runs.values()) if run is not None and run.detail]
    values = [value for run in runs for value in run.detail.values.values() if type(value) in (int, float) and value]
    figures = [figure for value in values for figure in (value, 1e9 / value)]
    higher = (rate * (1.1 + step / 100) for step in range(10))
    return next(each for each in higher if all(abs(each - figure) > 0.1 + 0.005 * figure for figure in figures))


@pytest.mark.parametrize(
    ("other_result", "other_test", "expected"),
    [(False, False, {}), (True, False, {"COMPLIANCE-FIGURES warning"}), (False, True, {"COMPLIANCE-FIGURES error"})],
)
def test_the_scores_of_a_compliance_test_are_those_of_its_logs(
    place: Path, tmp_path: Path, other_result: bool, other_test: bool, expected: set[str]
) -> None:
    own, test = rates(tmp_path)
    own = other(tmp_path, own) if other_result else own
    test = other(tmp_path, test) if other_test else test
    text = f"Verifying performance.\nReference score = {own:.2f}\ntest score = {float(test)}\nTEST PASS\n"
    (place / "TEST01" / "verify_performance.txt").write_text(text)
    assert set(codes(check_tree(tmp_path), "COMPLIANCE-FIGURES")) == set(expected)


@pytest.mark.parametrize(
    ("test", "file", "text", "expected"),
    [
        ("TEST07", "verify_accuracy.txt", "Accuracy score: 61.2\nTEST PASS\n", []),
        ("TEST07", "verify_accuracy.txt", "Accuracy score: 60.2\nTEST PASS\n", ["Accuracy score 60.698 or more"]),
        ("TEST09", "verify_output_len.txt", "Mean output tokens: 1300.2\nTEST PASS\n", []),
        (
            "TEST09",
            "verify_output_len.txt",
            "Mean output tokens: 1500.2\nTEST PASS\n",
            ["Mean output tokens 1150.38 or more and 1406.02 or less"],
        ),
    ],
)
def test_a_test_whose_figure_is_not_one_of_a_passed_test_is_found(
    any_scenario: Logs, tmp_path: Path, test: str, file: str, text: str, expected: list[str]
) -> None:
    folder = put(tmp_path, any_scenario, "gpt-oss-120b/Offline", kind="tokens", system_type="datacenter") / test
    folder.mkdir()
    (folder / file).write_text(text)
    errors = codes(check_tree(tmp_path), "COMPLIANCE-FIGURES").get("COMPLIANCE-FIGURES error", [])
    assert [error.partition(f"{file} ")[2] for error in errors] == expected

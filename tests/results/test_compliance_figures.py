"""The figures of compliance verifications, compared with the logs of the result and of the test."""

import json
import re
import shutil
from pathlib import Path

import good_tree
import pytest
from test_coverage import codes, put

from cm4vllm.records.described_system import NETWORK_KEYS
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.submission_trees import read_tree

LOG = "yolo-95/Offline/TEST01/verify_performance.txt"


@pytest.fixture
def place(any_scenario, tmp_path):
    """A result of yolo with a run of TEST01 at twice its rate: those of two real runs may be the same by chance."""
    place = put(tmp_path, any_scenario, "yolo-95/Offline")
    run = Path(shutil.copytree(any_scenario["Offline", "tokens"], place / "TEST01" / "performance" / "run_1"))
    own, log = place / "performance" / "run_1" / "mlperf_log_detail.txt", run / "mlperf_log_detail.txt"
    rate = re.compile(r'(?<="key": "result_samples_per_second", "value": )[0-9.e+]+')
    log.write_text(rate.sub(str(2 * float(rate.findall(own.read_text())[0])), log.read_text()))
    return place


def rates(tree):
    """Return the samples/s of the result and of its test."""
    (result,) = read_tree(tree)[0].results
    assert result.performance is not None
    own, test = result.performance.samples_per_second, result.test_runs["TEST01"].samples_per_second
    assert own and test and test / own == pytest.approx(2, rel=1e-3)
    return own, test


def other(tree, rate):
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
def test_the_scores_of_a_compliance_test_are_those_of_its_logs(place, tmp_path, other_result, other_test, expected):
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
def test_a_test_whose_figure_is_not_one_of_a_passed_test_is_found(any_scenario, tmp_path, test, file, text, expected):
    folder = put(tmp_path, any_scenario, "gpt-oss-120b/Offline", kind="tokens", system_type="datacenter") / test
    folder.mkdir()
    (folder / file).write_text(text)
    errors = codes(check_tree(tmp_path), "COMPLIANCE-FIGURES").get("COMPLIANCE-FIGURES error", [])
    assert [error.partition(f"{file} ")[2] for error in errors] == expected


# --- one run under two submitters, or the compliance test of another system: found whatever was changed beside it


RESULT = f"results/{good_tree.SYSTEM}/{good_tree.MODEL}"


@pytest.fixture
def home(neural_magic, tmp_path):
    return good_tree.make(tmp_path / "round" / "closed" / "Somebody", neural_magic)


def copy(home):
    """Copy the submission to another submitter, with the description of another system."""
    other = home.with_name("Another")
    shutil.copytree(home, other)
    (other / "results" / good_tree.SYSTEM).rename(other / "results" / "other_system")
    stated = json.loads((other / "systems" / f"{good_tree.SYSTEM}.json").read_text())
    (other / "systems" / f"{good_tree.SYSTEM}.json").unlink()
    (other / "systems" / "other_system.json").write_text(json.dumps(stated | {"submitter": "Another"}))
    return other


def change_logs(home, pattern, new):
    for path in home.rglob("mlperf_log_detail.txt"):
        path.write_text(re.sub(pattern, new, path.read_text()))


def files_with(home, code):
    return [finding.file for finding in check_tree(home.parents[1]).findings if finding.code == code]


def test_one_submitter_alone_has_no_copies(home):
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
def test_each_log_of_a_copied_submission_is_named(home, pattern, new):
    change_logs(copy(home), pattern, new)
    files = files_with(home, "LOG-COPIED")
    for scenario in ("Server", "Offline"):
        for who, system in (("Somebody", good_tree.SYSTEM), ("Another", "other_system")):
            log = f"closed/{who}/results/{system}/{good_tree.MODEL}/{scenario}/performance/run_1/mlperf_log_detail.txt"
            assert log in files


def test_copied_accuracy_runs_are_named_by_their_times(home):
    other = copy(home)
    shutil.rmtree(other / "results" / "other_system" / good_tree.MODEL / "Offline")
    files = files_with(home, "LOG-COPIED")
    assert f"closed/Another/results/other_system/{good_tree.MODEL}/Server/accuracy/mlperf_log_detail.txt" in files


def test_the_two_divisions_of_a_submitter_may_share_a_run(home):
    shutil.copytree(home, home.parents[1] / "open" / home.name)
    assert files_with(home, "LOG-COPIED") == []


def test_a_log_that_only_changed_its_dates_is_one_run_under_two_results(home):
    shutil.copytree(home / "results" / good_tree.SYSTEM, home / "results" / "4xH100_copy")
    shutil.copy(home / "systems" / f"{good_tree.SYSTEM}.json", home / "systems" / "4xH100_copy.json")
    change_logs(
        home / "results" / "4xH100_copy", r'("key": "test_datetime", "value": ")2024-07-\d+', r"\g<1>2024-07-28"
    )
    assert len(files_with(home, "LOG-TWICE")) == 2


# --- compliance tests -------------------------------------------------------------------------------------------------


def answers(test, first):
    (test / "accuracy").mkdir(parents=True)
    entries = [{"seq_id": number, "qsl_idx": number, "data": f"{first + number:08X}" * 30} for number in range(100)]
    (test / "accuracy" / "mlperf_log_accuracy.json").write_text(json.dumps(entries))


@pytest.mark.parametrize(("second", "count"), [(7, 1), (8, 0)])
def test_the_answers_of_a_test_under_two_systems_are_a_note(home, second, count):
    other = copy(home)
    answers(home / RESULT / "Server" / "TEST06", 7)
    answers(other / "results" / "other_system" / good_tree.MODEL / "Server" / "TEST06", second)
    assert len(files_with(home, "TEST-ALIKE")) == count


def test_the_log_of_a_test_is_of_the_system_of_the_result(home):
    folder = home / RESULT / "Server" / "TEST06" / "performance" / "run_1"
    shutil.copytree(home / RESULT / "Server" / "performance" / "run_1", folder)
    assert files_with(home, "RUNS-APART") == []
    change_logs(folder, '"PySUT"', '"OtherSUT"')
    assert len(files_with(home, "RUNS-APART")) == 1


def test_the_log_of_one_test_under_two_systems_is_an_error(home):
    folder = home / RESULT / "Server" / "TEST06" / "performance" / "run_1"
    shutil.copytree(home / RESULT / "Offline" / "performance" / "run_1", folder)
    system = home / "results" / "4xH100_copy"
    shutil.copytree(home / "results" / good_tree.SYSTEM, system)
    assert sum("/TEST06/" in file for file in files_with(home, "LOG-COPIED")) == 2


# --- trees of the network division: the description, and the name that the system gives LoadGen


NETWORK = dict.fromkeys(NETWORK_KEYS, "as stated") | {"is_network": "true"}
PYSUT, NAMED = '"sut_name", "value": "PySUT"', '"sut_name", "value": "Network SUT: node-1"'


@pytest.fixture(scope="module")
def change(neural_magic, tmp_path_factory):
    """Make a tree of a division with that added to its description, and that name in its logs; return what is found."""
    base = tmp_path_factory.mktemp("networks") / "network" / "Somebody"
    good_tree.make(base, neural_magic)
    file = base / "systems" / f"{good_tree.SYSTEM}.json"
    stated = json.loads(file.read_text())
    logs = list(base.glob("results/*/*/*/*/**/mlperf_log_detail.txt"))
    names = {path: path.read_text() for path in logs}
    assert all(text.count(PYSUT) == 1 for text in names.values())

    def make(division, network, name):
        home = next(base.parents[1].glob("*/Somebody"))
        home.parent.rename(base.parents[1] / division)
        home = base.parents[1] / division / "Somebody"
        (home / "systems" / file.name).write_text(json.dumps(stated | {"division": division} | network))
        for path, text in names.items():
            (home / path.relative_to(base)).write_text(text.replace(PYSUT, name))
            summary = (home / path.relative_to(base)).with_name("mlperf_log_summary.txt")
            stated_name = name.rpartition(': "')[2].rstrip('"')
            summary.write_text(re.sub(r"(?m)^SUT name : .*$", f"SUT name : {stated_name}", summary.read_text()))
        all_findings = check_tree(base.parents[1]).findings
        return [
            f"{finding.code} {finding.severity}: {finding.field}"
            for finding in all_findings
            if finding.code != "MODEL-NOT-VERIFIABLE"
        ]

    return make


@pytest.mark.parametrize(
    ("division", "network", "name", "expected"),
    [
        ("network", NETWORK, NAMED, []),
        ("network", NETWORK, PYSUT, ["NETWORK-NAME error: sut_name"] * 2),
        ("network", {}, NAMED, ["NETWORK-SYSTEM error: is_network"]),
        (
            "network",
            {**NETWORK, "nic_sut": "", "network_rate": "not stated"},
            NAMED,
            ["NETWORK-SYSTEM error: network_rate, nic_sut"],
        ),
        ("closed", NETWORK, NAMED, ["NETWORK-SYSTEM error: is_network"]),
        ("closed", {"is_network": "false"}, PYSUT, [f"NETWORK-SYSTEM error: {', '.join(NETWORK_KEYS[1:])}"]),
        ("closed", {}, NAMED, []),
        ("open", NETWORK, NAMED, []),
        ("open", NETWORK, PYSUT, ["NETWORK-NAME error: sut_name"] * 2),
    ],
)
def test_a_system_over_a_network_is_described_and_named_so(change, division, network, name, expected):
    assert sorted(text for text in change(division, network, name) if not text.startswith("README-")) == expected

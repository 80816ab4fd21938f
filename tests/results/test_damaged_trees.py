"""Trees that hold what no reader expects: each such thing is a finding, and all other findings stay."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import good_tree
import pytest
from test_power_checks import GOOD, tree_of

from cm4vllm.common.checking.checks import Check, Fault, Stage, whole
from cm4vllm.common.checking.findings import Rule, Severity
from cm4vllm.common.errors import SubmissionError
from cm4vllm.report.comparison_texts import report_comparison
from cm4vllm.results import file_listing
from cm4vllm.results.check_command.tree_check import check_tree, report_checks
from cm4vllm.results.checks import CHECKS
from cm4vllm.results.checks.subjects import results
from cm4vllm.results.result_index import read_index
from cm4vllm.submission.capsule.capsules_at_path import capsules_at
from cm4vllm.submission.capsule.rerun_file import as_yaml

RESULT = Path("results", good_tree.SYSTEM, good_tree.MODEL)


@pytest.fixture
def home(neural_magic, tmp_path):
    """A good tree with one finding of its own, which must stay."""
    home = good_tree.make(tmp_path / "closed" / "Somebody", neural_magic)
    (home / RESULT / "Offline" / "README.md").write_text("TO BE FILLED\n")
    return home


def found_in(home):
    by_code = {finding.code: finding for finding in check_tree(home.parents[1]).findings}
    assert "README-UNFILLED" in by_code
    return by_code


def reported(home):
    try:
        return report_checks(home.parents[1])
    except SubmissionError as error:
        return error.state


def explored(home, kept):
    return len(read_index(home.parents[1], kept).rows)


@pytest.mark.parametrize("text", ['"\u00b2"', f'"{"9" * 5000}"', '"eight"', '"-1"', "-1"])
def test_a_count_that_is_none_is_a_finding(home, tmp_path, text):
    path = home / "systems" / f"{good_tree.SYSTEM}.json"
    stated = json.loads(path.read_text())
    for key in ("number_of_nodes", "accelerators_per_node", "host_processor_core_count"):
        path.write_text(json.dumps({**stated, key: "COUNT"}).replace('"COUNT"', text))
        by_code = found_in(home)
        assert "CHECK-FAILED" not in by_code
        assert ("SYSTEM-NUMBERS" in by_code) is (key != "host_processor_core_count")
        assert explored(home, tmp_path / "kept") == 2


def test_a_number_too_long_for_json_makes_the_file_unreadable(home, tmp_path):
    path = home / "systems" / f"{good_tree.SYSTEM}.json"
    path.write_text(path.read_text().replace('"number_of_nodes": ', f'"n": {"9" * 5000}, "number_of_nodes": ', 1))
    by_code = found_in(home)
    assert by_code["FILE-UNREADABLE"].file == f"closed/Somebody/systems/{good_tree.SYSTEM}.json"
    assert explored(home, tmp_path / "kept") == 2


@pytest.mark.parametrize("place", ["src", str(RESULT / "Server" / "accuracy"), "systems", "measurements", "."])
def test_a_name_that_is_not_utf8_is_a_finding(home, tmp_path, place):
    (home / place).mkdir(exist_ok=True)
    Path(os.fsdecode(os.fsencode(home / place / "caf") + b"\xe9.json")).write_text("{}")
    state = json.loads(json.dumps(reported(home), ensure_ascii=False).encode())
    named = [finding for finding in state["findings"] if finding["file"].endswith("caf\\xe9.json")]
    assert "FILE-UNEXPECTED" in {finding["code"] for finding in named}
    assert "README-UNFILLED" in {finding["code"] for finding in state["findings"]}
    assert explored(home, tmp_path / "kept") == 2


def test_names_of_systems_and_submitters_that_are_not_utf8_are_checked(home, tmp_path):
    other = os.fsdecode(os.fsencode(home.with_name("Z")) + b"\xfcrich")
    system = os.fsdecode(b"Syst\xe8me")
    shutil.copytree(home, other)
    Path(other, RESULT.parent).rename(Path(other, "results", system))
    Path(other, "systems", f"{good_tree.SYSTEM}.json").rename(Path(other, "systems", f"{system}.json"))
    checked = check_tree(home.parents[1])
    files = {finding.file for finding in checked.findings if finding.code == "README-UNFILLED"}
    assert f"closed/Z\\xfcrich/results/Syst\\xe8me/{good_tree.MODEL}/Offline/README.md" in files
    assert explored(home, tmp_path / "kept") == 4
    report_comparison(f"{home},{other}", tmp_path / "page.html")
    assert "Syst\\udce8me" in (tmp_path / "page.html").read_text()


def test_a_score_without_an_end_is_compared(home, tmp_path):
    other = shutil.copytree(home, tmp_path / "closed" / "Other")
    path = other / RESULT / "Offline" / "accuracy" / "accuracy.txt"
    path.write_text(path.read_text().replace("44.5491", "1e999"))
    report_comparison(f"{home},{other}", tmp_path / "page.html")
    assert ">inf<" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "name",
    [
        RESULT / "Server" / "README.md",
        RESULT / "Server" / "user.conf",
        RESULT / "Server" / "measurements.json",
        RESULT / "Server" / "accuracy" / "accuracy.txt",
        RESULT / "Server" / "accuracy" / "mlperf_log_accuracy.json",
        RESULT / "Server" / "performance" / "run_1" / "mlperf_log_detail.txt",
        RESULT / "Server" / "performance" / "run_1" / "mlperf_log_summary.txt",
        RESULT / "Server" / "TEST06" / "verify_accuracy.txt",
        Path("systems", f"{good_tree.SYSTEM}.json"),
        Path("documentation", "calibration.md"),
        Path("model_mapping.json"),
    ],
    ids=lambda name: name.name,
)
@pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself", "bytes"])
def test_a_file_that_is_none_is_a_finding_and_the_rest_is_checked(home, tmp_path, name, kind):
    path = home / name
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "bytes":
        path.write_bytes(b"\xff\x00\xfe{[:=" * 100)
    else:
        path.symlink_to(path.name)
    assert "CHECK-FAILED" not in found_in(home)
    assert explored(home, tmp_path / "kept") == 2
    assert all(map(as_yaml, capsules_at(home.parents[1])))


def test_a_readme_of_many_dots_is_read(home):
    readme = home / RESULT / "Server" / "README.md"
    command = "cm run script --tags=run-mlperf,inference --scenario=Server --server_target_qps=1.2.3"
    readme.write_text(f"```\n{command}\n```\nROUGE1: 1.2.3 >= 4.5.6.\nSamples per second: 1.2.3\n")
    scores = home / RESULT / "Server" / "accuracy" / "accuracy.txt"
    scores.write_text("accuracy = 1.2.3\nhash=1\n")
    assert "CHECK-FAILED" not in found_in(home)


def test_a_check_that_fails_names_itself_and_the_file(home, monkeypatch):
    shutil.copytree(home / RESULT.parent, home / "results" / "Another")
    shutil.copy(home / "systems" / f"{good_tree.SYSTEM}.json", home / "systems" / "Another.json")

    def broken(result):
        if result.system != "Another" and result.scenario == "Offline":
            raise ValueError("no such\nthing")
        yield Fault("it was checked", result.folder)

    broken_check = Check("BROKEN", Rule("it holds", "a test"), "mend it", Severity.NOTE, Stage.TREE, results, broken)
    before = {finding.code for finding in check_tree(home.parents[1]).findings}
    monkeypatch.setitem(CHECKS, "BROKEN", broken_check)
    all_findings = check_tree(home.parents[1]).findings
    assert {finding.code for finding in all_findings} == before | {"BROKEN", "CHECK-FAILED"}
    (failed,) = [finding for finding in all_findings if finding.code == "CHECK-FAILED"]
    assert failed.file == f"closed/Somebody/{RESULT}/Offline"
    assert failed.what == "the check BROKEN could not be made" and failed.value == "ValueError: no such thing"
    assert {finding.file for finding in all_findings if finding.code == "BROKEN"} == {
        f"closed/Somebody/{RESULT}/Server",
        *(f"closed/Somebody/results/Another/{good_tree.MODEL}/{scenario}" for scenario in ("Offline", "Server")),
    }


@pytest.mark.parametrize("refuses", ["subjects", "check"])
def test_a_file_that_a_check_may_not_read_is_named(home, monkeypatch, refuses):
    def refused(submission):
        raise PermissionError(13, "Permission denied", str(submission.home / "code" / "a.py"))
        yield

    each, function = (refused, list) if refuses == "subjects" else (whole, refused)
    refused_check = Check("REFUSED", Rule("", ""), "", Severity.NOTE, Stage.TREE, each, function)
    monkeypatch.setitem(CHECKS, "REFUSED", refused_check)
    failed = found_in(home)["CHECK-FAILED"]
    assert (failed.file, failed.value) == ("closed/Somebody/code/a.py", "Permission denied")


def test_a_folder_that_cannot_be_listed_is_a_finding(home, monkeypatch):
    scan = os.scandir

    def refusing(path):
        if str(path).endswith("/documentation"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(file_listing.os, "scandir", refusing)  # root may list all: the refusal is made here
    finding = found_in(home)["FILE-UNREADABLE"]
    assert (finding.file, finding.value) == ("closed/Somebody/documentation", "Permission denied")


# --- files with holes, larger than all memory, in a stranger's tree: each is read up to a bound


SIZE = 5 * 2**30
#: Everything that reads a stranger's tree, in a process that may have 1.5 GiB of memory of its own.
PROGRAM = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**29, 3 * 2**29))
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.log_folders import head_and_tail
from cm4vllm.submission.capsule.capsules_at_path import capsules_at
from cm4vllm.submission.checker.official_checker import is_rehearsal
root = Path(sys.argv[1])
checked = check_tree(root)
print(is_rehearsal(root, next(path for path in root.glob("*/*")).name), len(capsules_at(root)))
print([len(head_and_tail(path)) for path in root.rglob("accuracy.txt")])
for finding in checked.findings:
    print(finding.code, finding.file, finding.value)
"""


def checked(root, limit_s):
    began = time.monotonic()
    words = [sys.executable, "-P", "-c", PROGRAM, root]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "CHECK-FAILED" not in done.stdout and time.monotonic() - began < limit_s, done.stdout
    return done.stdout


def enlarge(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch()
    os.truncate(path, SIZE)


@pytest.mark.parametrize(
    "names",
    [
        (
            *("README.md", "calibration.md", "documentation/calibration.md", "measurements/*/README.md"),
            *("measurements/*/*/*/README.md", "results/*/*/*/README.md", "results/*/*/*/accuracy/accuracy.txt"),
            *("measurements/*/*/*/user.conf", "measurements/*/*/*/mlperf.conf", "measurements/*/*/*/*.json"),
            *("results/*/*/*/*/mlperf_log_accuracy.json", "results/*/*/*/performance/run_1/mlperf_log_summary.txt"),
        ),
        ("systems/*.json", "model_mapping.json"),
    ],
    ids=lambda names: names[0],
)
def test_a_tree_with_such_files_is_checked(tree, names):
    home = next((tree / "open").iterdir())
    for name in names:
        for path in list(home.glob(name))[:1] or [home / name.replace("*", "x")]:
            enlarge(path)
    checked(tree, 90)


@pytest.mark.parametrize(
    ("names", "codes"),
    [
        (["power/server.log", "power/ptd_logs.txt", "run_1/spl.txt", "run_1/anything.bin"], ["POWER-HASH"]),
        (["power/client.json", "run_1/mlperf_log_detail.txt"], ["POWER-FILES", "LOG-UNREADABLE"]),
    ],
)
def test_a_power_session_with_such_files_is_checked(published_power, tmp_path, names, codes):
    session = tree_of(published_power, GOOD, tmp_path)
    for name in names:
        enlarge(session / name)
    printed = checked(tmp_path, 90)
    assert [code for code in codes if code not in printed] == []

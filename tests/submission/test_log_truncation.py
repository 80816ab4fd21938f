import re
import subprocess
import sys

import pytest

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import sha256_of
from cm4vllm.submission.checker.source import extract_checker
from cm4vllm.submission.log_truncation import truncate_log, truncate_tree


def logs(tree):
    return sorted(tree.glob("*/*/results/*/*/*/accuracy/mlperf_log_accuracy.json"))


def snapshot(tree):
    return {path.relative_to(tree): path.read_bytes() for log in logs(tree) for path in log.parent.iterdir()}


def test_a_long_log_is_cut_to_its_ends_and_its_digest_written(own_built):
    tree = own_built.out / "submission"
    log = logs(tree)[0]
    whole = log.read_bytes()
    digest = sha256_of(log)
    assert truncate_tree(tree, own_built.submitter) == logs(tree)
    assert log.read_bytes() == whole[:4096] + b"\n\n...\n\n" + whole[-4096:]
    assert log.with_name("accuracy.txt").read_text().endswith(f"\nhash={digest}\n")


def test_truncation_reads_the_whole_tree_once_more(own_built, monkeypatch):
    tree = own_built.out / "submission"
    monkeypatch.setenv("SOME_TOKEN", "s3cret-" + "of-" + "the-truncation")
    page = next(tree.glob("*/*/results/*/summary.html"))
    page.write_text("<p>s3cret-" + "of-" + "the-truncation</p>")
    with pytest.raises(SubmissionError, match=r"summary.html, line 1, contains a secret") as refused:
        truncate_tree(tree, own_built.submitter)
    assert "the value of SOME_TOKEN" in refused.value.cause
    page.write_text("<p></p>")
    truncate_tree(tree, own_built.submitter)


def test_the_whole_logs_stay_with_the_runs(own_built):
    tree = own_built.out / "submission"
    truncate_tree(tree)
    for log in logs(tree):
        whole = next((own_built.out / "runs").glob(f"*/*/{log.parents[1].name}/accuracy/mlperf_log_accuracy.json"))
        assert f"hash={sha256_of(whole)}" in log.with_name("accuracy.txt").read_text()
        assert whole.stat().st_size > 8200


def test_a_second_truncation_changes_nothing(own_built):
    tree = own_built.out / "submission"
    truncate_tree(tree)
    once = snapshot(tree)
    assert truncate_tree(tree) == []
    assert snapshot(tree) == once


def test_killed_between_digest_and_cut_it_ends_the_work(own_built):
    tree = own_built.out / "submission"
    log = logs(tree)[0]
    scores = log.with_name("accuracy.txt")
    digest = sha256_of(log)
    scores.write_text(scores.read_text() + f"\nhash={digest}\n")
    assert truncate_log(log)
    assert len(re.findall("hash=", scores.read_text())) == 1
    assert log.stat().st_size < 10240


def test_a_cut_log_without_its_digest_is_refused(own_built):
    tree = own_built.out / "submission"
    log = logs(tree)[0]
    truncate_tree(tree)
    scores = log.with_name("accuracy.txt")
    scores.write_text(re.sub("hash=.*", "", scores.read_text()))
    with pytest.raises(SubmissionError, match="digest of the whole log is not"):
        truncate_log(log)


def test_the_digest_of_another_log_is_refused(own_built):
    tree = own_built.out / "submission"
    log = logs(tree)[0]
    scores = log.with_name("accuracy.txt")
    scores.write_text(scores.read_text() + "\nhash=abc\n")
    with pytest.raises(SubmissionError, match="digest of another log"):
        truncate_log(log)


def test_a_short_log_is_left_whole(tmp_path):
    log = tmp_path / "mlperf_log_accuracy.json"
    log.write_text("[\n]\n")
    (tmp_path / "accuracy.txt").write_text("{}\n")
    assert truncate_log(log)
    assert log.read_text() == "[\n]\n"
    assert not truncate_log(log)


def test_a_tree_without_logs_is_refused(tmp_path):
    with pytest.raises(SubmissionError, match="no accuracy log"):
        truncate_tree(tmp_path)


def test_it_is_byte_for_byte_what_the_official_tool_writes(own_built, inference, tmp_path):
    tree = own_built.out / "submission"
    tools, _ = extract_checker(inference, tmp_path / "tools")
    official = tmp_path / "official"
    subprocess.run(
        [
            sys.executable,
            str(tools / "truncate_accuracy_log.py"),
            "--input",
            str(tree),
            "--submitter",
            "Nobody",
            "--output",
            str(official),
        ],
        check=True,
        capture_output=True,
    )
    truncate_tree(tree)
    assert snapshot(tree) == snapshot(official)

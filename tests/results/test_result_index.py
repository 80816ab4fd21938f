"""The index of published results: every figure is that of a log, kept by digest, outliers and findings are marked."""

import os
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from builders import search_record
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.records.logs.detail_log import read_detail_log
from cm4vllm.records.searches.rate_search import LimitRecord, ProbeRecord, Verdict
from cm4vllm.results import file_listing
from cm4vllm.results.file_listing import list_files
from cm4vllm.results.result_index import Index, IndexPart, IndexRow, read_index, read_indexes, require_published

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="session")
def published(neural_magic, kept):
    return read_index(neural_magic.parents[1], kept)


def test_every_value_is_the_one_of_its_file_and_field(published, neural_magic):
    assert len(published.rows) == 10 and (published.read, published.kept) == (1, 0)
    for row in published.rows:
        log = read_detail_log(neural_magic.parents[1] / row.file)
        assert row.value == log.number(row.field)
        assert row.per_accelerator == pytest.approx(log.number(row.field) / row.accelerators)
        assert row.tokens_per_sample == pytest.approx(row.value / row.samples_per_second, rel=1e-4)


def test_accelerators_of_one_product_have_one_name_and_are_counted(published):
    names = {row.accelerator: row.accelerators for row in published.rows}
    assert names[H100] == 4 and names["NVIDIA L40S"] == 8 and len(names) == 3


def test_a_result_has_the_findings_of_its_own_files_alone(published):
    doubled = [row for row in published.rows if "error TOKENS-DOUBLED" in row.codes]
    assert [(row.scenario, "GPTQ" in row.system) for row in doubled] == [("Offline", True)]
    assert all(
        row.errors == sum(n for code, n in row.codes.items() if code.startswith("error")) for row in published.rows
    )
    assert sum(row.errors for row in published.rows) > 10


def test_what_has_not_changed_is_not_read_again(neural_magic, kept, published, tmp_path):
    again = read_index(neural_magic.parents[1], kept)
    assert (again.read, again.kept) == (0, 1) and again.rows == published.rows
    copy = tmp_path / "round" / "open" / "NeuralMagic"
    shutil.copytree(neural_magic, copy)
    assert read_index(tmp_path, kept).read == 1  # the files of a copy are others
    below = read_index(tmp_path, kept)  # a folder of several repositories
    assert (below.read, below.kept) == (0, 1) and below.rows[0].file == f"round/{again.rows[0].file}"
    log = copy / again.rows[0].file.removeprefix("open/NeuralMagic/")
    log.chmod(0o644)
    before = log.stat()
    log.write_text(log.read_text().replace("1", "2", 1))
    os.utime(log, ns=(before.st_atime_ns, before.st_mtime_ns))  # of the same size and time
    changed = read_index(tmp_path, kept)
    assert (changed.read, len(list(kept.iterdir()))) == (1, 2)
    next(iter(sorted(kept.iterdir()))).write_text("{")
    assert read_index(tmp_path, kept).rows == changed.rows


def test_files_that_may_still_change_and_links_to_folders_elsewhere_prove_no_state(tree, tmp_path, monkeypatch):
    home = tree / "open" / "NeuralMagic"
    (home / "documentation" / "inside").symlink_to(home / "code")
    assert list_files(tree, home).state
    (tmp_path / "elsewhere").mkdir()
    (home / "documentation" / "outside").symlink_to(tmp_path / "elsewhere")
    assert not list_files(tree, home).state
    (home / "documentation" / "outside").unlink()
    monkeypatch.setattr(file_listing, "RECENT_S", 60.0)
    assert not list_files(tree, home).state


def test_the_power_of_a_run_is_the_mean_of_its_meter_within_it(published, tree, tmp_path):
    log = tree / published.rows[0].file
    begin, end = (
        datetime.strptime(read_detail_log(log).text(f"power_{name}"), "%m-%d-%Y %H:%M:%S.%f")
        for name in ("begin", "end")
    )
    second = timedelta(seconds=1)
    meter = (
        (begin - second, 9000),
        (begin + second, 600),
        (begin + 5 * second, 800),
        (begin + 6 * second, -1),
        (end + second, 9000),
    )
    (log.parent / "spl.txt").write_text(
        "".join(f"Time,{at:%m-%d-%Y %H:%M:%S.%f},Watts,{watts},Volts,220,Amps,3,PF,0.9\n" for at, watts in meter)
    )
    rows = read_index(tree, tmp_path / "kept").rows
    (row,) = [row for row in rows if row.power_w]
    assert row.power_w == 700 and row.value and row.per_watt == pytest.approx(row.value / 700)
    assert row.power_source == f"{Path(row.file).with_name('spl.txt')}: Watts, mean of the run"
    (tmp_path / "rounds").mkdir()
    (tmp_path / "rounds" / "one").symlink_to(tree)
    (below,) = [row for row in read_index(tmp_path / "rounds", tmp_path / "kept").rows if row.power_w]
    assert below.power_file == f"one/{row.power_file}"


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(SubmissionError, match="no published results"):
        read_index(tmp_path, tmp_path / "kept")
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(SubmissionError, match="no published results"):
            require_published([wrong])


def test_an_index_in_a_file_is_read_as_its_repository_and_each_result_counts_once(
    neural_magic, kept, published, tmp_path
):
    file = tmp_path / "results.index.json"
    write_record(file, IndexPart(rows=published.rows))
    require_published([file, neural_magic.parents[1]])
    assert read_index(file, kept).rows == published.rows
    assert read_indexes([file, neural_magic.parents[1]], kept).rows == published.rows
    file.write_text("{}")
    for read in (lambda: require_published([file]), lambda: read_index(file, kept)):
        with pytest.raises(UsageError, match="is not an index of published results"):
            read()


def made(value, **more):
    fields: dict[str, object] = {
        "round": "v5.1",
        "division": "closed",
        "submitter": "A",
        "availability": "available",
        "system": "s",
        "accelerator": H100,
        "accelerators": 8,
        "processor": "p",
        "framework": "f",
        "model": "llama3.1-8b",
        "benchmark": "llama3.1-8b",
        "scenario": "Offline",
        "metric": "tokens_per_second",
        "unit": "tokens/s",
        "value": value,
        "valid": True,
        "ttft_p99_ms": None,
        "tpot_p99_ms": None,
        "weights": "fp8",
        "power_w": None,
        "file": "x",
        "field": "y",
        "codes": {},
        **more,
    }
    return IndexRow(**fields)


def test_an_outlier_is_far_from_the_median_of_its_like():
    rows = [made(value) for value in (800, 820, 780, 1700, 790)]
    index = Index((*rows, made(8000, scenario="Server"), made(9000, valid=False)), 1, 0)
    assert [index.outlier(row) for row in rows] == ["", "", "", f"2.1 times the median of 5 on {H100}", ""]
    assert index.outlier(index.rows[5]) == ""  # too few of its like
    assert made(100.0, unit="ms").per_accelerator is None and made(5, accelerators=0).per_accelerator is None


# --- the result of a search in one line says what run the rate was tried in


def made_search(*, queries, rehearsal, confirmed=True):
    limit = LimitRecord(name="TPOT", limit_ms=100, over=0, within=1, low=0.9, high=1, p99_ms=8)
    spans = {"planned_s": 10, "took_s": 4, "warm_up_s": 0}
    verdict = {"verdict": Verdict.PASSES, "ended_early": False, "sure": True}
    probe = ProbeRecord(number=1, rate=600, queries=queries, limits=[limit], **spans, **verdict)
    return search_record(rate=600, confirmed=confirmed, rehearsal=rehearsal, probes=[probe] if confirmed else [])


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (made_search(queries=6000, rehearsal=False), "600 queries/s pass a full-length run; "),
        (made_search(queries=600, rehearsal=True), "600 queries/s pass a rehearsal's run of 600 queries; "),
        (made_search(queries=64, rehearsal=True), "run of 64 queries, too few for LoadGen's test; "),
        (made_search(queries=0, rehearsal=True, confirmed=False), "no rehearsal's run passed, the probes point to 600"),
        (
            made_search(queries=0, rehearsal=False, confirmed=False),
            "no full-length run passed, the probes point to 600",
        ),
    ],
)
def test_a_run_of_a_rehearsal_is_not_called_full_length(search, words):
    assert words in search.words

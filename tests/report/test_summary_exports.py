"""summary.json and summary.csv: the figures of the page, each with its source, as programs read them."""

import csv
import io
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from cm4vllm.common.files import write_json
from cm4vllm.common.records import read_record
from cm4vllm.report.summary import write_summary
from cm4vllm.report.summary_exports import CSV_COLUMNS, SummaryRecord, summary_csv, summary_record
from cm4vllm.results.campaign_results import load

DOCS = Path(__file__).resolve().parents[2] / "docs" / "report.md"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_page_json_and_csv_are_written_and_agree(out: Path) -> None:
    report = load(out)
    write_summary(report)
    record = read_record(out / "summary.json", SummaryRecord)
    assert record == summary_record(report)
    assert (out / "summary.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    for row, result in zip(rows((out / "summary.csv").read_text(encoding="utf-8")), record.results, strict=True):
        assert result.metric is not None
        assert float(row["result"]) == result.metric.value and row["unit"] == result.metric.unit == "tokens/s"
        assert row["scenario"] == result.scenario and row["valid"] == str(result.valid)
        assert row["notice"] == "REHEARSAL, NOT A RESULT"
        for latency in result.latencies:
            assert float(row[f"{latency.name.lower()}_p99_ms"]) == latency.p99_ms


def test_scores_and_targets_keep_their_digits(real_runs: Path) -> None:
    row = rows(summary_csv(load(real_runs)))[0]
    assert row["accuracy_target"].startswith("ROUGE1: 38.391408, ROUGE2: 15.748425, ")
    assert "GEN_LEN: 7350879.6" in row["accuracy_target"]


def test_each_figure_names_its_file_and_field(real_runs: Path) -> None:
    for result in summary_record(load(real_runs)).results:
        assert len(result.figures) > 5
        for figure in result.figures:
            assert (real_runs / figure.file).is_file() and figure.field.startswith("result_")


def test_every_field_and_column_is_described(real_runs: Path) -> None:
    text = DOCS.read_text(encoding="utf-8")
    record = summary_record(load(real_runs))
    for described in (record, record.results[0], record.findings[0]):
        assert [name for name in msgspec.to_builtins(described) if f"`{name}`" not in text] == []
    assert [name for name in CSV_COLUMNS if f"`{name}`" not in text] == []


def test_what_was_not_measured_is_empty_and_not_zero(out: Path) -> None:
    shutil.rmtree(next(out.glob("runs/*/*/Offline/performance")))
    row, result = rows(summary_csv(load(out)))[0], summary_record(load(out)).results[0]
    assert (row["result"], row["valid"], row["target_qps"], row["samples_per_second"]) == ("", "", "", "")
    assert result.metric is None and result.valid is None and result.figures == ()


@pytest.mark.parametrize("begin", ["=", "+", "-", "@"])
def test_no_cell_is_a_formula(out: Path, begin: str) -> None:
    path, text = out / "system" / "system.json", f"{begin}HYPERLINK(1)"
    write_json(path, {**json.loads(path.read_text()), "host_processor_model_name": text})
    assert {row["processor"] for row in rows(summary_csv(load(out)))} == {f"'{text}"}

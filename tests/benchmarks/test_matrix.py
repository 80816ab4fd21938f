"""The matrix of cells: which cells there are, the command of each, the kept results, and the table as text."""

import json
import sys
from contextlib import nullcontext

from msgspec.structs import replace

import matrix
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.rules import Scenario, benchmark_terms, round_names
from matrix_cells import Cell, Cells, Ran, page, table

CELL = Cell(round="v6.0", benchmark="llama2-70b-99", scenario=Scenario.OFFLINE)
SERVER = Cell(round="v6.0", benchmark="llama2-70b-99", scenario=Scenario.SERVER)
RAN = Ran(
    cell=CELL,
    took_s=30.4,
    date="2026-11-23T07:00:00+00:00",
    machine="2 processors",
    command="cm run script",
    commit="abc",
    tokens_per_second=400.0,
    factor="0.126",
)


def test_every_scenario_of_what_can_be_run_is_a_cell():
    scenarios = {(cell.round, cell.benchmark) for cell in matrix.cells()}
    assert scenarios == {(name, benchmark) for name in round_names() for benchmark in runnable_benchmarks(name)}
    newest = [cell.scenario for cell in matrix.cells(["v6.1/llama3.1-8b/*"])]
    assert newest == list(benchmark_terms("v6.1", "llama3.1-8b").scenarios)


def test_patterns_choose_cells():
    counts = {"v6.1/llama3.1-8b/Offline": 1, "*/llama3.1-8b-edge/SingleStream": 3, "v9/*": 0}
    assert {only: len(matrix.cells([only])) for only in counts} == counts
    assert len(matrix.cells([f"{name}/llama3.1-8b/Offline" for name in ("v6.1", "v5.1")])) == 2


def test_a_cell_is_the_command_of_a_user(tmp_path):
    words = matrix.command(CELL, "http://127.0.0.1:1", tmp_path, ["--test_query_count=8"])
    assert "--tags=run-mlperf,inference,_vllm,_tiny,_r6.0" in words
    assert {"--model=llama2-70b-99", "--scenario=Offline", "--vllm_model_name=cm4vllm-tiny"} <= set(words)
    heard = matrix.command(replace(CELL, benchmark="whisper"), "", tmp_path, [])
    assert {words[3], "--vllm_model_name=cm4vllm-tiny-whisper"} <= set(heard)
    assert str(tmp_path) not in matrix.shown(words) and "127.0.0.1" not in matrix.shown(words)
    assert "--test_query_count=8" in matrix.shown(words)


def test_the_page_names_what_ran_what_failed_and_what_was_not_run():
    failed = replace(RAN, cell=SERVER, error=matrix.error_of("… CM error: no room\n  remedy: more of it\n"))
    cells = [CELL, SERVER, replace(CELL, benchmark="mixtral-8x7b")]
    text = page(cells, {done.cell.name: done for done in (RAN, failed)})
    assert "3 cells: 1 ran, 1 FAILED, 0 refused, 1 not run." in text
    assert "| llama2-70b-99 | Offline | ran, 30 s |" in text and "| llama2-70b-99 | Server | FAILED |" in text
    assert "| mixtral-8x7b | Offline | not run |" in text
    assert "| llama2-70b-99 | 0.126 |" in text
    assert "v6.0/llama2-70b-99/Server FAILED: no room remedy: more of it" in text
    assert "on 2 processors, cm4vllm at `abc`" in text
    share = list(matrix.figures([RAN, failed]))[-1]
    assert (share.value, share.holds) == (0.5, False)


def test_what_ran_is_kept_and_only_the_rest_is_run(monkeypatch, tmp_path):
    kept, ran = tmp_path / "cells.json", []
    words = matrix.command(CELL, "", tmp_path, ["--test_query_count=32", "--run_checker=no"])
    Cells().with_one(replace(RAN, command=matrix.shown(words)), kept)

    def run(cell, url, folder, more):
        ran.append(cell.name)
        return replace(RAN, cell=cell, error="no room")

    monkeypatch.setattr(matrix, "served", lambda *_: nullcontext("http://127.0.0.1:1"))
    monkeypatch.setattr(matrix, "run", run)
    line = ["matrix.py", "--only=v6.0/llama2-70b-99/*", f"--cells={kept}", f"--output_dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", [*line, f"--page={tmp_path / 'page.md'}"])
    assert matrix.main() == 1
    assert ran == ["v6.0/llama2-70b-99/Server", "v6.0/llama2-70b-99/Interactive"]
    assert set(json.loads(kept.read_text())["ran"]) == {CELL.name, *ran}
    assert "1 ran, 2 FAILED" in (tmp_path / "page.md").read_text()
    matrix.main()  # what failed is run again
    assert len(ran) == 4


def test_a_cell_that_left_nothing_did_not_run(tmp_path):
    assert "no run.json of a performance run" in matrix.outcome(RAN, tmp_path).error
    assert "FAILED" in table([CELL], {CELL.name: replace(RAN, error="x")})


def test_a_cell_that_the_machines_limits_do_not_allow_is_refused_and_did_not_fail(monkeypatch, tmp_path):
    """The real command, on a machine whose limit of open files is too low for one more request in flight."""
    monkeypatch.setattr(matrix, "CELL_S", 300)
    refused = matrix.run(CELL, "http://127.0.0.1:1", tmp_path, ["--max_in_flight=1000000000"])
    assert refused.refused and not refused.failed
    assert "the Offline accuracy run may need" in refused.error
    text = page([CELL], {CELL.name: refused})
    assert "1 cells: 0 ran, 0 FAILED, 1 refused, 0 not run." in text
    assert "| Offline | refused |" in text and f"{CELL.name} refused: the Offline" in text
    assert [(done.value, done.holds) for done in matrix.figures([refused])] == [(1.0, True)]


def test_the_error_of_a_cell_does_not_name_the_folder_of_its_results(tmp_path):
    (tmp_path / CELL.round).write_text("a file in the place of the folder of the round's results")
    failed = matrix.run(CELL, "http://127.0.0.1:1", tmp_path, [])
    assert failed.failed and f"…/{CELL.round}" in failed.error and str(tmp_path) not in failed.error

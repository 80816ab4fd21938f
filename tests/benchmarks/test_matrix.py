"""The matrix of cells: found from rules and capabilities, each a command of the main job, the table in words."""

import pytest

import matrix
from cm4vllm.campaign.capabilities import runnable_benchmarks
from cm4vllm.rules import Scenario, benchmark_terms, round_names

CELL = matrix.Cell("v6.0", "llama2-70b-99", Scenario.OFFLINE)


def test_every_scenario_of_what_can_be_run_is_a_cell():
    found = {(cell.round, cell.benchmark) for cell in matrix.cells()}
    assert found == {(name, benchmark) for name in round_names() for benchmark in runnable_benchmarks(name)}
    newest = [cell.scenario for cell in matrix.cells(["v6.1/llama3.1-8b/*"])]
    assert newest == list(benchmark_terms("v6.1", "llama3.1-8b").scenarios)


@pytest.mark.parametrize(
    ("only", "count"),
    [
        (["v6.1/llama3.1-8b/Offline"], 1),
        (["v6.1/llama3.1-8b/Offline", "v5.1/llama3.1-8b/Offline"], 2),
        (["*/llama3.1-8b-edge/SingleStream"], 3),
        (["v9/*"], 0),
    ],
)
def test_patterns_choose_cells(only, count):
    assert len(matrix.cells(only)) == count


def test_a_cell_is_the_command_of_a_user(tmp_path):
    tiny = matrix.model_of(CELL, None, true_lengths=False)
    words = matrix.command(CELL, tiny, "http://127.0.0.1:1", tmp_path, ["--test_query_count=8"])
    assert "--tags=run-mlperf,inference,_vllm,_tiny,_r6.0" in words
    assert {"--model=llama2-70b-99", "--scenario=Offline", "--vllm_model_name=cm4vllm-tiny"} <= set(words)
    long = matrix.model_of(CELL, 1, true_lengths=True)
    assert long == matrix.Model("_dummy.llama-2-70b-chat", "llama-2-70b-chat-dummy-1-layers")


def test_the_table_names_what_failed_and_how_long_answers_are():
    server = matrix.Cell("v6.0", "llama2-70b-99", Scenario.SERVER)
    text = "… CM error: no room\n  remedy: more of it\n"
    ran = [matrix.Ran(CELL, 30.0, 400.0, "0.126"), matrix.Ran(server, 2.0, error=matrix.error_of(text))]
    lines = matrix.table(ran).splitlines()
    assert lines[2] == "| llama2-70b-99 | Offline ran, Server FAILED |"
    assert "llama2-70b-99: 0.126" in lines
    assert "v6.0/llama2-70b-99/Server: no room remedy: more of it" in lines
    share = list(matrix.figures(ran))[-1]
    assert (share.value, share.holds) == (0.5, False)


def test_a_cell_that_left_nothing_did_not_run(tmp_path):
    assert "no run.json of a performance run" in matrix.outcome(CELL, tmp_path, 1.0).error

"""The table of the server settings that a search tried, from the record that the search writes."""

import sys
from pathlib import Path

import msgspec

from cm4vllm.common.records import write_record
from cm4vllm.report.searches import SETTINGS_PATH, tried_settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "campaign" / "search"))
from test_halving import record


def test_the_table_has_what_was_tried_with_the_reason_of_what_was_dropped(tmp_path):
    assert tried_settings(tmp_path) is None
    path = tmp_path / SETTINGS_PATH
    path.parent.mkdir(parents=True)
    write_record(path, record())
    tried = tried_settings(tmp_path)
    assert tried.head == ("Options of vLLM", "Round", "Seconds each", "Start, s", "Offline", "")
    assert tried.rows[0] == ("--max-num-seqs=16", "2", "10.00", "60.00", "118.00 tokens/s", "chosen")
    assert tried.rows[-1][-1] == "dropped: the server of x did not start; CUDA out of memory"
    assert "3 of 3 candidates" in tried.words
    assert "1.168 times as much" in tried.words
    assert "compare with each other alone" in tried.words
    assert [row[-1] for row in tried.rows[1:3]] == ["no bound", "no bound"]
    assert "For 2 of 2 tried settings the records have no bound" in tried.words


def test_a_rate_has_the_bracket_that_its_probes_measured(tmp_path):
    searched = record()
    best = next(
        evaluation
        for evaluation in searched.evaluations
        if evaluation.options == searched.chosen and evaluation.score is not None
    )
    paced = [msgspec.structs.replace(scenario, unit="queries/s", low=110.0, high=121.5) for scenario in best.scenarios]
    later = msgspec.structs.replace(best, round=best.round + 1, scenarios=paced)
    path = tmp_path / SETTINGS_PATH
    path.parent.mkdir(parents=True)
    write_record(path, msgspec.structs.replace(searched, evaluations=[*searched.evaluations, later]))
    value = tried_settings(tmp_path).rows[0][4]
    assert value.endswith(" queries/s (110.00 to 121.50)")


def test_a_file_that_is_no_record_is_left_out(tmp_path):
    path = tmp_path / SETTINGS_PATH
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert tried_settings(tmp_path) is None

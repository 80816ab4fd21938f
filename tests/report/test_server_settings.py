"""The table of the server settings that a search tried, from the record that the search writes."""

import sys
from pathlib import Path

from cm4vllm.common.records import write_record
from cm4vllm.report.server_settings import SETTINGS_PATH, tried_settings

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
    path.write_text("{}")
    assert tried_settings(tmp_path) is None

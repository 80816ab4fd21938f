"""The recipes of power sessions, as they are typed."""

from __future__ import annotations

import sys

import pytest

#: A run that writes what the official client looks for to the folder of the command line.
MEASURE = """
from pathlib import Path
from cm4vllm.power.making import preflight_run
Path("logs").mkdir(exist_ok=True)
preflight_run(Path("logs"), seconds=3)
"""


@pytest.mark.long
def test_a_session_is_written_to_a_folder_below_the_present_one(cm, own_network, power_dev) -> None:
    (cm.cwd / "measure.py").write_text(MEASURE)
    done = cm(
        *("run", "script", "--tags=run,mlperf,power,client,_simulated", f"--power_src={power_dev}"),
        *(f"--run_cmd={sys.executable} measure.py", "--loadgen_logs_dir=logs", "--log_dir=performance"),
    )
    assert done.code == 0, done.output
    assert {path.name for path in (cm.cwd / "performance").iterdir()} == {"power", "ranging", "run_1"}

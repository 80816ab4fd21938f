"""The recipes of power sessions, as they are typed."""

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


@pytest.mark.parametrize(
    ("recipe", "flags"),
    [
        ("client,_preflight", ("--power_server=host",)),
        ("server", ("--device_type=49", "--device_port=/dev/usbtmc0", "--server_port=0")),
    ],
)
def test_the_programs_are_those_of_the_round_that_the_session_has(cm, recipe: str, flags: tuple[str, ...]) -> None:
    for variation in ("", ",_r4.1"):
        done = cm("plan", "script", f"--tags=run,mlperf,power,{recipe}{variation}", "--ntp_server=host", *flags)
        assert f"get,mlperf,power,src{variation} " in done.output, done.output

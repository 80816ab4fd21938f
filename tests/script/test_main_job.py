"""The main job with the real vLLM: a whole rehearsal, and what is left when it is cut short."""

import json
import os
import re
import signal
from contextlib import suppress

import psutil
import pytest

from cm4vllm import REHEARSAL_NOTICE, STAND_IN_NOTICE
from cm4vllm.campaign.ledger import State, read_ledger
from cm4vllm.common.errors import Interrupted, ServerDied

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("vllm-1")]

#: Seconds that a first run may take until its server is ready: vLLM's installation included.
FIRST_START_S = 900
#: A job that comes to the Server performance run at once: without the runs before it.
SERVER_ALONE = ("--output_dir=results", "--scenario=Server", "--server_target_qps=20")
PERFORMANCE = ",_performance-only"


#: A rehearsal from its assets to its report, in runs of 128 samples and 2 seconds.
REHEARSAL = ("--output_dir=results", "--submitter=Tester", "--test_query_count=128", "--max_test_duration=2")


def listed(cm):
    """Return the steps that --plan lists: names, tags and whether they are certain."""
    done = cm.main_job(*REHEARSAL, "--plan", "-j")
    assert done.code == 0, done.output
    children = json.loads(done.output[done.output.index("{") :])["plan"]["children"]
    return [(node["why"]["name"], node["tags"], node["certain"]) for node in children if node["why"]["phase"] == "step"]


def test_a_rehearsal_from_assets_to_report(cm):
    plan = listed(cm)
    assert not (cm.cwd / "results").exists()
    done = cm.main_job(*REHEARSAL, timeout_s=FIRST_START_S + 300)
    assert done.code == 0, done.output
    out = cm.cwd / "results" / "test"
    steps = [state.last for state in read_ledger(out).of_last_run]
    assert (
        [(step.step, step.tags) for step in steps]
        == [(name, tags) for name, tags, _ in plan]
        == [(name, tags) for name, tags, _ in listed(cm)]
    )
    left_out = [step.step for step in steps if step.state is not State.DONE]
    assert {name for name, _, certain in plan if certain} >= {step.step for step in steps} - set(left_out) - {
        "checkers"
    }
    assert set(left_out) <= {"checker source", "checkers"}  # their source may not be reachable
    records = list(out.glob("runs/*/*/*/*/run.json"))
    runs = {path.relative_to(out).parts[3:5]: json.loads(path.read_text()) for path in records}
    assert set(runs) == {(s, m) for s in ("Offline", "Server") for m in ("accuracy", "performance")}
    for run in runs.values():
        assert run["notice"] == f"{STAND_IN_NOTICE}; {REHEARSAL_NOTICE}"
        assert run["client"]["failed"] == 0
        assert run["client"]["completed"] == run["client"]["requests"] > 0
    scores = json.loads(next(out.glob("runs/*/*/Offline/accuracy/accuracy.json")).read_text())
    assert scores["values"]["rouge1"] > 80  # the tiny model answers its own kind of question, and is not a stub
    assert (out / "submission/open/Tester/model_mapping.json").exists()
    for page in [out / "summary.html", *out.glob("submission/open/Tester/results/*/*/*/README.md")]:
        assert f"{STAND_IN_NOTICE}; {REHEARSAL_NOTICE}" in page.read_text()
    status = cm("run", "script", "--tags=status,mlperf", "--output_dir=results", "--out=json")
    (job,) = json.loads(status.output[status.output.index("{\n") :])["new_state"]["jobs"]
    assert [step["step"] for step in job["steps"]] == [step.step for step in steps]
    assert re.search(r"Offline.*tokens/s", done.output)
    assert REHEARSAL_NOTICE in done.output
    assert "Traceback" not in done.output


@pytest.mark.long  # Ctrl-C ends a real vLLM in test_server_by_hand.py, and a run of a small server in test_runner.py
def test_ctrl_c_leaves_no_process_and_no_half_written_run(cm):
    running = cm.start_main_job(*SERVER_ALONE, tags=PERFORMANCE)
    running.wait_for("] Server performance run", FIRST_START_S)
    os.killpg(running.process.pid, signal.SIGINT)
    running.finish().refused_with(Interrupted.exit_code)
    running.no_orphans()
    assert not list(cm.cwd.glob("results/test/runs/*/*/Server/performance/run.json"))


@pytest.mark.long
def test_kill_9_of_cm_ends_the_server_too(cm):
    running = cm.start_main_job(*SERVER_ALONE, tags=PERFORMANCE)
    running.wait_for("] Server performance run", FIRST_START_S)
    running.process.kill()
    running.process.wait()
    running.no_orphans()
    assert not list(cm.cwd.glob("results/test/runs/*/*/Server/performance/run.json"))


def test_a_vllm_that_dies_in_the_middle_is_told_with_its_log(cm):
    running = cm.start_main_job(*SERVER_ALONE, "--attempts=1", tags=PERFORMANCE)
    running.wait_for("] Server performance run", FIRST_START_S)
    server = json.loads((cm.cwd / "results/test/server/server.json").read_text())
    for process in psutil.Process(server["supervisor_pid"]).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended with the one before
            process.kill()
    running.finish().refused_with(ServerDied.exit_code, "server.log", "remedy")
    running.no_orphans()
    assert not list(cm.cwd.glob("results/test/runs/*/*/Server/performance/run.json"))

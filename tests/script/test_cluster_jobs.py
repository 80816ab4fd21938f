"""The main job with one server over two nodes, by ssh and by Slurm: real vLLM, and the official checkers.

The nodes are network and UTS namespaces of this machine (tests/namespace_cluster.py).
"""

import json
import os
import re
import signal
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from cm4vllm.campaign.ledger import State, read_ledger
from cm4vllm.common.errors import ServerDied
from namespace_cluster import namespace_cluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.xdist_group("vllm-cluster"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers of vLLM's CPU backend need two cores"),
]
#: Seconds that a whole job may take: vLLM over two nodes starts in one to three minutes on two cores.
JOB_S = 1500
INFERENCE = os.environ.get("INFERENCE_GIT", "")
FLAGS = ("--output_dir=results", *([f"--inference_src={INFERENCE}"] if INFERENCE else []))


@pytest.fixture(params=["ssh", "slurm"])
def cluster(request, tmp_path):
    with namespace_cluster(tmp_path, request.param) as cluster:
        yield cluster


@pytest.fixture
def job(cluster, cm):
    """Return a function that starts the main job over the nodes of the cluster."""
    cm.env = cluster.env

    def start(*flags):
        if cluster.kind == "ssh":
            return cm.start_main_job(f"--nodes={','.join(cluster.nodes)}", *FLAGS, *flags)
        words = " ".join([*FLAGS, *flags])
        tags = "--tags=generate,slurm-job"
        done = cm("run", "script", tags, "--nodes=2", f"--job={words}", "--job_file=job.sbatch", "--quiet")
        assert done.code == 0, done.output
        return cm.start_program("sbatch", "--wait", "--output=job.log", "job.sbatch", log="job.log")

    return start


def test_a_rehearsal_over_two_nodes_makes_a_checked_tree(cluster, cm, job):
    done = job("--tp_size=2", "--scenario=Offline,Server").finish(JOB_S)
    assert done.code == 0, done.output
    assert re.search("starting vLLM with cm4vllm-tiny: (?!its process|done)", done.output)  # what the head's log says
    results = cm.cwd / "results/test"
    left_out = {state.last.step for state in read_ledger(results).of_last_run if state.last.state is not State.DONE}
    assert left_out <= (set() if INFERENCE else {"checker source", "checkers"})
    server = json.loads((results / "server/server.json").read_text())
    assert [node["name"] for node in server["nodes"]] == list(cluster.nodes)
    assert [node["launcher"] for node in server["nodes"]] == [cluster.kind] * 2
    description = json.loads((results / "system/system.json").read_text())
    assert description["number_of_nodes"] == "2"
    assert description["system_name"].startswith("2-nodes-of-")
    records = [json.loads(path.read_text()) for path in results.glob("runs/*/*/*/*/run.json")]
    assert {record["settings"]["terms"]["scenario"] for record in records} == {"Offline", "Server"}
    assert all(record["client"]["failed"] == 0 and len(record["node_loads"]) == 2 for record in records)
    tree = [path for path in (results / "submission").rglob("*") if path.is_file()]
    assert tree and not [path for path in tree for node in cluster.nodes if node.encode() in path.read_bytes()]
    cluster.wait_until_empty()


def test_a_node_killed_in_the_performance_run_ends_the_job_and_the_same_command_ends_well(cluster, cm, job):
    running = job("--tp_size=2", "--scenario=Offline", "--attempts=1", "--test_query_count=64")
    running.wait_for("] Offline performance run", JOB_S)
    victim = next(
        int(line.split()[0])
        for line in cluster.processes(cluster.nodes[1])
        if " --headless " in f"{line} " and " vllm.entrypoints.cli.main " in line
    )
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while "CM error:" not in running.output():
        assert time.monotonic() - begin < 10
        time.sleep(0.1)
    done = running.finish(60)  # the longer sbatch waits, the more rarely it asks for the end of its job
    assert f"on the node {cluster.nodes[1]}: it ended by itself: killed by SIGKILL" in done.output, done.output
    assert done.code == ServerDied.exit_code
    cluster.wait_until_empty()
    again = job("--tp_size=2", "--scenario=Offline", "--attempts=1", "--test_query_count=64").finish(JOB_S)
    assert again.code == 0, again.output
    cluster.wait_until_empty()


@pytest.mark.parametrize("cluster", ["ssh"], indirect=True)
def test_engines_of_data_parallelism_on_both_nodes_answer(cluster, cm):
    cm.env = cluster.env
    nodes = f"--nodes={','.join(cluster.nodes)}"
    server = cm.start("run", "script", "--tags=run,vllm-server", nodes, "--dp_size=2", "--output_dir=server", "--quiet")
    server.wait_for("it runs until Ctrl-C", JOB_S)
    record = json.loads((cm.cwd / "server/server.json").read_text())
    endpoint = record["endpoint"]
    asked = json.dumps({"model": record["model_name"], "prompt": "Harbour log", "max_tokens": 8}).encode()

    def ask(_):
        request = urllib.request.Request(f"{endpoint}/v1/completions", asked, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=120).close()

    with ThreadPoolExecutor(8) as pool:  # at once: each of a row of requests may find the first engine idle
        list(pool.map(ask, range(8)))
    with urllib.request.urlopen(f"{endpoint}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    ended = Counter()
    for line in text.splitlines():
        if line.startswith("vllm:request_success_total") and (engine := re.search(r'engine="(\d+)"', line)):
            ended[engine[1]] += float(line.rpartition(" ")[2])
    assert ended["0"] > 0 and ended["1"] > 0, ended
    os.killpg(server.process.pid, signal.SIGKILL)
    cluster.wait_until_empty()

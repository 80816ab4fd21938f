"""The main job over more than one worker, server and host, with the real vLLM."""

import json
import os
import re
import signal
import subprocess
from contextlib import suppress

import psutil
import pytest

from cm4vllm.common.errors import ServerDied
from commands import need

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.xdist_group("vllm-2"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers of vLLM's CPU backend need two cores"),
]

#: Seconds that a first run may take until its servers are ready: vLLM's installation included.
FIRST_START_S = 900


def run_records(cm):
    return [json.loads(path.read_text()) for path in cm.cwd.glob("results/test/runs/*/*/*/*/run.json")]


def test_tensor_parallel_workers_have_cores_of_their_own(cm):
    done = cm.main_job("--output_dir=results", "--scenario=Offline", "--tp_size=2", timeout_s=FIRST_START_S)
    assert done.code == 0, done.output
    server = json.loads((cm.cwd / "results/test/server/server.json").read_text())
    assert server["argv"][server["argv"].index("--tensor-parallel-size") + 1] == "2"
    assert server["env"]["VLLM_CPU_OMP_THREADS_BIND"].count("|") == 1
    assert all(record["client"]["failed"] == 0 for record in run_records(cm))


def test_replicas_share_the_queries_and_the_death_of_one_is_told(cm):
    running = cm.start_main_job("--output_dir=results", "--replicas=2", "--attempts=1")
    running.wait_for("] Server performance run", FIRST_START_S)
    server = json.loads((cm.cwd / "results/test/server/server.json").read_text())
    (member,) = server["members"]
    assert server["replicas"] == [member["endpoint"]] != [server["endpoint"]]
    assert server["env"]["VLLM_CPU_OMP_THREADS_BIND"] != member["env"]["VLLM_CPU_OMP_THREADS_BIND"]
    assert all(record["client"]["failed"] == 0 for record in run_records(cm))
    for each in (server, member):
        assert served(each["endpoint"]) > 1
    for process in psutil.Process(member["supervisor_pid"]).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended with the one before
            process.kill()
    running.finish().refused_with(ServerDied.exit_code, member["endpoint"], "remedy")
    running.no_orphans()
    assert not list(cm.cwd.glob("results/test/runs/*/*/Server/performance/run.json"))


def served(endpoint):
    """Return the number of requests that a server has ended, as its own metrics count them."""
    text = subprocess.run(["curl", "-s", f"{endpoint}/metrics"], capture_output=True, text=True, check=True).stdout
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("vllm:request_success_total")
    )


@pytest.fixture
def hosts():
    """Yield two network namespaces, each joined to this one by a link of its own, and their addresses."""
    need("ip")
    if os.geteuid():
        pytest.skip("network namespaces need root")
    made = []
    try:
        for number in (1, 2):
            name, here, there = f"cm4vllm-{number}", f"cmv{number}h", f"cmv{number}g"
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
                pytest.skip("this machine does not let us make network namespaces")
            made.append(name)
            for words in (
                f"link add {here} type veth peer name {there} netns {name}",
                f"addr add 10.213.{number}.1/24 dev {here}",
                f"link set {here} up",
                f"-n {name} addr add 10.213.{number}.2/24 dev {there}",
                f"-n {name} link set {there} up",
                f"-n {name} link set lo up",
            ):
                subprocess.run(["ip", *words.split()], check=True)
        yield [(name, f"10.213.{number}.2") for number, name in enumerate(made, 1)]
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)  # its links go with it


def test_servers_on_two_hosts_are_measured_as_one(cm, hosts):
    servers = []
    for core, (name, address) in enumerate(hosts):
        server = cm.start(
            "run",
            "script",
            "--tags=run,vllm-server",
            "--quiet",
            f"--host={address}",
            "--port=8000",
            f"--cpu_binding={core}",
            f"--output_dir=server-{core}",
            inside=("ip", "netns", "exec", name),
        )
        server.wait_for("it runs until Ctrl-C", FIRST_START_S)
        servers.append(server)
    urls = [f"http://{address}:8000" for _, address in hosts]
    done = cm.main_job(f"--api_server={','.join(urls)}", "--output_dir=results", "--scenario=Offline", timeout_s=400)
    assert done.code == 0, done.output
    assert all(record["client"]["failed"] == 0 for record in run_records(cm))
    record = json.loads((cm.cwd / "results/test/server/server.json").read_text())
    assert [record["endpoint"], *record["replicas"]] == urls
    assert all(served(url) > 1 for url in urls)
    assert re.search(r"Offline.*tokens/s", done.output)
    for server in servers:
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.finish().code == 0, server.output()
        server.no_orphans()

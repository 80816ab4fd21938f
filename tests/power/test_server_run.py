"""The recipe of the power server: what it refuses before it starts, and a session that the official client makes."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from msgspec.structs import replace

from cm4vllm.common.errors import PortInUse, UsageError
from cm4vllm.power.programs import CLIENT, official_environment, provide
from cm4vllm.power.ptd import simulated_program
from cm4vllm.power.server_config import ServerSettings
from cm4vllm.power.server_run import require_settings
from cm4vllm.records.power.session import PowerSession, reasons_unmeasured
from cm4vllm.records.power.supplies import design_watts, read_supplies
from cm4vllm.rules import round_names, round_terms

GIVEN = ServerSettings(device_type=49, device_port="/dev/usbtmc0", ntp_server="ntp.example.org", port=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_analyzers": 2}, "2 analyzers are not supported"),
        ({"screen": True}, "--screen=yes is not supported"),
        ({"device_type": None}, "the power analyzer is not described"),
        ({"device_port": ""}, "the power analyzer is not described"),
        ({"ntp_server": ""}, "needs --ntp_server"),
        ({"conf_file": "/none/server.conf"}, "no file /none/server.conf"),
    ],
)
def test_settings_with_which_no_server_starts_are_refused(change: dict[str, object], words: str) -> None:
    require_settings(GIVEN)
    with pytest.raises(UsageError, match=words):
        require_settings(replace(GIVEN, **change))


def test_a_configuration_with_two_analyzers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "server.conf"
    conf.write_text("[server]\nntpServer = ntp\n[ptd]\nanalyzerCount = 2\n")
    with pytest.raises(UsageError, match="2 analyzers are not supported"):
        require_settings(ServerSettings(conf_file=str(conf)))
    conf.write_text("[server]\nntpServer = ntp\n[ptd]\nptd = /opt/ptd\n")
    require_settings(ServerSettings(conf_file=str(conf)))
    monkeypatch.chdir(tmp_path)
    require_settings(ServerSettings(conf_file=conf.name))


def test_a_port_that_is_taken_is_refused_by_the_flag_that_gives_another() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse, match="cannot listen") as raised:
            require_settings(replace(GIVEN, port=taken.getsockname()[1]))
    assert "--server_port" in raised.value.remedy


SERVE = """
import sys, threading
from cm4vllm.power import server_run, simulated_site
from cm4vllm.power.clocks import LOOPBACK, serve_time
from cm4vllm.power.server_config import ServerSettings
from cm4vllm.power.server_run import serve
environment = server_run.official_environment
starting = threading.Event()
def shorter_pauses(folder):
    starting.set()
    return {**environment(folder), "MLPP_DEBUG": "1"}
server_run.official_environment = shorter_pauses
simulated_site._raise_loopback()
threading.Thread(target=serve_time, args=(LOOPBACK,), daemon=True).start()
import os, signal, subprocess, time
def await_socket(kind, words):
    while words not in open(f"/proc/net/{kind}").read():
        time.sleep(0.1)
await_socket("udp", f":{123:04X} ")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
def run_client():
    starting.wait()  # a process that is started while the server looks for its port would hold that port for a moment
    await_socket("tcp", f":{4999:04X} 00000000:0000 0A")  # it listens
    client = subprocess.run(sys.argv[3:])
    os.kill(os.getpid(), signal.SIGTERM) if client.returncode == 0 else os._exit(client.returncode)
threading.Thread(target=run_client, daemon=True).start()
serve(ServerSettings(source=sys.argv[1], ptd=sys.argv[2], ntp_server=LOOPBACK, device_type=0, device_port="SIMULATED",
                     port=4999))
"""
MEASURE = """
from pathlib import Path
from cm4vllm.power.making import preflight_run
Path("logs").mkdir(exist_ok=True)
preflight_run(Path("logs"), seconds=3)
"""


def test_the_official_client_makes_a_session_with_the_server_that_the_recipe_runs(
    own_network: None, power_dev: Path, tmp_path: Path
) -> None:
    """Server, time server and client are in a network of their own; the official client waits for no server."""
    source = provide(round_terms(round_names()[-1]).power, power_dev, tmp_path / "source")
    (tmp_path / "measure.py").write_text(MEASURE)
    words = [sys.executable, f"{source}/{CLIENT}", "-a", "127.0.0.1", "-p", "4999", "-n", "127.0.0.1"]
    words += ["-w", f"{sys.executable} measure.py", "-L", "logs", "-o", "session", "--no-timestamp-path"]
    ptd = simulated_program(tmp_path)
    env = {**official_environment(tmp_path), "MLPP_DEBUG": "1", "PATH": os.environ["PATH"]}
    begin = time.monotonic()
    command = ["unshare", "-Urn", sys.executable, "-c", SERVE, str(source), str(ptd), *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 143, done.stdout + done.stderr  # ended as `cm` is, which raises at a signal
    end = time.monotonic() + 30
    while left := [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or ())
    ]:
        assert time.monotonic() < end, left
        time.sleep(0.1)
    session = PowerSession(tmp_path / "session")
    files = [path for path in session.folder.rglob("*") if path.is_file()]
    assert reasons_unmeasured(session) == () and session.simulated and len(files) == 12
    assert time.monotonic() - begin < 50


SUPPLIES = """
My System:
- My Rack:
  - My Server:
    - Description: four supplies, two of them to spare
      Min PSUs Needed: 2
      PSUs: [{PowerCapacityWatts: 1200}, {PowerCapacityWatts: 1600}, {PowerCapacityWatts: 1200}]
  - My Switch:
    - Min PSUs needed: 1
      PSUs: [{Name: PSU 1, PowerCapacityWatts: 300}, {Name: PSU 2, PowerCapacityWatts: 300}]
"""


def test_the_supplies_that_a_system_needs_are_summed_as_the_official_checker_does(tmp_path: Path) -> None:
    path = tmp_path / "power.yaml"
    path.write_text(SUPPLIES)
    assert read_supplies(path) == 1600 + 1200 + 300 == official_sum(yaml.safe_load(SUPPLIES))
    assert design_watts({"a": [], "b": 3}) == 0


def official_sum(stated: object) -> float:
    """Return the sum that the official checker of v6.1 computes, by its own function."""
    git = os.environ.get("INFERENCE_GIT")
    if not git:
        pytest.skip("INFERENCE_GIT does not name a git directory of mlcommons/inference")
    place = f"{round_terms('v6.1').checkers[0].commit}:tools/submission/submission_checker/checks/system_check.py"
    done = subprocess.run(["git", f"--git-dir={git}", "show", place], capture_output=True, text=True, check=True)
    names: dict[str, Any] = {}
    exec("def _sum_power" + done.stdout.split("\ndef _sum_power")[1], names)
    return float(names["_sum_power_capacity_watts"](stated))


@pytest.mark.parametrize("text", ["", "My System: 1200 W\n", "a: [", "a: {PSUs: [1200], Min PSUs Needed: 1}\n"])
def test_a_file_without_supplies_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "power.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_supplies(path)
    assert "--power_supplies" in raised.value.remedy

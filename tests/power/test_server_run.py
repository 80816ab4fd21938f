"""The recipe of the power server: what it refuses before it starts, and a session that the official client makes."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from msgspec.structs import replace

from cm4vllm.common.errors import PortInUse, UsageError
from cm4vllm.common.git.git_source import extract
from cm4vllm.power.programs import CLIENT, official_environment, provide
from cm4vllm.power.ptd import simulated_program
from cm4vllm.power.server_run import ServerSettings, require_settings
from cm4vllm.records.power.session import FETCHED_ONLY, FILES, PowerSession, reasons_unmeasured
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
from cm4vllm.power.server_run import ServerSettings
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


def test_the_supplies_that_a_system_needs_are_summed_as_the_official_checker_does(
    tmp_path: Path, official_file: Callable[[str, str], str]
) -> None:
    path = tmp_path / "power.yaml"
    path.write_text(SUPPLIES)
    assert read_supplies(path) == 1600 + 1200 + 300 == official_sum(official_file, yaml.safe_load(SUPPLIES))
    assert design_watts({"a": [], "b": 3}) == 0


def official_sum(official_file: Callable[[str, str], str], stated: object) -> float:
    """Return the sum that the official checker of v6.1 computes, by its own function."""
    checks = "tools/submission/submission_checker/checks/system_check.py"
    source = official_file(round_terms("v6.1").checkers[0].commit, checks)
    names: dict[str, Any] = {}
    exec("def _sum_power" + source.split("\ndef _sum_power")[1], names)
    return float(names["_sum_power_capacity_watts"](stated))


@pytest.mark.parametrize("text", ["", "My System: 1200 W\n", "a: [", "a: {PSUs: [1200], Min PSUs Needed: 1}\n"])
def test_a_file_without_supplies_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "power.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_supplies(path)
    assert "--power_supplies" in raised.value.remedy


# --- the public recipe `run,mlperf,power,client` of cm4mlops, unchanged, under this engine, with the simulated analyzer
# Needs CM4MLOPS=<checkout of cm4mlops>. Its dependencies on Python, on the programs and on ntpdate are satisfied by our
# recipes with those tags: nothing is installed, and no clock is set.


ROOT = Path(__file__).parents[2]
#: The UID of the public recipe: ours answers to the same tags.
PUBLIC = "bf6a6d0cc97b48ae"
PUBLIC_MEASURE = f"""#!{sys.executable}
from pathlib import Path
from cm4vllm.power.making import preflight_run
folder = Path("WORK") / "loadgen_logs"
folder.mkdir(exist_ok=True)
preflight_run(folder, seconds=3)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A CM home with our repository, and one that has the public recipe alone."""
    named = os.environ.get("CM4MLOPS", "")
    if not named:
        pytest.skip("CM4MLOPS names no checkout of cm4mlops")
    public = tmp_path / "public"
    (public / "script").mkdir(parents=True)
    (public / "cmr.yaml").write_text('alias: public\nuid: "00000000000000f3"\n')
    recipe = "run-mlperf-power-client"
    (public / "script" / recipe).symlink_to(Path(named).resolve() / "script" / recipe)
    home = tmp_path / "CM"
    home.mkdir()
    (home / "repos.json").write_text(json.dumps([str(ROOT), str(public)]))
    return home


def test_the_public_client_makes_a_session(own_network: None, home: Path, power_dev: Path, tmp_path: Path) -> None:
    programs = round_terms(round_names()[-1]).power
    source = provide(programs, power_dev, tmp_path / "source")
    work = tmp_path / "work"
    work.mkdir()
    measure = work / "measure.py"
    measure.write_text(PUBLIC_MEASURE.replace("WORK", str(work)))
    measure.chmod(0o755)
    cm = Path(sys.executable).with_name("cm")
    command = [cm, "run", "script", PUBLIC, "--quiet", "--power_server=127.0.0.1", "--ntp_server=127.0.0.1"]
    command += [f"--run_cmd={measure}", f"--loadgen_logs_dir={work / 'loadgen_logs'}", f"--log_dir={work / 'logs'}"]
    command += [f"--env.CM_MLPERF_POWER_SOURCE_GIT={power_dev}"]
    site = [sys.executable, "-m", "cm4vllm.power.simulated_site", work, source, programs.section]
    env = {**os.environ, "CM_REPOS": str(home), "MLPP_DEBUG": "1", "HOME": str(tmp_path)}
    words = [str(word) for word in ("unshare", "-Urn", *site, *command)]
    done = subprocess.run(words, cwd=work, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    session = PowerSession(work / "logs")
    names = {str(path.relative_to(session.folder)) for path in session.folder.rglob("*") if path.is_file()}
    assert names == {*FILES, FETCHED_ONLY} and len(names) == 12
    assert reasons_unmeasured(session) == () and session.simulated
    assert "sudo" not in done.stdout and "ntpdate" not in done.stdout.replace("_ntpdate", "")


# --- the official power checker of each round on published sessions: whole ones pass all of its checks


#: The session in whose copy PTDaemon's log is missing, which the checker finds.
CUT = "v4.1-nvidia-h200-maxq-llama2-70b-99-offline"


def test_the_checker_of_the_round_passes_the_published_sessions(
    published_power: Path, inference_git: Path, tmp_path: Path
) -> None:
    passed = {}
    for session in sorted(published_power.iterdir()):
        terms = round_terms(session.name.partition("-")[0])
        folder = tmp_path / terms.name
        if not folder.exists():
            folder.mkdir()
            extract(inference_git, terms.checkers[0].commit, ["tools/submission/power"], folder)
        words = [sys.executable, folder / "tools/submission/power/power_checker.py", session]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        passed[session.name] = [sum(mark in line for line in lines) for mark in ("[x] ", "[ ] ")]
    assert passed.pop(CUT) == [9, 2]
    assert set(map(tuple, passed.values())) == {(11, 0)}, passed

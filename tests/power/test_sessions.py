"""Whole sessions of the unmodified official client and server, with the simulated analyzer and real LoadGen runs."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from cm4vllm.common.errors import InstallError, RunFailed, SourceUnavailable, UsageError
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.power import clocks
from cm4vllm.power.making import OUTPUT, Site, make_session, preflight_run
from cm4vllm.power.programs import provide
from cm4vllm.power.server_run import ServerSettings, config_text
from cm4vllm.records.power.samples import SIMULATED
from cm4vllm.records.power.session import FETCHED_ONLY, FILES, Phase, PowerSession, reasons_unmeasured
from cm4vllm.rules import round_names, round_terms

LOADGEN = Path(__file__).parents[1] / "results" / "any_scenario.py"


def loadgen_run(folder: Path) -> None:
    """Make a real LoadGen run of some seconds."""
    subprocess.run([sys.executable, LOADGEN, folder, "Offline", "llama3_1-8b"], check=True, stdout=subprocess.DEVNULL)


def seconds_of_loadgen(folder: Path) -> None:
    """Repeat LoadGen's log over a window of six seconds, as a longer run has it."""
    begin = time.time()
    time.sleep(6)
    loadgen_run(folder)
    log = folder / "mlperf_log_detail.txt"
    lines = log.read_text().splitlines()
    stamp = time.strftime("%m-%d-%Y %H:%M:%S.000", time.gmtime(begin + 1))
    for at, line in enumerate(lines):
        entry = json.loads(line.removeprefix(":::MLLOG "))
        if entry["key"] == "power_begin":
            lines[at] = ":::MLLOG " + json.dumps({**entry, "value": stamp})
    log.write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Begun:
    """A simulated site with the programs of the newest round, and a whole session there that takes about a minute."""

    site: Site
    full: Future[tuple[PowerSession, float]]


@pytest.fixture(scope="module")
def begun(own_network: None, power_dev: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """Begin the session without shortened pauses, with a key in the environment: others are made meanwhile."""
    programs = round_terms(round_names()[-1]).power
    source = provide(programs, power_dev, tmp_path_factory.mktemp("power") / "source")
    site = Site(source=str(source), programs=programs, simulated=True, debug=True)
    os.environ["HF_TOKEN"] = "hf_madeUpForThisTest"
    try:
        with ThreadPoolExecutor(1) as pool:
            yield Begun(site, pool.submit(full_session, site, tmp_path_factory.mktemp("made") / "performance"))
    finally:
        del os.environ["HF_TOKEN"]


@pytest.fixture(scope="module")
def site(begun: Begun) -> Site:
    return begun.site


@pytest.fixture(scope="module")
def made(begun: Begun) -> tuple[PowerSession, float]:
    """The session without shortened pauses, and its seconds."""
    return begun.full.result()


def full_session(site: Site, target: Path) -> tuple[PowerSession, float]:
    begin = time.monotonic()
    session = make_session(replace(site, debug=False), target, seconds_of_loadgen)
    return session, time.monotonic() - begin


def test_the_programs_are_those_that_the_checkers_of_each_round_accept(
    power_dev: Path, official_file: Callable[[str, str], str], tmp_path: Path
) -> None:
    for name in round_names():
        terms = round_terms(name)
        folder = provide(terms.power, power_dev, tmp_path / name) / "ptd_client_server"
        own = {
            str(path.relative_to(folder)): hashlib.sha1(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*.py"))
        }
        accepted = official_file(terms.checkers[0].commit, "tools/submission/power/sources_checksums.json")
        assert own in json.loads(accepted), name


def test_programs_are_taken_from_git_alone(power_dev: Path, tmp_path: Path) -> None:
    programs = round_terms(round_names()[-1]).power
    with pytest.raises(SourceUnavailable, match="no git repository") as raised:
        provide(programs, tmp_path, tmp_path / "source")
    assert "--power_src=DIR" in raised.value.remedy


def test_programs_that_do_not_start_with_this_python_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    for programs in {round_terms(name).power for name in round_names()}:
        with pytest.raises(InstallError, match="do not start with Python") as raised:
            provide(programs, tmp_path, tmp_path / "source")
        assert "PYTHON=python3.12" in raised.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_published_of_a_run_that_fails_or_leaves_no_result(site: Site, tmp_path: Path) -> None:
    def failing(folder: Path) -> None:
        raise UsageError("no such sample")

    with pytest.raises(RunFailed, match="measured nothing") as raised:
        make_session(site, tmp_path / "performance", lambda folder: None)
    assert "loadgen logs" in raised.value.cause
    with pytest.raises(UsageError, match="no such sample"):
        make_session(site, tmp_path / "performance", failing)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_sessions import loadgen_run
from cm4vllm.power.making import Site, make_session
from cm4vllm.rules import PowerPrograms
import msgspec
left = [int(sys.argv[1])]
def run(folder):
    loadgen_run(folder)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
make_session(msgspec.json.decode(sys.argv[2], type=Site), Path(sys.argv[3]), run)
"""


@pytest.mark.parametrize("phase", [1, 2], ids=["ranging", "testing"])
def test_a_killed_session_leaves_no_process_and_no_half_folder(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: int
) -> None:
    (tmp_path / "tmp").mkdir()
    target = tmp_path / "performance"
    program = KILLED.format(tests=str(Path(__file__).parent))
    words = [sys.executable, "-c", program, str(phase), msgspec.json.encode(site).decode(), str(target)]
    done = subprocess.run(words, check=False, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 30
    while (running := processes_of(str(tmp_path / "tmp"))) and time.monotonic() < end:
        time.sleep(0.1)
    assert running == []
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with scratch_folder("cm4vllm-power-") as folder:  # the next session removes what the killed one left
        note = folder.with_name(f".{folder.name}.cm4vllm.json")
        assert {*(tmp_path / "tmp").iterdir()} == {folder, note}


def processes_of(folder: str) -> list[str]:
    """Return the command lines that name a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in lines if folder in line]


def test_a_session_on_another_machine_names_its_servers(site: Site, tmp_path: Path) -> None:
    real = Site(source=site.source, programs=site.programs, host="127.0.0.1", port=1)
    with pytest.raises(UsageError, match="--ntp_server"):
        make_session(real, tmp_path / "performance", lambda folder: preflight_run(folder, seconds=0))


@pytest.mark.timing
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_offset_of_a_clock_is_read_and_refused(monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    program = f"import time; now = time.time; time.time = lambda: now() + {shift}\n" + (
        "import socket; from cm4vllm.power.clocks import serve_time\n"
        "probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); probe.bind(('127.0.0.1', 0))\n"
        "port = probe.getsockname()[1]; probe.close(); print(port, flush=True); serve_time('127.0.0.1', port)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            end = time.monotonic() + 30
            while f":{port:04X} " not in Path("/proc/net/udp").read_text():
                assert time.monotonic() < end
                time.sleep(0.02)
            begin = time.monotonic()
            offset = clocks.clock_offset_s("127.0.0.1", port)
            # Half of the time that request and answer take is the most that it can be wrong by.
            assert offset == pytest.approx(shift, abs=0.05 + (time.monotonic() - begin) / 2)
            judge: Callable[..., float] = clocks.require_clock
            if shift:
                with pytest.raises(UsageError, match=r"ms off the time server"):
                    judge("127.0.0.1", port)
            else:
                judge("127.0.0.1", port)
        finally:
            server.kill()


def test_a_configuration_is_refused_where_the_server_would_not_start(tmp_path: Path) -> None:
    ptd = tmp_path / "ptd"
    ptd.touch()
    settings = ServerSettings(
        ptd=str(ptd), ntp_server="ntp.example", device_type=49, device_port="/dev/usbtmc0", channel="1"
    )
    assert config_text(settings, "analyzer1") == (
        f"[server]\nntpServer = ntp.example\nlisten = 127.0.0.1 4950\n\n[ptd]\nptd = {ptd}\n\n[analyzer1]\n"
        "networkPort = 8888\ndeviceType = 49\ninterfaceFlag = \ndevicePort = /dev/usbtmc0\nchannel = 1\n\n"
    )
    assert "[analyzer1]" not in config_text(settings, "ptd")
    for change in ({"ptd": "/none"}, {"listen": "localhost"}, {"ntp_server": "a\nb"}):
        with pytest.raises(UsageError):
            config_text(replace(settings, **change), "ptd")


# --- the whole session ------------------------------------------------------------------------------------------------


def test_a_session_is_whole_and_measured(made: tuple[PowerSession, float]) -> None:
    session, seconds = made
    names = {str(path.relative_to(session.folder)) for path in session.folder.rglob("*") if path.is_file()}
    assert names == set(FILES) and len(names) == 11
    assert FETCHED_ONLY in session.stated_digests()  # the twelfth file was fetched, and left out
    assert reasons_unmeasured(session) == () and list(session.changed_files()) == [] and seconds < 150
    assert "Successful exit" in session.folder.with_name(OUTPUT).read_text()
    for phase in Phase:
        started = session.start_of(phase)
        assert started is not None and abs((session.samples(phase).samples[0].at - started).total_seconds()) < 10


def test_everything_of_a_simulated_session_says_so(made: tuple[PowerSession, float]) -> None:
    session, _ = made
    assert {"power/ptd_logs.txt", "power/server.json", "power/server.log", "run_1/spl.txt", "ranging/spl.txt"} == set(
        session.simulated
    )
    assert all(sample.simulated for phase in Phase for sample in session.samples(phase).samples)
    assert session.identities and all(identity.simulated for identity in session.identities)
    assert session.text("power/ptd_logs.txt").count(SIMULATED) > 10


def test_no_key_and_no_home_folder_is_in_a_session(made: tuple[PowerSession, float]) -> None:
    session, _ = made
    for name in FILES:
        text = session.text(name)
        assert "hf_madeUp" not in text and str(Path.home()) + "/" not in text and str(Path.cwd()) not in text, name


def test_the_official_checker_refuses_the_identity_alone(site: Site, made: tuple[PowerSession, float]) -> None:
    session, _ = made
    check = Path(site.source) / "compliance" / "check.py"
    done = subprocess.run([sys.executable, check, session.folder], capture_output=True, text=True, check=False)
    failed = [line.partition("[ ] ")[2] for line in (done.stdout + done.stderr).splitlines() if "[ ] " in line]
    assert len([line for line in (done.stdout + done.stderr).splitlines() if "[x] " in line]) == 8, done.stderr
    assert failed == [
        "Check PTD commands and replies",
        "Check errors and warnings from PTD logs",
        "Check PTD configuration",
    ]

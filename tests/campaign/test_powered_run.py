"""Performance runs under power: what a job refuses before it begins, its steps, and the session beside the run."""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders import job_of, steps_of
from cm4vllm.campaign import powered_run
from cm4vllm.campaign.planning.schedule import SESSION_S
from cm4vllm.campaign.planning.steps import Step
from cm4vllm.campaign.powered_run import PowerInputs, lacks_session, make_powered_run, require_power, require_sound
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.errors import RunFailed, ServerUnreachable, SubmissionError, UsageError
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.folders.ownership_notes import note_files
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.power.making import make_session
from cm4vllm.power.programs import provide
from cm4vllm.records.power.samples import SIMULATED
from cm4vllm.records.power.session import FETCHED_ONLY, FILES, SESSION, PowerSession, reasons_unmeasured
from cm4vllm.records.power.supplies import SUPPLIES
from cm4vllm.results.checks.power import session_findings
from cm4vllm.rules import round_names, round_terms
from cm4vllm.submission.run_files import copy_power, copy_supplies
from cm4vllm.submission.tree_writer import TreeWriter

LOADGEN = Path(__file__).parents[1] / "results" / "any_scenario.py"


def powered(steps: Mapping[str, Step]) -> list[str]:
    return [name for name, step in steps.items() if getattr(step.inputs, "under_power", None)]


def test_the_steps_of_a_job_with_power() -> None:
    plain, steps = steps_of(scenario="Offline"), steps_of(scenario="Offline", power="simulated")
    assert {name: step.tags for name, step in steps.items() if name not in plain} == {
        "power programs": "get,mlperf,power,src,_r6.1",
        "power preflight": "run,mlperf,power,client,_preflight,_simulated,_r6.1",
    }
    before, after = (each["Offline performance"] for each in (plain, steps))
    assert before.duration is not None and after.duration is not None
    assert after.duration.seconds == 2 * before.duration.seconds + SESSION_S
    assert powered(steps) == ["Offline performance"]
    assert any(SIMULATED in note for note in after.notes)
    assert SIMULATED in job_of(power="simulated").no_tree and not job_of(power="yes").no_tree


def test_a_search_is_not_made_under_power_and_each_run_after_it_is() -> None:
    steps = steps_of(scenario="Server", execution_mode="valid", power="yes", submitter="Somebody")
    assert powered(steps) == ["Server performance", "Server performance again", "Server performance again (2)"]
    assert "Server search" in steps


def test_a_job_whose_power_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("one cable\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = {
            "CM_MLPERF_POWER": "yes",
            "CM_MLPERF_POWER_SERVER_ADDRESS": "127.0.0.1",
            "CM_MLPERF_POWER_NTP_SERVER": "127.0.0.1",
            "CM_MLPERF_POWER_SERVER_PORT": str(free.getsockname()[1]),  # bound, and no one listens
            "CM_MLPERF_POWER_SETTINGS": str(page),
            "CM_MLPERF_POWER_WIRING": str(page),
        }
        for key, words in (
            ("CM_MLPERF_POWER_SERVER_ADDRESS", "a power session needs --power_server"),
            ("CM_MLPERF_POWER_NTP_SERVER", "a power session needs --ntp_server"),
            ("CM_MLPERF_POWER_SETTINGS", "settings of the measured system must be stated"),
            ("CM_MLPERF_POWER_WIRING", "wiring must be stated"),
        ):
            with pytest.raises(UsageError, match=words):
                require_power(PowerInputs.of({**env, key: ""}), tree=True)
        with pytest.raises(UsageError, match="no file"):
            require_power(PowerInputs.of({**env, "CM_MLPERF_POWER_WIRING": str(tmp_path / "none")}), tree=False)
        with pytest.raises(ServerUnreachable, match="no power server answers on 127.0.0.1"):
            require_power(PowerInputs.of(env), tree=True)
    require_power(PowerInputs(), tree=True)


@pytest.fixture(scope="module")
def environment(own_network: None, power_dev: Path, tmp_path_factory: pytest.TempPathFactory) -> PowerInputs:
    folder = tmp_path_factory.mktemp("power")
    (folder / "settings.txt").write_text("fans at 50 %\n")
    (folder / "supplies.yaml").write_text("S: {Min PSUs Needed: 1, PSUs: [{PowerCapacityWatts: 800}]}\n")
    source = provide(round_terms(round_names()[-1]).power, power_dev, folder / "source")
    return PowerInputs(
        under_power="simulated",
        source=str(source),
        settings_file=str(folder / "settings.txt"),
        supplies_file=str(folder / "supplies.yaml"),
    )


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses of the official server: a whole session with all of them is in tests/power."""
    monkeypatch.setattr(
        powered_run, "make_session", lambda site, target, run: make_session(replace(site, debug=True), target, run)
    )


def loadgen(inputs: RunInputs) -> Path:
    """Make a short run of LoadGen in the folder of the inputs."""
    with staged_folder(inputs.folder) as folder:
        words = [sys.executable, LOADGEN, folder, "Offline", "llama3_1-8b"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return inputs.folder / "run.json"


def test_a_run_without_a_sample_is_refused_and_the_next_command_begins_anew(
    environment: PowerInputs, tmp_path: Path
) -> None:
    inputs = RunInputs(scenario="Offline", mode="performance", output_dir=str(tmp_path / "performance"))
    with pytest.raises(RunFailed, match="measured nothing"):  # LoadGen's window is shorter than the first second
        make_powered_run(inputs, environment, loadgen)
    assert list(tmp_path.iterdir()) == []


def longer_loadgen(inputs: RunInputs) -> Path:
    """Make a run whose window, by its log, began three seconds before: a real one, as long as a session needs."""
    begin = time.time()
    time.sleep(3)
    made = loadgen(inputs)
    log = made.with_name("mlperf_log_detail.txt")
    stamp = time.strftime("%m-%d-%Y %H:%M:%S.000", time.gmtime(begin + 1))
    log.write_text(re.sub(r'("key": "power_begin", "value": ")[^"]+', rf"\g<1>{stamp}", log.read_text()))
    note_files(inputs.folder, [log.name])
    return made


def test_a_run_and_its_session_appear_together_and_what_was_there_is_replaced(
    environment: PowerInputs, tmp_path: Path
) -> None:
    inputs = RunInputs(scenario="Offline", mode="performance", output_dir=str(tmp_path / "performance"))
    (tmp_path / "performance").mkdir()
    (tmp_path / "performance" / "earlier.txt").touch()
    made = []
    path = make_powered_run(inputs, environment, lambda run_inputs: made.append(longer_loadgen(run_inputs)) or made[-1])
    assert len(made) == 2 and path == tmp_path / "performance" / "run.json"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        ".performance.cm4vllm.json",
        f".{SESSION}.cm4vllm.json",
        "kept-performance",
        "performance",
        SESSION,
    ]
    assert [entry.name for entry in (tmp_path / "kept-performance").iterdir()] == ["earlier.txt"]
    session = PowerSession(tmp_path / SESSION)
    assert reasons_unmeasured(session) == () and list(session.changed_files()) == []
    assert (session.folder / "power_settings.txt").read_text() == "fans at 50 %\n"
    assert "PowerCapacityWatts: 800" in (session.folder / SUPPLIES).read_text()
    assert f"| {SIMULATED} | " in (session.folder / "analyzer_table.md").read_text()
    assert not lacks_session(inputs.folder)


SOURCE = "v4.1-untether-r760-resnet50-offline"


@pytest.fixture
def kept(published_power: Path, tmp_path: Path) -> Path:
    """A run with its session, both published: the folder of the run."""
    shutil.copytree(published_power / SOURCE / "run_1", tmp_path / "performance", copy_function=shutil.copyfile)
    shutil.copytree(published_power / SOURCE, tmp_path / SESSION, copy_function=shutil.copyfile)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert not lacks_session(tmp_path / "performance")
    return tmp_path / "performance"


def test_a_run_is_kept_with_its_own_session_alone(kept: Path) -> None:
    log = kept / "mlperf_log_detail.txt"
    log.write_text(log.read_text().replace("Offline", "Server", 1))
    assert lacks_session(kept)
    shutil.rmtree(kept.with_name(SESSION))
    assert lacks_session(kept)


@pytest.mark.parametrize("name", ["run_1/spl.txt", "power/ptd_logs.txt", "ranging/mlperf_log_detail.txt"])
@pytest.mark.parametrize("change", ["halved", "removed"])
def test_a_run_is_not_kept_where_its_session_was_changed(kept: Path, name: str, change: str) -> None:
    path = kept.with_name(SESSION) / name
    data = path.read_bytes()
    path.unlink()
    if change == "halved":
        path.write_bytes(data[: len(data) // 2])
    assert lacks_session(kept) == f"files of its power session have been changed or removed: {name}"


def test_a_run_is_not_kept_where_its_session_states_nothing(kept: Path) -> None:
    (kept.with_name(SESSION) / "power" / "server.json").write_text("{}")
    assert "power/server.json" in lacks_session(kept)


def test_a_tree_gets_the_files_of_a_session_byte_for_byte(published_power: Path, kept: Path, tmp_path: Path) -> None:
    source, run, session = published_power / SOURCE, kept, kept.with_name(SESSION)
    results, settings = tmp_path / "results", tmp_path / "settings"
    settings.mkdir()
    session.rename(tmp_path / "aside")
    copy_power(run, results, settings)
    assert not results.exists()  # without a session nothing is done
    (tmp_path / "aside").rename(session)
    with pytest.raises(SubmissionError, match="lacks analyzer_table"):
        copy_power(run, results, settings)
    for name in ("analyzer_table.md", "power_settings.md"):
        (session / name).write_text("stated\n")
    (session / FETCHED_ONLY).write_text("Power: Watts,826\n")
    shutil.copytree(run, results / "performance" / "run_1", dirs_exist_ok=True)
    copy_power(run, results, settings)
    made = PowerSession(results / "performance")
    assert made.missing == () and not (made.folder / FETCHED_ONLY).exists() and reasons_unmeasured(made) == ()
    assert all((made.folder / name).read_bytes() == (source / name).read_bytes() for name in FILES)
    assert sorted(path.name for path in settings.iterdir()) == ["analyzer_table.md", "power_settings.md"]
    writer, supplies = TreeWriter(tmp_path), tmp_path / "systems" / "a_system_power.yaml"
    copy_supplies(writer, run, supplies)
    assert not supplies.exists()  # nothing is invented
    (session / SUPPLIES).write_text("stated\n")
    copy_supplies(writer, run, supplies)
    assert supplies.read_text() == "stated\n"
    (session / SUPPLIES).write_text("another\n")
    with pytest.raises(SubmissionError, match="a_system_power"):
        copy_supplies(writer, run, supplies)
    log = session / "power" / "ptd_logs.txt"
    log.write_text(log.read_text() + SIMULATED)
    with pytest.raises(SubmissionError, match="simulated"):
        copy_power(run, results, settings)


def uncertain(session: Path) -> None:
    log = session / "power" / "ptd_logs.txt"
    warning = "07-25-2024 11:30:00.000: WARNING: Uncertainty 1.52%, which is above 1.00% limit for the last sample!\n"
    log.write_text(f"{log.read_text()}\n{warning}")


def of_samples(session: Path, pattern: str, changed: Callable[[re.Match[str]], str], *phases: str) -> None:
    for phase in phases:
        path = session / phase / "spl.txt"
        path.write_text(re.sub(pattern, changed, path.read_text(), flags=re.M))


def lower_by(part: float) -> Callable[[Path], None]:
    return lambda session: of_samples(
        session, r"(?<=Watts,)[\d.]+", lambda watts: f"{float(watts[0]) * (1 - part):.6f}", "run_1"
    )


def clock_ahead_by(seconds: float) -> Callable[[Path], None]:
    def later(time_of: re.Match[str]) -> str:
        form = "%m-%d-%Y %H:%M:%S.%f"
        return (datetime.strptime(time_of[0], form) + timedelta(seconds=seconds)).strftime(form)[:-3]

    return lambda session: of_samples(session, r"(?<=^Time,)[^,]+", later, "ranging", "run_1")


@pytest.mark.parametrize(
    ("change", "code", "cause", "remedy"),
    [
        (uncertain, "POWER-UNCERTAINTY", "1.52 % at most", "choose ranges"),
        (lower_by(0.07), "POWER-RANGING", "less power", "ranging and testing"),
        (clock_ahead_by(2), "POWER-CLOCK", "+2.2", "set the clock"),
        (clock_ahead_by(-2), "POWER-CLOCK", "-1.", "set the clock"),
    ],
    ids=["uncertain", "7 % lower", "2 s ahead", "2 s behind"],
)
def test_a_session_that_a_tree_would_refuse_is_refused_when_it_ends(
    kept: Path, change: Callable[[Path], None], code: str, cause: str, remedy: str
) -> None:
    change(kept.with_name(SESSION))
    with pytest.raises(RunFailed, match="does not count") as refused:
        require_sound(PowerSession(kept.with_name(SESSION)))
    assert code in refused.value.cause and cause in refused.value.cause and remedy in refused.value.remedy


def test_a_sound_session_ends_without_a_word_and_half_a_second_is_only_said(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = kept.with_name(SESSION)
    require_sound(PowerSession(session))
    assert capsys.readouterr().err == ""
    clock_ahead_by(0.5)(session)
    assert {f.code for f in session_findings(PowerSession(session)) if f.severity is Severity.WARNING} == {
        "POWER-CLOCK"
    }

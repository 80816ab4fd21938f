"""The session before the runs: wrong wiring and private words are found in real session files, each changed once."""

import json
import shutil
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders import steps_of
from cm4vllm.campaign import power_client
from cm4vllm.campaign.planning.step_environment import StepEnvironment
from cm4vllm.campaign.planning.step_values import Values
from cm4vllm.campaign.planning.steps import Step
from cm4vllm.campaign.power_client import (
    ClientSettings,
    make_preflight,
    require_channels,
    require_publishable,
    require_settings,
)
from cm4vllm.common.checking.private_words import private_words
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.power.making import Site
from cm4vllm.power.programs import provide
from cm4vllm.records.power.session import SESSION, Phase, PowerSession
from cm4vllm.rules import round_names, round_terms

SINGLE, CHANNELS = "v4.1-untether-r760-resnet50-offline", "v4.1-nvidia-h200-maxq-llama2-70b-99-offline"
STREAM = "v4.1-untether-h13-resnet50-singlestream"
LENOVO, GATEOVERFLOW = "v5.1-lenovo-b200-llama2-70b-99-offline", "v5.1-gateoverflow-mobilenet-offline"


def copied(published: Path, name: str, folder: Path) -> PowerSession:
    shutil.copytree(published / name, folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return PowerSession(folder)


@pytest.mark.parametrize(("name", "channels"), [(SINGLE, 1), (CHANNELS, 3)])
def test_the_wiring_of_published_sessions_is_right(published_power: Path, name: str, channels: int) -> None:
    assert require_channels(PowerSession(published_power / name)) == channels


def test_a_published_session_reads_power_the_wrong_way_round(published_power: Path) -> None:
    with pytest.raises(UsageError, match=r"reads -3\d\.\d+ W"):  # 37 of its 600 samples are below zero
        require_channels(PowerSession(published_power / GATEOVERFLOW))


def test_a_channel_that_is_missing_or_the_wrong_way_round_is_refused(published_power: Path, tmp_path: Path) -> None:
    session = copied(published_power, CHANNELS, tmp_path / "missing")
    samples = session.folder / Phase.RANGING / "spl.txt"
    text = samples.read_text()
    samples.write_text("".join(f"{line.partition(',Ch3,')[0]}\n" for line in text.splitlines()))
    with pytest.raises(UsageError, match="gives 2 channels of 3") as raised:
        require_channels(session)
    assert "--channel" in raised.value.remedy
    turned = copied(published_power, CHANNELS, tmp_path / "turned")
    samples = turned.folder / Phase.RANGING / "spl.txt"
    samples.write_text(text.replace(",Ch2,Watts,", ",Ch2,Watts,-"))
    with pytest.raises(UsageError, match="channel Ch2 of the analyzer reads -"):
        require_channels(turned)


def test_two_analyzers_are_refused_before_any_run(published_power: Path, tmp_path: Path) -> None:
    session = copied(published_power, LENOVO, tmp_path / "two")
    server = session.folder / "power" / "server.json"
    stated = json.loads(server.read_text())
    server.write_text(json.dumps({**stated, "ptd_config": stated["ptd_config"] * 2}))
    with pytest.raises(UsageError, match="2 analyzers are not supported"):
        require_channels(session)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("power/client.log", "Running the workload 'HF_TOKEN=hf_madeUpForThisTest ./run.sh'", "a secret"),
        (
            "power/server.log",
            "Running PTDaemon: ['/home/director/ptd-linux-x86', '-l']",
            "folder of a person: director",
        ),
        ("power/client.log", "collecting logs from '/srv/somebody/results/logs'", "this machine's home folder"),
        ("power/server.json", '"key": "ghp_0123456789abcdefghijklmnopqrstuvwxyz"', "a secret"),
    ],
)
def test_a_private_word_in_a_session_is_found_before_the_runs(
    published_power: Path, tmp_path: Path, file: str, text: str, words: str
) -> None:
    env = {"HOME": "/srv/somebody", "HF_TOKEN": "hf_madeUpForThisTest"}
    private = [
        private_word for private_word in private_words(tmp_path, env) if private_word.kind in ("home folder", "secret")
    ]
    session = copied(published_power, STREAM, tmp_path / "session")
    require_publishable(session, private)
    path = session.folder / file
    path.write_text(f"{path.read_text()}{text}\n")
    with pytest.raises(SubmissionError, match=words) as raised:
        require_publishable(session, private)
    assert raised.value.what.startswith(f"{file}, line {len(path.read_text().splitlines())},")


def test_a_published_session_names_a_home_folder(published_power: Path) -> None:
    with pytest.raises(SubmissionError, match="home folder of a person: arjun"):
        require_publishable(PowerSession(published_power / GATEOVERFLOW), [])


def test_a_simulated_session_before_the_runs_takes_seconds_and_is_refused_before_a_tree_alone(
    own_network: None, power_dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = round_terms(round_names()[-1]).power
    source = provide(programs, power_dev, tmp_path / "source")
    begin = time.monotonic()
    session = make_preflight(
        Site(source=str(source), programs=programs, simulated=True), tmp_path / "made", private_words()
    )
    assert session.simulated and time.monotonic() - begin < 30
    monkeypatch.setattr(power_client, "make_preflight", lambda *_: session)
    given = ClientSettings(preflight=True, simulated=True)
    assert power_client.make(given) == Path.cwd()
    with pytest.raises(SubmissionError, match="simulated"):
        power_client.make(replace(given, before_tree=True))


def preflight_step(**settings: object) -> Step:
    return steps_of(**{"power": "simulated", "scenario": "Offline", **settings})["power preflight"]


def test_it_is_before_a_tree_where_the_job_makes_one() -> None:
    for power, made in (("yes", True), ("simulated", False)):
        assert ClientSettings.of(preflight_step(power=power).env()).before_tree is made


def test_it_is_left_out_where_each_run_has_its_session(published_power: Path, tmp_path: Path) -> None:
    condition, values = preflight_step().condition, Values(tmp_path, StepEnvironment(), {})
    assert condition is not None and values.holds(condition)
    run = tmp_path / "runs" / "a_system" / "a_model" / "Offline" / "performance"
    copied(published_power, SINGLE, run.with_name(SESSION))
    assert values.holds(condition)
    shutil.copytree(run.with_name(SESSION) / Phase.TESTING, run)
    assert not values.holds(condition)
    for rerun in ("offline.performance", "power.preflight"):
        assert preflight_step(rerun=rerun).condition is None


def test_the_public_inputs_that_leave_out_ranging_are_refused() -> None:
    given = ClientSettings(power_server="host", ntp_server="host", run_cmd="true", log_dir="/none/logs")
    require_settings(given)
    for change in ({"max_amps": "10"}, {"max_volts": "230"}):
        with pytest.raises(UsageError, match="is not supported") as raised:
            require_settings(replace(given, **change))
        assert "ranging" in raised.value.remedy


def test_a_session_goes_into_a_new_folder_or_an_empty_one_and_nothing_else(tmp_path: Path) -> None:
    given = ClientSettings(power_server="host", ntp_server="host", run_cmd="true")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        require_settings(replace(given, log_dir=str(tmp_path / name)))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with staged_folder(tmp_path / "session") as staging:
        (staging / "ptd_logs.txt").write_text("")
    for name in ("file", "link", "mine", "session", "."):
        with pytest.raises(UsageError, match="is not replaced by a power session") as raised:
            require_settings(replace(given, log_dir=str(tmp_path / name)))
        assert "--log_dir" in raised.value.remedy
        require_settings(replace(given, log_dir=str(tmp_path / name), timestamp=True))  # below it, by the time

"""The samples of published sessions, and lines that are cut, merged, or of several channels and analyzers."""

import json
from pathlib import Path

import pytest

from cm4vllm.records.power.protocol import identity_of, log_lines, totals_of, uncertainty_of
from cm4vllm.records.power.samples import mean_watts, samples_of
from cm4vllm.records.power.session import FILES, Phase, PowerSession, is_power_session, reasons_unmeasured

#: Mean power in W of the measured window and its samples above zero, computed by an independent program.
MEANS = {
    "v4.1-untether-r760-resnet50-offline": (1021.358974, 663),
    "v4.1-untether-h13-resnet50-singlestream": (231.118500, 600),
    "v4.1-nvidia-h200-maxq-llama2-70b-99-offline": (6152.984435, 3116),
    "v5.1-lenovo-b200-llama2-70b-99-offline": (10400.998879, 2677),
    "v5.1-gateoverflow-mobilenet-offline": (34.176483, 563),
}
ONE = "Time,07-25-2024 11:18:50.385,Watts,539.000000,Volts,119.100000,Amps,4.560000,PF,0.994000"
CHANNELS = "".join(f",Watts,{watts},Volts,119,Amps,1,PF,0.9" for watts in (200, 339))
NAMED = f"{ONE},Mark,a_testing,Ch1,Watts,200,Volts,119,Amps,1,PF,0.9,Ch2,Watts,339,Volts,119,Amps,1,PF,0.9"
ANALYZERS = f"{ONE},Mark,a_testing,Analyzer1,{ONE},Mark,a_testing,Analyzer2,{ONE},Mark,a_testing"


@pytest.mark.parametrize("name", MEANS)
def test_the_mean_of_a_published_session_is_that_of_its_reference(published_power: Path, name: str) -> None:
    session = PowerSession(published_power / name)
    window = session.window(Phase.TESTING)
    assert window is not None
    read = session.samples(Phase.TESTING)
    samples = read.within(window.begin, window.end)
    mean, count = MEANS[name]
    assert mean_watts(samples) == pytest.approx(mean, abs=5e-7)
    assert sum(sample.usable for sample in samples) == count and read.damaged == ()
    assert {sample.mark.rpartition("_")[2] for sample in samples} == {"testing"}


def test_channels_are_read_with_and_without_their_names(published_power: Path) -> None:
    (named,) = samples_of(NAMED).samples
    (unnamed,) = samples_of(ONE + CHANNELS).samples
    assert named.channels == unnamed.channels and list(named.channels.values()) == [200, 339]
    assert (named.mark, unnamed.mark) == ("a_testing", "")
    three = PowerSession(published_power / "v5.1-lenovo-b200-llama2-70b-99-offline").samples(Phase.TESTING).samples
    assert {tuple(sample.channels) for sample in three} == {("Ch1", "Ch2", "Ch3")}
    (two,) = samples_of(ANALYZERS).samples
    assert two.channels == {"Analyzer1": 539, "Analyzer2": 539}


@pytest.mark.parametrize(
    ("text", "read", "damaged"),
    [
        (f"{ONE}\n{ONE}\n", 2, ()),
        (f"{ONE}{ONE}\n{ONE}\n", 3, (1,)),
        (f"{ONE},{ONE}\n", 2, (1,)),
        (f"07-25-2024 11:18:50.385: Response to client sent: {ONE}\n\n", 1, ()),
        (f"{ONE[:60]}\n{ONE}\n", 1, (1,)),
        (ONE.replace("539.000000", "nan") + "\nAvg watts 814.4\n", 1, ()),
        ("Time,yesterday,Watts,1,Volts,1,Amps,1,PF,1\n", 0, (1,)),
    ],
)
def test_lines_that_are_cut_or_merged_are_read_and_named(text: str, read: int, damaged: tuple[int, ...]) -> None:
    samples = samples_of(text)
    assert (len(samples.samples), samples.damaged) == (read, damaged)


def test_a_sample_that_is_not_above_zero_is_left_out_of_the_mean_and_an_empty_folder_has_none(tmp_path: Path) -> None:
    session = PowerSession(tmp_path)
    assert not is_power_session(tmp_path) and session.missing == FILES
    assert len(reasons_unmeasured(session)) == 3 and session.identities == () and session.analyzers == ()
    lines = (ONE.replace("539.000000", value) for value in ("100", "-37", "nan", "0", "200"))
    assert mean_watts(samples_of("\n".join(lines)).samples) == 150
    assert mean_watts(()) is None


def test_the_identity_is_read_from_the_reply(published_power: Path) -> None:
    identities_of = {name: PowerSession(published_power / name).identities for name in MEANS}
    read = [(each[0].model, each[0].channels, each[0].version.split("-")[0]) for each in identities_of.values()]
    assert read == [
        *[("YokogawaWT210", 1, "1.10.0")] * 2,
        ("YokogawaWT330_multichannel", 3, "1.10.0"),
        ("YokogawaWT500_multichannel", 3, "1.11.1"),
        ("YokogawaWT210", 1, "1.11.1"),
    ]
    assert not any(identity.simulated for each in identities_of.values() for identity in each)
    assert identities_of["v5.1-gateoverflow-mobilenet-offline"][0].instrument == ("YOKOGAWA", "760401", "0", "F1.12")
    assert identity_of("Ranges,0,A,0,V") is None and identity_of("") is None


def test_the_replies_and_warnings_of_ptdaemon_are_read(published_power: Path) -> None:
    totals = totals_of("Watts,826.755926,533.000000,1036.000000,1139,0,1139", "Watts")
    assert totals is not None and (totals.mean, totals.maximum) == (826.755926, 1036.0)
    assert totals_of("Uncertainty,-1.0,10000000.000000,0.000000,1190,0,0,1190", "Uncertainty") is None
    log = PowerSession(published_power / "v5.1-gateoverflow-mobilenet-offline").ptd_log
    warned = [value for line in log if (value := uncertainty_of(line)) is not None]
    assert len(warned) == 11 and max(warned) == 1.60
    assert list(log_lines("no time in it\n")) == []


@pytest.mark.parametrize("name", MEANS)
def test_a_published_session_is_judged_by_its_files(published_power: Path, name: str) -> None:
    session = PowerSession(published_power / name)
    assert is_power_session(session.folder) and session.simulated == ()
    assert set(session.missing) <= {"power/ptd_logs.txt"}  # too large for some copies of the results
    assert len(reasons_unmeasured(session)) == len(session.missing)
    assert list(session.changed_files()) == []
    for phase in Phase:
        started, first = session.start_of(phase), session.samples(phase).samples[0]
        assert started is not None and 0 <= (first.at - started).total_seconds() <= 0.4


@pytest.mark.parametrize(
    ("line", "timezone", "started"),
    [
        ("2024-07-25 11:18:49,900", 0, "2024-07-25T11:18:49.900000+00:00"),
        ("2024-07-25 11:18:49,900", 18000, "2024-07-25T16:18:49.900000+00:00"),  # time.timezone: s west of UTC
        ("2024-07-25 11:18:49,900", None, None),
        ("2024-07-25 11:18:49,900", "east", None),
        ("2024-07-25 11:18:49,900", 1e300, None),
        ("2024-13-45 11:18:49,900", 0, None),
        ("", 0, None),
    ],
)
def test_the_start_of_a_measurement_is_that_of_the_servers_clock(
    tmp_path: Path, line: str, timezone: object, started: str | None
) -> None:
    (tmp_path / "power").mkdir()
    (tmp_path / "power" / "server.json").write_text(json.dumps({"timezone": timezone}))
    (tmp_path / "power" / "server.log").write_text(
        "".join(
            f"ptd-server {line} [INFO] Analyzer [1] is sending to ptd: 'Go,1000,0,a_{mode}'\n"
            for mode in ("ranging", "testing")
        )
    )
    started_at = PowerSession(tmp_path).start_of(Phase.TESTING)
    assert (started_at.isoformat() if started_at else None) == started

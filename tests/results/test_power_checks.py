"""Published power sessions in a tree, each with one change at a time: the findings are exactly those of the change."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cm4vllm.common.git.git_source import extract
from cm4vllm.records.power.samples import SIMULATED, mean_watts, samples_of
from cm4vllm.records.power.session import FETCHED_ONLY, FILES, Phase
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.checks import CHECKS
from cm4vllm.results.figures import Figure
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.recorded_power import recorded_power
from cm4vllm.rules import round_terms

GOOD, CHANNELS = "v4.1-untether-r760-resnet50-offline", "v4.1-nvidia-h200-maxq-llama2-70b-99-offline"
FORMAT = "%m-%d-%Y %H:%M:%S.%f"


def tree_of(published: Path, name: str, root: Path) -> Path:
    """Make a tree with one session; return its performance folder."""
    home = root / "closed" / "Somebody"
    folder = home / "results" / "a_system" / "resnet50" / "Offline"
    shutil.copytree(published / name, folder / "performance", copy_function=shutil.copyfile)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for stated in ("analyzer_table.md", "power_settings.md"):
        (folder / stated).write_text("one analyzer, one cable\n")
    return folder / "performance"


def found_in(session: Path) -> set[str]:
    return {finding.code for finding in check_tree(session.parents[6]).findings if finding.code.startswith("POWER-")}


@pytest.fixture
def session(published_power: Path, tmp_path: Path) -> Path:
    return tree_of(published_power, GOOD, tmp_path)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        (GOOD, set()),
        ("v4.1-untether-h13-resnet50-singlestream", set()),
        (CHANNELS, {"POWER-FILES"}),  # its log of PTDaemon is left out of this copy
        ("v5.1-lenovo-b200-llama2-70b-99-offline", {"POWER-UNCERTAINTY"}),
        ("v5.1-gateoverflow-mobilenet-offline", {"POWER-COVERAGE", "POWER-UNCERTAINTY"}),
    ],
)
def test_the_findings_of_published_sessions(published_power: Path, tmp_path: Path, name: str, codes: set[str]) -> None:
    assert found_in(tree_of(published_power, name, tmp_path)) == codes


# --- the changes ------------------------------------------------------------------------------------------------------


def restate(session: Path) -> None:
    """Have server.json and client.json state the digests and the means of the files as they are now."""
    restate_digests(session)
    for part in ("client", "server"):
        path = session / "power" / f"{part}.json"
        content = json.loads(path.read_text())
        watts = [listed for listed in content.get("ptd_messages", ()) if listed["cmd"] == "Watts"]
        for message, phase in zip(watts, (Phase.RANGING, Phase.TESTING, Phase.TESTING), strict=False):
            mean = mean_watts(samples_of((session / phase / "spl.txt").read_text()).samples)
            message["reply"] = re.sub(r"^Watts,[\d.]+", f"Watts,{mean:.6f}", message["reply"])
        path.write_text(json.dumps(content))


def restate_digests(session: Path) -> None:
    for part in ("client", "server"):
        path = session / "power" / f"{part}.json"
        content = json.loads(path.read_text())
        for name in content["results"]:
            if name in FILES and (session / name).is_file():
                content["results"][name] = hashlib.sha1((session / name).read_bytes()).hexdigest()
        path.write_text(json.dumps(content))


def of_samples(session: Path, change: Callable[[list[str]], list[str]], *phases: Phase) -> None:
    for phase in phases:
        path = session / phase / "spl.txt"
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    restate(session)


def shifted(line: str) -> str:
    words = line.split(",")
    if words[0] == "Time":
        words[1] = (datetime.strptime(words[1], FORMAT) + timedelta(seconds=2)).strftime(FORMAT)[:-3]
    return ",".join(words)


def scaled(line: str, factor: float) -> str:
    words = line.split(",")
    if words[0] == "Time":
        words[3] = f"{float(words[3]) * factor:.6f}"
    return ",".join(words)


def the_clock_is_two_seconds_ahead(session: Path) -> None:
    of_samples(session, lambda lines: [shifted(line) for line in lines], *Phase)


def the_window_is_cut(session: Path) -> None:
    of_samples(session, lambda lines: lines[:-42], Phase.TESTING)


def ten_seconds_are_missing(session: Path) -> None:
    of_samples(session, lambda lines: [*lines[:700], *lines[710:]], Phase.TESTING)


def samples_are_not_positive(session: Path) -> None:
    """Change the sign of 7 of 663 samples in the window."""
    of_samples(
        session,
        lambda lines: [*lines[:700], *(scaled(line, -1) for line in lines[700:707]), *lines[707:]],
        Phase.TESTING,
    )


def a_line_is_cut(session: Path) -> None:
    of_samples(session, lambda lines: [*lines[:700], lines[700][:70] + "\n", *lines[701:]], Phase.TESTING)


def testing_is_lower(session: Path) -> None:
    of_samples(session, lambda lines: [scaled(line, 0.88) for line in lines], Phase.TESTING)


def a_sample_is_uncertain(session: Path) -> None:
    path = session / "power" / "ptd_logs.txt"
    warning = "07-25-2024 11:30:00.000: WARNING: Uncertainty 1.52%, which is above 1.00% limit for the last sample!\n"
    path.write_text(f"{path.read_text()}\n{warning}")
    restate(session)


def the_mean_is_another(session: Path) -> None:
    path = session / "power" / "server.json"
    path.write_text(path.read_text().replace("Watts,826.755926", "Watts,820.000000"))


def one_byte_is_changed(session: Path) -> None:
    path = session / "power" / "client.log"
    path.write_text(path.read_text().replace("Successful", "successful", 1).replace("ranging", "Ranging", 1))


def a_file_is_missing(session: Path) -> None:
    (session / "ranging" / "mlperf_log_summary.txt").unlink()


def server_json_is_empty(session: Path) -> None:
    (session / "power" / "server.json").write_text("{}")


def client_json_states_no_digests(session: Path) -> None:
    path = session / "power" / "client.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "results": {}}))


def ptdaemon_was_never_asked(session: Path) -> None:
    path = session / "power" / "server.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "ptd_messages": []}))


def of_json(session: Path, part: str, **changes: object) -> None:
    """Change parts of client.json or server.json: a value, or a function of the value before."""
    path = session / "power" / f"{part}.json"
    content = json.loads(path.read_text())
    content |= {key: value(content[key]) if callable(value) else value for key, value in changes.items()}
    path.write_text(json.dumps(content))


def emptied(name: str) -> Callable[[Path], None]:
    def change(session: Path) -> None:
        (session / name).write_text("")
        restate_digests(session)

    return change


def without(name: str, pattern: str) -> Callable[[Path], None]:
    """Remove the lines of a file that match."""

    def change(session: Path) -> None:
        lines = (session / name).read_text().splitlines(keepends=True)
        kept = [line for line in lines if not re.search(pattern, line)]
        assert len(kept) < len(lines)
        (session / name).write_text("".join(kept))
        restate_digests(session)

    return change


def stated(part: str, **changes: object) -> Callable[[Path], None]:
    return lambda session: of_json(session, part, **changes)


def results_of_another_kind(session: Path) -> None:
    for part in ("client", "server"):
        of_json(session, part, results={"x": "y"})


def the_log_of_ptdaemon_is_of_another_day(session: Path) -> None:
    path = session / "power" / "ptd_logs.txt"
    path.write_text(path.read_text().replace("07-25-2024", "07-24-2024"))
    restate_digests(session)


def with_watts(session: Path, watts: str) -> None:
    """Have one sample of the window state another power, and the means be those of before."""
    path = session / Phase.TESTING / "spl.txt"
    lines = path.read_text().splitlines(keepends=True)
    lines[700] = re.sub(r"Watts,[^,]+", f"Watts,{watts}", lines[700])
    path.write_text("".join(lines))
    restate_digests(session)


def a_sample_is_infinite(session: Path) -> None:
    with_watts(session, "inf")


def a_sample_is_an_overflow(session: Path) -> None:
    with_watts(session, "9.9e13")


def a_sample_is_the_greatest_float(session: Path) -> None:
    with_watts(session, "9.9e37")


def a_fetched_file_is_left(session: Path) -> None:
    (session / FETCHED_ONLY).write_text("Power: Watts,826\n")


def the_log_of_ptdaemon_is_cut(session: Path) -> None:
    path = session / "power" / "ptd_logs.txt"
    text = path.read_text()
    path.write_text(text[: text.rindex("Completed test")])
    restate(session)


def settings_are_not_stated(session: Path) -> None:
    (session.parent / "power_settings.md").unlink()


def the_wiring_is_not_stated(session: Path) -> None:
    (session.parent / "analyzer_table.md").unlink()


def two_analyzers_are_configured(session: Path) -> None:
    path = session / "power" / "server.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "ptd_config": [content["ptd_config"]] * 2}))


def the_analyzer_is_simulated(session: Path) -> None:
    path = session / "power" / "server.json"
    path.write_text(path.read_text().replace("YokogawaWT210,", f"{SIMULATED},"))


CHANGES: dict[Callable[[Path], None], str] = {
    the_clock_is_two_seconds_ahead: "POWER-CLOCK",
    the_window_is_cut: "POWER-WINDOW",
    ten_seconds_are_missing: "POWER-COVERAGE",
    samples_are_not_positive: "POWER-COVERAGE",
    a_line_is_cut: "POWER-COVERAGE",
    testing_is_lower: "POWER-RANGING",
    a_sample_is_uncertain: "POWER-UNCERTAINTY",
    the_mean_is_another: "POWER-MEAN",
    one_byte_is_changed: "POWER-HASH",
    a_file_is_missing: "POWER-FILES",
    a_fetched_file_is_left: "POWER-FILES",
    server_json_is_empty: "POWER-FILES",
    client_json_states_no_digests: "POWER-FILES",
    ptdaemon_was_never_asked: "POWER-FILES",
    a_sample_is_infinite: "POWER-IMPOSSIBLE",
    a_sample_is_an_overflow: "POWER-IMPOSSIBLE",
    a_sample_is_the_greatest_float: "POWER-IMPOSSIBLE",
    the_log_of_ptdaemon_is_cut: "POWER-PTD-LOG-CUT",
    settings_are_not_stated: "POWER-SETTINGS",
    the_wiring_is_not_stated: "POWER-SETTINGS",
    two_analyzers_are_configured: "POWER-TWO-ANALYZERS",
    the_analyzer_is_simulated: "POWER-SIMULATED",
}


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_a_change_has_exactly_its_finding(session: Path, change: Callable[[Path], None]) -> None:
    change(session)
    assert found_in(session) == {CHANGES[change]}


FILE, ONE = {"POWER-FILES"}, {"POWER-ONE-SESSION"}
PTD_LOG, SERVER_LOG = "power/ptd_logs.txt", "power/server.log"
#: Parts that are missing or of another form, by which a check would have nothing to compare.
PARTS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "no log of PTDaemon": (emptied(PTD_LOG), FILE | {"POWER-PTD-LOG-CUT", "POWER-UNCERTAINTY"}),
    "no log of the server": (emptied(SERVER_LOG), FILE),
    "no log of the client": (emptied("power/client.log"), FILE),
    "no samples of ranging": (emptied("ranging/spl.txt"), FILE | {"POWER-WINDOW"}),
    "no summary of ranging": (emptied("ranging/mlperf_log_summary.txt"), FILE),
    "no log of ranging": (emptied("ranging/mlperf_log_detail.txt"), FILE),
    "no window of ranging": (without("ranging/mlperf_log_detail.txt", "power_end"), FILE),
    "no Go in the log of the server": (without(SERVER_LOG, "to ptd: 'Go,.*_testing"), FILE),
    "no begin in the log of PTDaemon": (without(PTD_LOG, "Go with mark .*_testing"), {"POWER-PTD-LOG-CUT"}),
    "no end of ranging in the log of PTDaemon": (without(PTD_LOG, "11:18:37.*Completed"), {"POWER-PTD-LOG-CUT"}),
    "no check of the uncertainty": (without(PTD_LOG, "Uncertainty checking"), {"POWER-UNCERTAINTY"}),
    "the log of PTDaemon of another day": (the_log_of_ptdaemon_is_of_another_day, {"POWER-PTD-LOG-CUT"}),
    "messages of no form": (stated("server", ptd_messages=[{}]), FILE),
    "no messages of the power": (
        stated("server", ptd_messages=lambda listed: [each for each in listed if each["cmd"] != "Watts"]),
        FILE,
    ),
    "no identity of the analyzer": (
        stated("server", ptd_messages=lambda listed: [each for each in listed if each["cmd"] != "Identify"]),
        FILE,
    ),
    "a reply of no power": (
        stated(
            "server",
            ptd_messages=lambda listed: [
                {**each, "reply": "Watts"} if each["cmd"] == "Watts" else each for each in listed
            ],
        ),
        FILE,
    ),
    "digests of other files": (results_of_another_kind, FILE),
    "one digest less": (
        stated("server", results=lambda listed: {name: each for name, each in listed.items() if name != SERVER_LOG}),
        FILE,
    ),
    "an analyzer of no form": (stated("server", ptd_config=[{}]), FILE),
    "an analyzer that is a number": (stated("server", ptd_config=8), FILE),
    "a time zone that is a text": (stated("server", timezone="x"), FILE),
    "a time zone of the client that is none": (stated("client", timezone=None), FILE),
    "phases of other names": (stated("server", phases={"x": 1}), FILE),
    "a phase without moments": (stated("client", phases=lambda listed: {**listed, "testing": []}), FILE),
    "no identifiers": (stated("server", uuid={"client": "", "server": ""}), FILE),
    "another server": (
        stated("server", uuid=lambda listed: {**listed, "server": "0966d6b9-1913-428c-99e7-cd64b9b536ef"}),
        ONE,
    ),
    "another client": (
        stated("client", uuid=lambda listed: {**listed, "client": "0966d6b9-1913-428c-99e7-cd64b9b536ef"}),
        ONE,
    ),
    "another session": (stated("client", session_name="2024-07-25_06-58-24"), ONE),
    "a message less": (stated("client", messages=lambda listed: listed[:-1]), ONE),
    "another reply": (stated("client", messages=lambda listed: [{**listed[0], "reply": "no"}, *listed[1:]]), ONE),
    "a phase a second later": (
        stated("client", phases=lambda listed: {**listed, "testing": [[at + 1, up] for at, up in listed["testing"]]}),
        ONE,
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_a_check_reads_is_never_missing_without_a_finding(session: Path, name: str) -> None:
    change, codes = PARTS[name]
    change(session)
    assert found_in(session) == codes


def test_a_removed_channel_is_found(published_power: Path, tmp_path: Path) -> None:
    session = tree_of(published_power, CHANNELS, tmp_path)
    of_samples(session, lambda lines: [re.sub(r",Ch3,.*", "", line) for line in lines], Phase.TESTING)
    assert found_in(session) == {"POWER-FILES", "POWER-CHANNELS"}


def test_channels_that_do_not_add_up_are_found(published_power: Path, tmp_path: Path) -> None:
    session = tree_of(published_power, CHANNELS, tmp_path)
    of_samples(session, lambda lines: [scaled(line, 1.01) for line in lines], Phase.TESTING)
    assert found_in(session) == {"POWER-FILES", "POWER-CHANNELS"}


def test_what_names_the_simulated_analyzer_is_found_wherever_it_stands(session: Path) -> None:
    (session / "power" / "server.json").rename(session / "power" / "renamed.json")
    the_log = session / "ranging" / "spl.txt"
    the_log.write_text(the_log.read_text().replace("PF,0.994000,", f"PF,0.994000,{SIMULATED},", 1))
    assert "POWER-SIMULATED" in found_in(session)
    shutil.rmtree(session / "power")
    assert {"POWER-SIMULATED", "POWER-FILES"} <= found_in(session)
    (session / "run_1" / "spl.txt").rename(session / "run_1" / "renamed.txt")  # what is left of it is ranging/
    assert {"POWER-SIMULATED", "POWER-FILES"} <= found_in(session)


def test_every_check_of_power_is_shown_by_a_change() -> None:
    shown = {*CHANGES.values(), "POWER-CHANNELS", *ONE}
    assert {code for code in CHECKS if code.startswith("POWER-")} == shown


# --- the published figure of power of each kind of result: W, and mJ/query where results are compared by a latency


def figures(root: Path, name: str) -> tuple[Figure, Figure]:
    part = Reader(root).performance(root / name / "run_1", None)
    power = recorded_power(part) if part else None
    assert power is not None
    return power.mean, power.metric


def test_a_rate_has_watts_and_a_latency_has_energy(published_power: Path) -> None:
    """The figures are those that mlcommons/cm4mlperf-results has as Result_Power."""
    power, metric = figures(published_power, "v4.1-untether-r760-resnet50-offline")
    assert power == metric and power.unit == "W" and power.value == pytest.approx(1021.358974)
    power, metric = figures(published_power, "v4.1-untether-h13-resnet50-singlestream")
    assert (power.unit, power.value) == ("W", pytest.approx(231.1185))
    assert (metric.unit, metric.value) == ("mJ/query", pytest.approx(29.238987, abs=5e-7))
    assert metric.source.file == "v4.1-untether-h13-resnet50-singlestream/run_1/spl.txt"


OFFICIAL = """
import json, sys
from submission_checker.utils import get_power_metric
scenario, folder, result = sys.argv[1:]
print(json.dumps(get_power_metric(None, scenario, folder, True, float(result))))
"""


def test_the_figures_of_published_sessions_are_those_of_the_official_checker(
    published_power: Path, tmp_path: Path, inference_git: Path
) -> None:
    extract(inference_git, round_terms("v6.1").checkers[0].commit, ["tools/submission/submission_checker"], tmp_path)
    for session in sorted(published_power.iterdir()):
        part = Reader(published_power).performance(session / "run_1", None)
        power = recorded_power(part) if part else None
        assert part and part.metric and power and power.efficiency, session.name
        scenario = "SingleStream" if power.metric.unit == "mJ/query" else "Offline"
        done = subprocess.run(
            [sys.executable, "-c", OFFICIAL, scenario, session / "run_1", str(float(part.metric.value))],
            env={"PYTHONPATH": str(tmp_path / "tools/submission")},
            capture_output=True,
            text=True,
            check=True,
        )
        valid, metric, _, efficiency = json.loads(done.stdout.splitlines()[-1])
        assert valid
        assert (power.metric.value, power.efficiency.value) == pytest.approx((metric, efficiency), rel=1e-12), session


def test_a_run_without_an_analyzer_has_no_power(neural_magic: Path) -> None:
    folder = next(neural_magic.glob("results/*/*/*/performance/run_1"))
    part = Reader(neural_magic).performance(folder, None)
    assert part is not None and recorded_power(part) is None

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
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.recorded_power import recorded_power
from cm4vllm.rules import round_terms

GOOD, CHANNELS = "v4.1-untether-r760-resnet50-offline", "v4.1-nvidia-h200-maxq-llama2-70b-99-offline"
FORMAT = "%m-%d-%Y %H:%M:%S.%f"


def tree_of(published, name, root):
    """Make a tree with one session; return its performance folder."""
    home = root / "closed" / "Somebody"
    folder = home / "results" / "a_system" / "resnet50" / "Offline"
    shutil.copytree(published / name, folder / "performance", copy_function=shutil.copyfile)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for stated in ("analyzer_table.md", "power_settings.md"):
        (folder / stated).write_text("one analyzer, one cable\n")
    return folder / "performance"


def found_in(session):
    return {finding.code for finding in check_tree(session.parents[6]).findings if finding.code.startswith("POWER-")}


@pytest.fixture
def session(published_power, tmp_path):
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
def test_the_findings_of_published_sessions(published_power, tmp_path, name, codes):
    assert found_in(tree_of(published_power, name, tmp_path)) == codes


# --- the changes: each takes the performance folder


def json_of(session, part, **changes):
    """Change parts of client.json or server.json: a value, or a function of the value before."""
    path = session / "power" / f"{part}.json"
    content = json.loads(path.read_text())
    content |= {key: value(content[key]) if callable(value) else value for key, value in changes.items()}
    path.write_text(json.dumps(content))


def restate(session, *, means=True):
    """Have server.json and client.json state the digests, and the means, of the files as they are now."""
    watts = {phase: mean_watts(samples_of((session / phase / "spl.txt").read_text()).samples) for phase in Phase}

    def messages(listed):
        stated = [each for each in listed if each["cmd"] == "Watts"]
        for message, phase in zip(stated, (Phase.RANGING, Phase.TESTING, Phase.TESTING), strict=False):
            message["reply"] = re.sub(r"^Watts,[\d.]+", f"Watts,{watts[phase]:.6f}", message["reply"])
        return listed

    def digests(stated):
        own = [name for name in stated if name in FILES and (session / name).is_file()]
        return stated | {name: hashlib.sha1((session / name).read_bytes()).hexdigest() for name in own}

    for part in ("client", "server"):
        json_of(session, part, results=digests, **({"ptd_messages": messages} if means and part == "server" else {}))


def of_samples(change, *phases):
    def apply(session):
        for phase in phases or [Phase.TESTING]:
            path = session / phase / "spl.txt"
            path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
        restate(session)

    return apply


def shifted(line):
    words = line.split(",")
    if words[0] == "Time":
        words[1] = (datetime.strptime(words[1], FORMAT) + timedelta(seconds=2)).strftime(FORMAT)[:-3]
    return ",".join(words)


def scaled(line, factor):
    words = line.split(",")
    if words[0] == "Time":
        words[3] = f"{float(words[3]) * factor:.6f}"
    return ",".join(words)


def edited(name, edit, *, again=False):
    """Edit a file, and state its new digest with `again`."""

    def change(session):
        before = (session / name).read_text()
        assert edit(before) != before, name
        (session / name).write_text(edit(before))
        if again:
            restate(session, means=False)

    return change


def emptied(name):
    return edited(name, lambda text: "", again=True)


def without(name, pattern):
    """Remove the lines of a file that match."""
    lines = re.compile(rf"^.*(?:{pattern}).*\n", re.MULTILINE)
    return edited(name, lambda text: lines.sub("", text), again=True)


def stated(part, **changes):
    return lambda session: json_of(session, part, **changes)


def messages(kept):
    return stated("server", ptd_messages=lambda listed: [each for each in listed if kept(each)])


def watts(value):
    """Have one sample of the window state another power, and the means be those of before."""

    def other(text):
        lines = text.splitlines(keepends=True)
        return "".join([*lines[:700], re.sub(r"(?<=Watts,)[^,]+", value, lines[700]), *lines[701:]])

    return edited("run_1/spl.txt", other, again=True)


def results_of_another_kind(session):
    for part in ("client", "server"):
        json_of(session, part, results={"x": "y"})


FILE, ONE, CUT = {"POWER-FILES"}, {"POWER-ONE-SESSION"}, {"POWER-PTD-LOG-CUT"}
PTD_LOG, SERVER_LOG, SERVER = "power/ptd_logs.txt", "power/server.log", "power/server.json"
OTHER_ID = "0966d6b9-1913-428c-99e7-cd64b9b536ef"
UNCERTAIN = "07-25-2024 11:30:00.000: WARNING: Uncertainty 1.52%, which is above 1.00% limit for the last sample!"
#: Each change with its codes; the last ones are of parts by which a check would have nothing to compare.
CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "the clock is two seconds ahead": (of_samples(lambda lines: [*map(shifted, lines)], *Phase), {"POWER-CLOCK"}),
    "the window is cut": (of_samples(lambda lines: lines[:-42]), {"POWER-WINDOW"}),
    "ten seconds are missing": (of_samples(lambda lines: [*lines[:700], *lines[710:]]), {"POWER-COVERAGE"}),
    "7 of 663 samples are not positive": (
        of_samples(lambda lines: [*lines[:700], *(scaled(line, -1) for line in lines[700:707]), *lines[707:]]),
        {"POWER-COVERAGE"},
    ),
    "a line is cut": (
        of_samples(lambda lines: [*lines[:700], lines[700][:70] + "\n", *lines[701:]]),
        {"POWER-COVERAGE"},
    ),
    "testing is lower": (of_samples(lambda lines: [scaled(line, 0.88) for line in lines]), {"POWER-RANGING"}),
    "a sample is uncertain": (
        edited(PTD_LOG, lambda text: f"{text}\n{UNCERTAIN}\n", again=True),
        {"POWER-UNCERTAINTY"},
    ),
    "the mean is another": (
        edited(SERVER, lambda text: text.replace("Watts,826.755926", "Watts,820.000000")),
        {"POWER-MEAN"},
    ),
    "one byte is changed": (
        edited("power/client.log", lambda text: text.replace("ranging", "Ranging", 1)),
        {"POWER-HASH"},
    ),
    "a file is missing": (lambda session: (session / "ranging/mlperf_log_summary.txt").unlink(), FILE),
    "a fetched file is left": (lambda session: (session / FETCHED_ONLY).write_text("Power: Watts,826\n"), FILE),
    "server.json is empty": (edited(SERVER, lambda text: "{}"), FILE),
    "client.json states no digests": (stated("client", results={}), FILE),
    "PTDaemon was never asked": (stated("server", ptd_messages=[]), FILE),
    "a sample is infinite": (watts("inf"), {"POWER-IMPOSSIBLE"}),
    "a sample is an overflow": (watts("9.9e13"), {"POWER-IMPOSSIBLE"}),
    "the log of PTDaemon is cut": (
        edited(PTD_LOG, lambda text: text[: text.rindex("Completed test")], again=True),
        CUT,
    ),
    "settings are not stated": (lambda session: (session.parent / "power_settings.md").unlink(), {"POWER-SETTINGS"}),
    "the wiring is not stated": (lambda session: (session.parent / "analyzer_table.md").unlink(), {"POWER-SETTINGS"}),
    "two analyzers": (stated("server", ptd_config=lambda config: [config, config]), {"POWER-TWO-ANALYZERS"}),
    "the analyzer is simulated": (
        edited(SERVER, lambda text: text.replace("YokogawaWT210,", f"{SIMULATED},")),
        {"POWER-SIMULATED"},
    ),
    "no log of PTDaemon": (emptied(PTD_LOG), FILE | CUT | {"POWER-UNCERTAINTY"}),
    "no log of the server": (emptied(SERVER_LOG), FILE),
    "no samples of ranging": (emptied("ranging/spl.txt"), FILE | {"POWER-WINDOW"}),
    "no log of ranging": (emptied("ranging/mlperf_log_detail.txt"), FILE),
    "no window of ranging": (without("ranging/mlperf_log_detail.txt", "power_end"), FILE),
    "no Go in the log of the server": (without(SERVER_LOG, "to ptd: 'Go,.*_testing"), FILE),
    "no begin in the log of PTDaemon": (without(PTD_LOG, "Go with mark .*_testing"), CUT),
    "no end of ranging in the log of PTDaemon": (without(PTD_LOG, "11:18:37.*Completed"), CUT),
    "no check of the uncertainty": (without(PTD_LOG, "Uncertainty checking"), {"POWER-UNCERTAINTY"}),
    "the log of PTDaemon of another day": (
        edited(PTD_LOG, lambda text: text.replace("07-25-2024", "07-24-2024"), again=True),
        CUT,
    ),
    "messages of no form": (stated("server", ptd_messages=[{}]), FILE),
    "no messages of the power": (messages(lambda each: each["cmd"] != "Watts"), FILE),
    "no identity of the analyzer": (messages(lambda each: each["cmd"] != "Identify"), FILE),
    "a reply of no power": (
        stated(
            "server",
            ptd_messages=lambda listed: [
                each | {"reply": "Watts"} if each["cmd"] == "Watts" else each for each in listed
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
    "another server": (stated("server", uuid=lambda listed: {**listed, "server": OTHER_ID}), ONE),
    "another client": (stated("client", uuid=lambda listed: {**listed, "client": OTHER_ID}), ONE),
    "another session": (stated("client", session_name="2024-07-25_06-58-24"), ONE),
    "a message less": (stated("client", messages=lambda listed: listed[:-1]), ONE),
    "another reply": (stated("client", messages=lambda listed: [{**listed[0], "reply": "no"}, *listed[1:]]), ONE),
    "a phase a second later": (
        stated("client", phases=lambda listed: {**listed, "testing": [[at + 1, up] for at, up in listed["testing"]]}),
        ONE,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_has_exactly_its_findings(session, name):
    change, codes = CHANGES[name]
    change(session)
    assert found_in(session) == codes


@pytest.mark.parametrize("change", [lambda line: re.sub(r",Ch3,.*", "", line), lambda line: scaled(line, 1.01)])
def test_channels_are_all_there_and_add_up(published_power, tmp_path, change):
    session = tree_of(published_power, CHANNELS, tmp_path)
    of_samples(lambda lines: [change(line) for line in lines])(session)
    assert found_in(session) == {"POWER-FILES", "POWER-CHANNELS"}


def test_what_names_the_simulated_analyzer_is_found_wherever_it_stands(session):
    (session / "power" / "server.json").rename(session / "power" / "renamed.json")
    the_log = session / "ranging" / "spl.txt"
    the_log.write_text(the_log.read_text().replace("PF,0.994000,", f"PF,0.994000,{SIMULATED},", 1))
    assert "POWER-SIMULATED" in found_in(session)
    shutil.rmtree(session / "power")
    assert {"POWER-SIMULATED", "POWER-FILES"} <= found_in(session)
    (session / "run_1" / "spl.txt").rename(session / "run_1" / "renamed.txt")  # what is left of it is ranging/
    assert {"POWER-SIMULATED", "POWER-FILES"} <= found_in(session)


def test_every_check_of_power_is_shown_by_a_change():
    shown = set().union(*(codes for _, codes in CHANGES.values()))
    assert {code for code in CHECKS if code.startswith("POWER-")} == shown | {"POWER-CHANNELS"}


# --- the published figure of power of each kind of result: W, and mJ/query where results are compared by a latency


def figures(root, name):
    part = Reader(root).performance(root / name / "run_1", None)
    power = recorded_power(part) if part else None
    assert power is not None
    return power.mean, power.metric


def test_a_rate_has_watts_and_a_latency_has_energy(published_power):
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


def test_the_figures_of_published_sessions_are_those_of_the_official_checker(published_power, tmp_path, inference_git):
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


def test_a_run_without_an_analyzer_has_no_power(neural_magic):
    folder = next(neural_magic.glob("results/*/*/*/performance/run_1"))
    part = Reader(neural_magic).performance(folder, None)
    assert part is not None and recorded_power(part) is None

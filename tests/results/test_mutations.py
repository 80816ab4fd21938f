"""A good tree with one change at a time: the findings are exactly those of the change."""

import json
import os
import re
import shutil
from pathlib import Path

import good_tree
import pytest

from cm4vllm.common.checking.checks import Stage
from cm4vllm.engine.format.meta_files import read_yaml
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.results.checks import CHECKS

MUTATIONS = read_yaml(Path(__file__).with_name("mutations.yaml"))
RESULT = f"results/{good_tree.SYSTEM}/{good_tree.MODEL}"
#: Codes that no single change of this tree shows, and the test that does.
ELSEWHERE = {
    "ONE-RUN-TWO-VARIANTS": "test_both_variants_of_one_run_are_a_note_where_the_targets_are_reached",
    "SCORES-TWICE": "test_two_systems_with_one_log_are_one_run_too_many",
    "MODEL-NOT-VERIFIABLE": "the good tree itself",
    **dict.fromkeys(("NETWORK-SYSTEM", "NETWORK-NAME"), "test_compliance_figures.py"),
    **dict.fromkeys(("SERVED-UNREADABLE", "SERVED-TYPE", "SERVED-PARAMETERS", "SERVED-DIGESTS"), "test_weights.py"),
    "TOKENS-RANGE": "test_another_number_of_tokens_a_sample_is_found",
    **dict.fromkeys(("RESULTS-NONE", "ROUND-UNKNOWN", "ROUND-MIXED", "RULES-UNKNOWN"), "test_coverage.py"),
    "ACCURACY-FILES": "test_coverage.py",
    "COMPLIANCE-FIGURES": "test_compliance_figures.py",
    **{code: "test_power_checks.py" for code in CHECKS if code.startswith("POWER-")},
}


@pytest.fixture(scope="module", params=["closed", "open"])
def good(request, neural_magic, tmp_path_factory):
    return good_tree.make(tmp_path_factory.mktemp("good") / request.param / "Somebody", neural_magic)


@pytest.fixture
def home(good, tmp_path):
    home = tmp_path / good.parent.name / good.name
    shutil.copytree(good, home, symlinks=True)
    return home


def in_result(place):
    return re.sub(r"^S\b", f"{RESULT}/Server", re.sub(r"^O\b", f"{RESULT}/Offline", place))


def found_in(home):
    return {f"{finding.code} {finding.severity}" for finding in check_tree(home.parents[1]).findings}


def test_the_good_tree_has_nothing_but_what_no_tree_can_show(good):
    assert found_in(good) == {"MODEL-NOT-VERIFIABLE note"}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation["name"] for mutation in MUTATIONS])
def test_a_change_has_exactly_its_findings(home, mutation):
    for change in (mutation, *mutation.get("also", ())):
        ((kind, argument),) = change["do"].items()
        CHANGES[kind](home, home / in_result(change["at"]), argument)
    expected = mutation.get("both", mutation.get(home.parent.name))
    wanted = {code for code in expected if not code.endswith(" none")}
    assert found_in(home) - {"MODEL-NOT-VERIFIABLE note"} == wanted


def test_every_check_of_a_tree_is_shown_by_a_change():
    shown = {
        code.split()[0]
        for mutation in MUTATIONS
        for key in ("both", "closed", "open")
        for code in mutation.get(key, ())
    }
    missing = {code for code, check in CHECKS.items() if check.stage is Stage.TREE} - shown - set(ELSEWHERE)
    assert missing == set()


def test_two_systems_with_one_log_are_one_run_too_many(home):
    shutil.copytree(home / "results" / good_tree.SYSTEM, home / "results" / "4xH100_copy")
    system = home / "systems" / f"{good_tree.SYSTEM}.json"
    shutil.copy(system, system.with_name("4xH100_copy.json"))
    assert {"LOG-TWICE error", "SCORES-TWICE note"} <= found_in(home)


def test_both_variants_of_one_run_are_a_note_where_the_targets_are_reached(home):
    shutil.copytree(home / RESULT, home / f"{RESULT}.9")
    assert "ONE-RUN-TWO-VARIANTS note" in found_in(home)
    text = home / f"{RESULT}.9" / "Server" / "accuracy" / "accuracy.txt"
    text.write_text(text.read_text().replace("44.5491", "44.1"))
    assert "ONE-RUN-TWO-VARIANTS error" in found_in(home)


def test_a_summary_of_another_run_is_found_in_a_compliance_test(home):
    place = home / RESULT / "Server/TEST06/performance"
    shutil.copytree(home / RESULT / "Server/performance", place)
    assert "SUMMARY-DIFFERS error" not in found_in(home)
    shutil.copy(
        home / RESULT / "Offline/performance/run_1/mlperf_log_summary.txt", place / "run_1/mlperf_log_summary.txt"
    )
    (differing,) = [finding for finding in check_tree(home.parents[1]).findings if finding.code == "SUMMARY-DIFFERS"]
    assert differing.file.endswith("/Server/TEST06/performance/run_1/mlperf_log_summary.txt")


def test_a_tree_that_states_digests_of_the_weights_is_not_told_that_it_has_none(home):
    for path in (home / RESULT).glob("*/measurements.json"):
        set_json(home, path, {"model_sha256": "c0ffee"})
    (finding,) = [listed for listed in check_tree(home.parents[1]).findings if listed.code == "MODEL-NOT-VERIFIABLE"]
    assert "states digests of the weights" in finding.what and "--weights=FOLDER" in finding.remedy


def test_another_number_of_tokens_a_sample_is_found(home):
    log = home / RESULT / "Server/performance/run_1/mlperf_log_detail.txt"
    set_log(home, log, {"result_completed_tokens_per_second": 1000.0})
    assert "TOKENS-RANGE warning" in found_in(home)


# --- the changes ------------------------------------------------------------------------------------------------------


def set_log(_, path, values):
    lines = path.read_text().splitlines()
    for key, value in values.items():
        at = [number for number, line in enumerate(lines) if f'"key": "{key}"' in line]
        assert at, key
        for number in at:
            entry = json.loads(lines[number].removeprefix(":::MLLOG "))
            lines[number] = ":::MLLOG " + json.dumps({**entry, "value": value})
    path.write_text("\n".join(lines) + "\n")


def add_entry(_, path, values):
    """Log further settings behind the last one that the log has."""
    lines = path.read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if '"key": "effective_' in line)
    entry = json.loads(lines[last].removeprefix(":::MLLOG "))
    lines[last + 1 : last + 1] = [":::MLLOG " + json.dumps({**entry, "key": k, "value": v}) for k, v in values.items()]
    path.write_text("\n".join(lines) + "\n")


def scale_times(_, path, factor):
    text = path.read_text()
    path.write_text(re.sub(r'("time_ms": )([\d.]+)', lambda match: f"{match[1]}{float(match[2]) * factor:.6f}", text))


def lose(_, path, key):
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines() if f'"key": "{key}"' not in line))


def set_json(_, path, values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def drop(_, path, key):
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))


def substitute(_, path, words):
    text = path.read_text()
    assert words[0] in text
    path.write_text(text.replace(words[0], words[1]))


def remove(_, path, __):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def put(_, folder, file):
    path = folder / file[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file[1])


def map_model(home, path, name):
    path.rename(path.with_name(name))
    (home / "model_mapping.json").write_text(json.dumps({name: good_tree.MODEL}))


def sparse(_, folder, size):
    with (folder / "large.bin").open("wb") as file:
        file.truncate(size)


CHANGES = {
    "log": set_log,
    "lose": lose,
    "json": set_json,
    "drop": drop,
    "sub": substitute,
    "remove": remove,
    "put": put,
    "map": map_model,
    "sparse": sparse,
    "copy": lambda home, path, source: shutil.copy(home / in_result(source), path),
    "entry": add_entry,
    "scale": scale_times,
    "reverse": lambda _, path, __: path.write_text("".join(reversed(path.read_text().splitlines(keepends=True)))),
    "cut": lambda _, path, size: os.truncate(path, size),
    "text": lambda _, path, text: path.write_text(text),
    "append": lambda _, path, text: path.write_text(path.read_text() + text),
    "pad": lambda _, path, size: path.write_text(path.read_text() + " " * size),
    "add": lambda home, folder, name: put(home, folder, [name, "{}"]),
    "empty": lambda home, folder, name: put(home, folder, [name, ""]),
    "mkdir": lambda _, folder, name: (folder / name).mkdir(),
    "link": lambda _, folder, name: (folder / "a-link").symlink_to(name),
    "move": lambda home, path, target: path.rename(home / target),
}


def test_every_kind_of_change_is_used():
    assert set(CHANGES) == {next(iter(mutation["do"])) for mutation in MUTATIONS}

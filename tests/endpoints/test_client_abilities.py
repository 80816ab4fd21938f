"""Abilities of the client at a commit, asked of its checkout; and the steady state that it computes."""

import copy
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from made_points import BENCHMARK, CURVE, client_run
from msgspec.structs import replace

from cm4vllm.common.errors import InstallError
from cm4vllm.common.records import read_record
from cm4vllm.endpoints.client import ClientInstallation
from cm4vllm.endpoints.client_config import client_document
from cm4vllm.endpoints.client_source import client_checkout, wanted_commit
from cm4vllm.endpoints.client_steady_state import steady_state_of
from cm4vllm.endpoints.installation import abilities_of
from cm4vllm.endpoints.steady_state import Anomaly, Window, WindowFigures
from cm4vllm.endpoints.windows.super_passes import LeastDuration
from cm4vllm.rules import endpoints_rules

PYTHON = Path(sys.executable)
#: A client with all that is asked for, by its files below src/inference_endpoint.
CLIENT = {
    "__init__.py": "",
    "config/__init__.py": "",
    "config/schema.py": "class Settings: model_fields = {'runtime': 1, 'steady_state': 2}",
    "config/ruleset_registry.py": "def list_rulesets(): return ['second', 'first']",
    "dataset_manager/__init__.py": "class Dataset: PREDEFINED = {'b': 1, 'a': 2}",
    "metrics/__init__.py": "",
    "metrics/steady_state_diagnostics.py": "",
}


def made_checkout(folder, files):
    for name, text in files.items():
        path = folder / "src" / "inference_endpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_abilities_of_a_client_are_those_of_its_modules(tmp_path):
    abilities = abilities_of(PYTHON, made_checkout(tmp_path, CLIENT))
    assert (abilities.steady_state, abilities.rulesets, abilities.datasets) == (True, ("first", "second"), ("a", "b"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics/steady_state_diagnostics.py", None),
        ("config/schema.py", "class Settings: model_fields = {'runtime': 1}"),
        ("config/schema.py", None),
    ],
)
def test_a_client_without_the_detector_or_its_setting_computes_no_steady_state(tmp_path, name, text):
    files = {**CLIENT, name: text}
    assert not abilities_of(
        PYTHON, made_checkout(tmp_path, {k: v for k, v in files.items() if v is not None})
    ).steady_state


def test_a_client_that_cannot_be_asked_is_refused(tmp_path):
    with pytest.raises(InstallError, match="cannot be asked what it can do"):
        abilities_of(PYTHON, made_checkout(tmp_path, {**CLIENT, "config/ruleset_registry.py": "raise OSError"}))
    with pytest.raises(InstallError, match="cannot be read"):
        abilities_of(PYTHON, made_checkout(tmp_path, {**CLIENT, "config/schema.py": "import os; os._exit(0)"}))


# --- a commit more than the one that was tried


@pytest.fixture
def later_client(endpoints_git, tmp_path):
    """A git directory with one commit more, whose client computes the steady state; and that commit."""
    folder = client_checkout(tmp_path / "later", endpoints_git, "", endpoints_rules().client.commits[-1])
    schema = folder / "src/inference_endpoint/config/schema.py"
    text, settings, field = (
        schema.read_text(),
        "\nclass Settings(BaseModel):\n",
        "    load_pattern: LoadPattern = Field(",
    )
    assert text.count(settings) == text.count(field) == 1
    values = "    model_config = ConfigDict(extra='forbid')\n    enabled: bool = False\n\n"
    text = text.replace(settings, f"\n\nclass SteadyStateConfig(BaseModel):\n{values}{settings}")
    text = text.replace(
        field, f"    steady_state: SteadyStateConfig = Field(default_factory=SteadyStateConfig)\n{field}"
    )
    schema.write_text(text)
    (folder / "src/inference_endpoint/metrics/steady_state_diagnostics.py").touch()
    git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=later"], check=True)
    return folder, subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


_READ = (
    "import json, sys; from inference_endpoint.config.schema import BenchmarkConfig as C; C(**json.loads(sys.argv[1]))"
)


@pytest.mark.long
def test_a_later_client_is_asked_and_takes_its_configuration(reference_client, later_client):
    folder, commit = later_client
    assert wanted_commit(commit[:8], str(folder)) == commit
    client = read_record(reference_client, ClientInstallation)
    assert not client.abilities.steady_state and "cnn_dailymail" in client.abilities.datasets
    later = abilities_of(Path(client.python), folder)
    assert later == replace(client.abilities, steady_state=True)
    for checkout, words, status in ((folder, True, 0), (client.checkout, True, 1), (client.checkout, False, 0)):
        given = client_document(client_run(dataset=BENCHMARK.performance, steady_state=words))
        env = {"PYTHONPATH": f"{checkout}/src"}
        done = subprocess.run(
            [client.python, "-P", "-c", _READ, json.dumps(given)], env=env, capture_output=True, check=False
        )
        assert done.returncode == status, done.stderr.decode()


# --- the steady state in a summary of the client

TERMS = endpoints_rules().point_terms(BENCHMARK, 14, CURVE)
WINDOW = endpoints_rules().window
#: As the client writes it, without what is not read.
BLOCK = {
    "found": True,
    "reason": None,
    "superpass_size": 13368,
    "n_super_passes": 9,
    "warmup": 2,
    "window": {"sp_lo": 1, "sp_hi": 6, "n_super_passes": 5, "n_samples": 66840, "skipped_short": 1},
    "ttft": {"p50": 4e7, "p90": 6e7},
    "tpot": {"p50": 3e6, "p90": 3.5e6},
    "tps": {"per_user": 300.0, "system": 4100.5},
    "anomaly": {"detected": False, "change_point_sp": None, "delta_pct": 0.0},
    "short_window": {
        "is_short": False,
        "window_duration_s": 700.0,
        "t_floor_s": 600.0,
        "t_relaxation_s": 80.0,
        "t_precision_s": 0.0,
    },
    "global_trend": {"ttft_p90": "up", "tpot_p50": "steady", "tpot_p90": "steady"},
    "drifting_up": ["ttft_p90"],
}


def with_changes(**changes):
    return steady_state_of({"steady_state": {**BLOCK, **changes}}, TERMS, WINDOW)


def test_the_clients_window_is_that_of_the_point():
    state = with_changes()
    assert state.window == Window(
        super_pass_start=3, super_pass_end=7, super_pass_size=13368, n_samples=66840, duration_s=700.0
    )
    assert (state.status, state.verdict, state.anomaly) == ("windowable", "drifting_up", None)
    assert (state.drift, state.warm_up, state.skipped) == ({"ttft_p90": "Drifting Up"}, 2, 1)
    assert state.least == LeastDuration(floor_s=600.0, latencies_s=80.0, precision_s=0.0, region_s=600.0)
    assert with_changes(global_trend={"tpot_p90": "steady"}).verdict == "STEADY STATE"
    assert with_changes(global_trend={"tpot_p90": "down", "ttft_p50": "down"}).verdict == "drifting_down"
    assert with_changes(global_trend={"ttft_p50": "down"}).verdict == "STEADY STATE"
    assert state.figures == WindowFigures(system_tps=4100.5, ttft_p90_ms=60.0, tpot_p90_ms=3.5)
    assert state.state == {"tpot_p50": "Plateau", "tpot_p90": "Plateau"}


def test_times_with_a_unit_in_their_names_are_read_too():
    """As a commit wrote them in which the summary had the headline alone, and the passes after the warm-up."""
    block = {key: value for key, value in BLOCK.items() if key != "warmup"}
    block |= {"n_post_warmup": 7, "ttft": {"p90_ns": 6e7}, "tpot": {"p90_ns": 3.5e6}}
    assert steady_state_of({"steady_state": block}, TERMS, WINDOW) == with_changes()


def test_a_window_that_is_shorter_than_the_rules_ask_for_is_not_the_official_one():
    above = replace(TERMS, least_seconds=1200.0)
    assert steady_state_of({"steady_state": BLOCK}, above, WINDOW).status == "insufficient_duration"
    short = with_changes(found=False, short_window={"is_short": True, "window_duration_s": 650.0})
    assert (short.status, short.verdict, short.window.duration_s) == ("insufficient_duration", "not found", 650.0)


def test_a_run_without_a_window_has_the_trends_of_its_metrics():
    trend = {"tpot_p50": "down", "tpot_p90": "up"}
    state = with_changes(found=False, window=None, short_window=None, global_trend=trend, tps=None)
    assert (state.status, state.verdict, state.blocks) == ("insufficient_passes", "not found", 7)
    assert state.state == state.drift == {"tpot_p50": "Drifting Down", "tpot_p90": "Drifting Up"}
    assert with_changes(window=None, n_super_passes=0, warmup=0).status == "partial_dataset"


def test_a_later_level_is_an_anomaly():
    state = with_changes(anomaly={"detected": True, "change_point_sp": 6, "delta_pct": -20.5})
    assert (state.verdict, state.anomaly) == ("anomaly", Anomaly(super_pass=8, change_percent=-20.5))


def test_a_summary_that_has_anything_else_has_no_steady_state_of_the_client():
    assert steady_state_of({}, TERMS, WINDOW) is None and steady_state_of({"steady_state": None}, TERMS, WINDOW) is None
    draw, odd = random.Random(3), (None, "x", -1, 1e400, float("nan"), 10**30, [], {}, [{}], True, {"p90": "x"})
    for _ in range(2000):
        block = copy.deepcopy(BLOCK)
        part = draw.choice([block, *(value for value in block.values() if isinstance(value, dict))])
        part[draw.choice(list(part))] = draw.choice(odd)
        steady_state_of({"steady_state": block}, TERMS, WINDOW)

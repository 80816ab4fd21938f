"""Profiles: each can be read, its lengths are those it says, and its server has the figures it was derived from."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from builders import job_of, steps_of
from cm4vllm.campaign.job_checks.job_notes import job_notes
from cm4vllm.campaign.planning.step_environment import differing
from cm4vllm.campaign.rehearsal.batching import Batch, step_factors
from cm4vllm.campaign.rehearsal.launch import SimulatedSettings, rehearsed_benchmark, require_rehearsal
from cm4vllm.campaign.rehearsal.profile import Faults, Lengths, named_profiles, read_profile
from cm4vllm.campaign.settings import CampaignSettings
from cm4vllm.common.errors import UsageError
from cm4vllm.rules import benchmark_names, round_names
from cm4vllm.serving.launch_settings import LaunchSettings
from simulated.systems import simulate

NAME = "4xh100-llama2-70b-fp8"
#: Published of this profile's machine: queries/s, and the means of TPOT, TTFT and latency in ms.
RATE, TPOT_MS, TTFT_MS, LATENCY_MS = 4.9923, 75.244828, 210.263052, 22249.29


@pytest.mark.parametrize("name", named_profiles())
def test_a_profile_says_where_its_figures_come_from_and_its_benchmark_exists(name):
    profile = read_profile(name)
    assert profile.name == name and profile.source and profile.derivation
    assert any(profile.benchmark in benchmark_names(round_name) for round_name in round_names())


def served(name, issued):
    """Return what becomes of queries on the server of a profile."""
    profile, draw = read_profile(name), np.random.default_rng(1)
    prompts, tokens = (
        np.array([lengths.of(share) for share in draw.random(len(issued))])
        for lengths in (profile.prompts, profile.answers)
    )
    return simulate(Batch(profile.server, step_factors(draw, profile.server.noise)), issued, prompts, tokens)


def arrivals(rate, count):
    return np.cumsum(np.random.default_rng(2).exponential(1 / rate, count))


def mean_tpot_ms(run, whole):
    longer = run.tokens[whole] > 1
    return (1000 * (run.done - run.first)[whole][longer] / (run.tokens[whole][longer] - 1)).mean()


def test_the_server_on_this_backend_has_the_measured_figures():
    at_once = served("2-core-cpu-tiny", np.zeros(4000))
    assert at_once.tokens.sum() / at_once.done.max() == pytest.approx(9370, rel=0.03)
    assert mean_tpot_ms(served("2-core-cpu-tiny", arrivals(30, 1500)), slice(None)) == pytest.approx(2.5, rel=0.05)


def test_the_server_has_the_published_means():
    run = served(NAME, arrivals(RATE, 3000))
    whole = slice(600, None)  # until as many are under way as there will be
    assert mean_tpot_ms(run, whole) == pytest.approx(TPOT_MS, rel=0.05)
    assert run.ttft_ms[whole].mean() == pytest.approx(TTFT_MS, rel=0.05)
    assert 1000 * (run.done - run.issued)[whole].mean() == pytest.approx(LATENCY_MS, rel=0.07)


def test_the_server_of_transcripts_has_the_published_rate():
    run = served("2xl40s-whisper", np.zeros(39_600))
    assert run.tokens.mean() == pytest.approx(74.97, rel=0.02)
    assert len(run.tokens) / run.done.max() == pytest.approx(48.6421, rel=0.03)


def test_lengths_lie_between_their_points():
    lengths = Lengths(shares=[0, 0.5, 1], tokens=[1, 101, 1001])
    assert [lengths.of(share) for share in (0, 0.25, 0.5, 0.75, 0.9999)] == [1, 51, 101, 551, 1001]
    for shares, tokens in (([0, 0.5], [1, 2]), ([0, 1], [3, 2])):
        with pytest.raises(ValueError, match="shares go from 0 to 1, and tokens rise"):
            Lengths(shares=shares, tokens=tokens)


@pytest.mark.parametrize(
    ("name", "words"),
    [("4xh100", "4xh100-llama2-70b-fp8"), ("./nowhere.yaml", "cannot read"), ("broken.yaml", "cannot be used")],
)
def test_a_profile_that_cannot_be_used_is_refused(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text("title: a\n")
    with pytest.raises(UsageError) as caught:
        read_profile(name)
    assert words in str(caught.value)


def test_a_profile_with_answers_that_loadgen_calls_an_error_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = (Path(str(files("cm4vllm.campaign.rehearsal"))) / "profiles/2-core-cpu-tiny.yaml").read_text()
    Path("short.yaml").write_text(given.replace("tokens: [2, 72]", "tokens: [1, 72]"))
    with pytest.raises(UsageError) as caught:
        read_profile("./short.yaml")
    assert "an answer of 1 token" in str(caught.value) and "begin with 2" in str(caught.value)


def test_faults_hold_for_their_time():
    faults = Faults.parse("hang@60-90, die@120")
    assert [faults.now(second) for second in (0, 60, 90, 500)] == [set(), {"hang"}, set(), {"die"}]
    for text in ("hang", "fire@3", "hang@9-3"):
        with pytest.raises(UsageError):
            Faults.parse(text)


def refuse(env):
    asked = CampaignSettings.of(env)
    require_rehearsal(asked.view(SimulatedSettings), differing(asked), valid=asked.execution_mode == "valid")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("CM_MLPERF_RUN_STYLE", "valid", "--execution_mode=valid cannot be given with --rehearse"),
        ("CM_VLLM_SERVER_TP_SIZE", "4", "--tp_size"),
        ("CM_MLPERF_SYSTEM_FILE", "system.yaml", "--system_file"),
        ("CM_MLPERF_REHEARSE_FAULTS", "fire@3", "fire@3"),
    ],
)
def test_what_has_no_meaning_on_a_simulated_server_is_refused(key, value, words):
    refuse({"CM_MLPERF_REHEARSE": NAME, "CM_VLLM_SERVER_MAX_NUM_SEQS": "64"})
    refuse({key: value})  # without --rehearse
    with pytest.raises(UsageError, match=words):
        refuse({"CM_MLPERF_REHEARSE": NAME, key: value})


def rehearsed(asked, profile=NAME):
    return rehearsed_benchmark(profile, asked, LaunchSettings())


def test_the_benchmark_is_that_of_the_profile():
    assert rehearsed("llama3.1-8b") == rehearsed("llama2-70b-99.9") == ("llama2-70b-99.9", NAME)
    with pytest.raises(UsageError, match="is not for --model=mixtral-8x7b"):
        rehearsed("mixtral-8x7b")


def test_pictures_are_not_simulated_not_even_by_a_profile_of_ones_own(tmp_path):
    refusal = "qwen3-vl-235b-a22b cannot be rehearsed on a simulated server"
    with pytest.raises(UsageError, match=refusal):
        rehearsed("qwen3-vl-235b-a22b")
    own = tmp_path / "pictures.yaml"
    text = (files("cm4vllm.campaign.rehearsal") / "profiles" / f"{NAME}.yaml").read_text()
    own.write_text(text.replace("\nbenchmark: llama2-70b-99.9\n", "\nbenchmark: qwen3-vl-235b-a22b\n"))
    with pytest.raises(UsageError, match=refusal):
        rehearsed("llama3.1-8b", str(own))


def test_a_rehearsed_job_scores_nothing_makes_no_tree_and_describes_no_machine_of_its_own():
    fields = {"rehearse": NAME, "model": "llama2-70b-99.9"}
    job, steps = job_of(**fields), steps_of(**fields)
    assert {"Offline accuracy", "Server performance"} <= steps.keys()
    assert steps["server"].tags == "run,simulated-vllm-server"
    assert not steps.keys() & {"Offline accuracy: scores", "submission", "processors", "checkers", "sentence model"}
    assert job.notices[0] == "SIMULATED" in job.no_tree
    assert any("accuracy is not scored" in note for note in job_notes(job))

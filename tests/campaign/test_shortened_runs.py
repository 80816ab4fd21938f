"""A whole job on a slow server keeps to its minutes, in processes of its own; its records say what is shorter, and the
plan of the result takes its times from it."""

import pytest

from cm4vllm.campaign.ledger import State
from cm4vllm.campaign.planning.expected_times import with_expected_times
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.planning.step_values import measured_rate
from cm4vllm.campaign.settings import CampaignSettings, Job
from small_job import PROFILE, RUNS, SmallJob

RUN_NAMES = ("Offline accuracy", "Offline performance")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A job that ended on a server of some 3 samples/s, of which 256 would take longer than its minutes."""
    folder = tmp_path_factory.mktemp("slow")
    profile = folder / "slow.yaml"
    profile.write_text(PROFILE.read_text().replace("step_s: 0.008", "step_s: 0.1"))
    job = SmallJob(folder)
    job.given = (f"SMALL_PROFILE={profile}", "CM_TEST_QUERY_COUNT=", "CM_MLPERF_REHEARSAL_MINUTES=0.4")
    process = job.start(*job.given)
    assert process.wait(120) == 0, job.log.read_text()
    job.first = job.log.read_text()
    return job


@pytest.mark.parametrize("mode", ["accuracy", "performance"])
def test_a_run_that_a_slow_server_makes_too_long_has_fewer_queries_and_says_so(made, mode):
    settings = made.record(mode)["settings"]
    assert 2 <= settings["samples"] < 256
    assert settings["shortened"].startswith(f"{settings['samples']} queries in place of 256, so that the job keeps to ")
    assert f"Offline {mode}: {settings['shortened']}" in made.first


def test_the_time_left_is_said_without_a_terminal(made):
    assert "; the job: " in made.first and " left" in made.first


def test_the_same_command_finds_the_shorter_runs_again(made):
    process = made.start(*made.given)
    assert process.wait(60) == 0, made.log.read_text()
    states = made.states()
    assert [states[name].last.state for name in RUN_NAMES] == [State.KEPT, State.KEPT]


def planned(made, **fields):
    job = Job.of(CampaignSettings(output_dir=str(made.folder / "results"), scenario="Offline,Server", **fields))
    steps, notes = with_expected_times(job, schedule(job))
    return {step.name: step.duration for step in steps}, " ".join(notes)


def test_the_plan_of_a_result_takes_hours_from_the_rate_of_the_rehearsal(made):
    times, _ = planned(made, execution_mode="valid")
    rate = measured_rate(made.folder / RUNS / "performance")
    accuracy = times["Offline accuracy"]
    assert accuracy.seconds == pytest.approx(13_368 / rate, rel=0.01)
    assert accuracy.words.endswith(f"13,368 queries by the {rate} of Offline performance in the rehearsal")
    assert f"({accuracy.seconds / 3600:.1f} h)" in accuracy.words
    assert times["Server search"].at_least and times["Server search"].seconds > 2 * accuracy.seconds
    given, _ = planned(made, execution_mode="valid", server_target_qps=0.5)
    assert given["Server performance"].seconds == pytest.approx(2 * 13_368, rel=0.01)


def test_the_plan_of_a_rehearsal_says_that_its_minutes_are_an_upper_bound(made):
    times, notes = planned(made)
    assert "--rehearsal_minutes=15 is an upper bound" in notes and "samples/s of Offline performance in " in notes
    assert sum(times[name].seconds for name in (*RUN_NAMES, "Server performance", "Server accuracy")) <= 900


@pytest.mark.parametrize("fields", [{"vllm_model_name": "owner/name"}, {"output_dir": "/nowhere"}])
def test_without_a_rehearsal_of_the_same_model_the_times_are_those_of_the_rules(made, fields):
    fields = {"output_dir": str(made.folder / "results"), **fields}
    job = Job.of(CampaignSettings(execution_mode="valid", **fields))
    assert with_expected_times(job, schedule(job)) == (schedule(job), ())
    rehearsed = Job.of(CampaignSettings(**fields))
    (bound, verdict) = with_expected_times(rehearsed, schedule(rehearsed))[1]
    assert "upper bound" in bound and "measured a rate; it is measured first" in bound
    assert verdict.startswith("Server: with fewer than 662 queries")

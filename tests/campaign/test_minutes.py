"""The minutes of a rehearsal are divided over its runs: by rates that are given here, on a clock of the test."""

import math

import pytest
from msgspec.structs import replace

from builders import job_of
from cm4vllm.campaign.job_checks.job_notes import job_notes
from cm4vllm.campaign.planning.minutes import LEAST, Minutes, Rate, RunSize, divide, fitting, run_size, run_terms
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.planning.step_environment import Shortened
from cm4vllm.campaign.planning.steps import MeasuredTarget, Product
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import UsageError


class Rehearsal:
    """A rehearsal on a server that answers `rate` samples/s at once and `one_by_one` of them in turn.

    `answering` are requests at a time at which the server reaches its rate. `counts` are those of the shortened runs.
    """

    def __init__(self, rate, *, one_by_one=None, answering=8, started_s=0.0, before=None, **fields):
        self.job = job_of(**fields)
        self.steps = schedule(self.job)
        self.now, self.estimates = 0.0, []
        self.rates = {False: rate, True: one_by_one or rate / 8}
        self.answering = answering
        self.minutes = Minutes(self.job, self.steps, clock=lambda: self.now)
        self.shortened, self.planned = {}, {}
        self.before = before or {}
        self.started_s = started_s

    def run(self):
        for step in self.steps:
            if step.product is Product.SERVER:
                self.now += self.started_s
            elif step.product is Product.RUN:
                self.measure(step)
            elif self.minutes.left_s is not None:
                self.now += 3.0
            self.minutes.ended(step)
        return self

    def measure(self, step):
        self.minutes.begin(self.started_s)
        terms = run_terms(self.job, step)
        rate = self.rates[terms.one_by_one]
        inputs = replace(step.inputs, target_qps=self.resolved(step.inputs.target_qps))
        made = self.minutes.sized(step, inputs, self.estimate, self.before.get(step.name))
        if made:
            self.shortened[step.name] = made
        self.planned[step.name] = self.minutes.expected(step)
        self.now += run_size(self.job, step, rate, inputs.shorter(made)).seconds
        self.minutes.measured(step, rate)

    def resolved(self, value):
        if not isinstance(value, MeasuredTarget):
            return value
        return self.rates[value.one_by_one] * value.share

    def estimate(self, count, at_a_time, longest_s):
        self.estimates.append(at_a_time)
        rate = self.rates[at_a_time == 1]
        reached = rate * min(1.0, at_a_time / self.answering) if at_a_time > 1 else rate
        self.now += min(longest_s, count / reached)
        return reached

    @property
    def counts(self):
        return {name: made.test_query_count for name, made in self.shortened.items()}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "llama3.1-8b-edge"},
        {"model": "llama2-70b-99.9", "all_scenarios": True, "compliance": "TEST06"},
        {"model": "gpt-oss-120b", "modes": "performance"},
    ],
)
def test_on_a_fast_server_nothing_is_shorter(fields):
    made = Rehearsal(150.0, one_by_one=20.0, **fields).run()
    assert made.shortened == {}
    assert made.minutes.exceeded == ""


@pytest.mark.parametrize(
    ("rate", "fields"),
    [
        (0.3, {"rehearsal_minutes": 30.0}),
        (2.0, {"scenario": "Server"}),
        (0.5, {"model": "llama2-70b-99.9", "scenario": "Offline,Server,Interactive"}),
        (0.5, {"model": "llama3.1-8b-edge"}),
        (0.8, {"compliance": "TEST06", "scenario": "Offline", "rehearsal_minutes": 8.0}),
        (0.5, {"power": "simulated", "scenario": "Offline"}),
        (0.8, {"scenario": "Server", "server_target_qps": 8.0, "rehearsal_minutes": 3.0}),
        (0.05, {"model": "llama2-70b-99.9", "scenario": "Offline"}),
    ],
)
@pytest.mark.parametrize("started_s", [0.0, 25.0])
def test_on_a_slow_server_the_job_keeps_to_its_minutes(rate, fields, started_s):
    made = Rehearsal(rate, one_by_one=rate / 2, started_s=started_s, **fields).run()
    assert made.counts
    assert made.now <= 60 * made.job.rehearsal_minutes
    assert made.now >= 0.4 * 60 * made.job.rehearsal_minutes, "the minutes are used"
    assert min(made.counts.values()) >= LEAST
    assert made.minutes.exceeded == ""
    assert not [name for name in made.counts if "TEST06" in name], "the rules of a test fix its queries"


@pytest.mark.parametrize("rate", [0.8, 0.16])
def test_a_model_of_135_million_parameters_on_two_cores_takes_15_minutes_and_says_what_is_shorter(rate):
    made = Rehearsal(rate).run()
    assert made.now <= 900
    assert list(made.counts) == ["Offline accuracy", "Offline performance", "Server performance", "Server accuracy"]
    words = made.shortened["Server performance"].shortened
    assert f"{made.counts['Server performance']} queries in place of 768" in words
    assert f"--rehearsal_minutes=15, by the {rate:.2f} samples/s of Offline performance" in words
    assert "LoadGen's verdict needs 662" in words
    assert "verdict" not in made.shortened["Server accuracy"].shortened


def test_a_server_of_19_seconds_an_answer_has_fewer_than_the_64_queries_of_single_stream():
    made = Rehearsal(0.5, one_by_one=1 / 19, model="llama3.1-8b-edge", scenario="SingleStream").run()
    assert made.counts.keys() == {f"SingleStream {run}" for run in ("latency", "performance", "accuracy")}
    assert made.now <= 900
    assert "LoadGen's verdict needs 64" in made.shortened["SingleStream performance"].shortened


def test_what_a_short_run_leaves_goes_to_the_others():
    """At 3 samples/s both Offline runs take less than a quarter of the minutes; Server gets what they leave."""
    made = Rehearsal(3.0).run()
    assert set(made.counts) == {"Server performance"}
    assert made.counts["Server performance"] > 225 * 0.9 * 3.0 * 0.4


def test_more_minutes_give_more_queries():
    less, more = (Rehearsal(0.8, rehearsal_minutes=minutes).run().counts for minutes in (6.0, 12.0))
    assert all(more.get(name, math.inf) > less[name] for name in less)


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"test_query_count": 300}, {"Offline accuracy", "Offline performance", "Server performance"}),
        ({"max_test_duration": 4.0}, {"Offline performance", "Server performance"}),
    ],
)
def test_a_count_or_a_duration_of_the_user_comes_first(fields, whole):
    made = Rehearsal(0.8, **fields).run()
    assert not whole & set(made.counts)
    assert ("Offline accuracy" in made.counts) is ("max_test_duration" in fields)
    exceeded = made.minutes.exceeded
    assert "more than --rehearsal_minutes=15" in exceeded


# --- the first estimate -----------------------------------------------------------------------------------------------


def test_the_rate_is_estimated_once_before_the_first_run():
    assert Rehearsal(150.0).run().estimates == [8]
    assert Rehearsal(150.0, model="llama3.1-8b-edge").run().estimates == [8, 1]


def test_more_requests_at_a_time_are_tried_while_the_estimate_is_too_low_for_the_run():
    """A server of 30 samples/s that reaches them with 256 at a time answers 8 of them at 0.94/s."""
    made = Rehearsal(30.0, answering=256).run()
    assert made.estimates == [8, 32]
    assert "Offline accuracy" not in made.counts
    assert Rehearsal(0.2).run().estimates == [8], "an estimate takes a tenth of the minutes at most"


def test_without_an_estimate_a_run_stays_as_it_is():
    made = Rehearsal(0.8)
    made.minutes.begin()
    step = next(step for step in made.steps if step.name == "Offline accuracy")
    assert made.minutes.sized(step, step.inputs, lambda *_: None, None) is None
    assert made.minutes.expected(step) is None


# --- continued jobs ---------------------------------------------------------------------------------------------------


def test_a_job_that_is_continued_finds_its_shortened_runs_again():
    made = Rehearsal(0.8).run()
    before = made.shortened["Offline accuracy"]
    assert made.minutes.as_before(before) == before
    for minutes, is_found in ((2.0, True), (15.0, True), (30.0, False)):
        later = Rehearsal(0.8, rehearsal_minutes=minutes).minutes
        assert (later.as_before(before) == before) is is_found
    given = Shortened(test_query_count=64)
    assert made.minutes.as_before(given) is None, "a count of the schedule or of the user"


@pytest.mark.parametrize(("count", "goes_on"), [(90, True), (240, False)])
def test_a_run_that_was_stopped_goes_on_with_its_queries_if_they_still_fit(count, goes_on):
    before = Shortened(test_query_count=count, rehearsal_minutes=15.0, shortened="words")
    made = Rehearsal(0.8, before={"Offline accuracy": before}).run()
    assert (made.counts["Offline accuracy"] == count) is goes_on
    assert made.planned["Offline accuracy"].seconds <= 300
    assert made.now <= 900


# --- what is said -----------------------------------------------------------------------------------------------------


def test_the_times_to_come_are_within_what_is_left():
    made = Rehearsal(0.8)
    assert made.minutes.left_s is None
    for step in made.steps:
        if step.product is Product.RUN:
            made.measure(step)
            to_come = [made.minutes.expected(other) for other in made.steps]
            assert made.planned[step.name].seconds <= 900
            assert sum(known.seconds for known in to_come if known) <= 900
        made.minutes.ended(step)
    assert all(made.minutes.expected(step) is None for step in made.steps)


def test_a_job_that_took_longer_says_by_how_much_and_why():
    made = Rehearsal(0.8).run()
    step = next(step for step in made.steps if step.name == "Server accuracy")
    made.now += 300.0
    made.minutes.ended(step, took_s=600.0)
    assert "s, more than --rehearsal_minutes=15: Server accuracy took 600 s, " in made.minutes.exceeded


def test_a_server_that_starts_for_longer_than_half_of_the_minutes_leaves_the_other_half():
    made = Rehearsal(0.8, started_s=800.0).run()
    assert made.now - 800.0 <= 450.0
    assert min(made.counts.values()) > LEAST


def test_what_is_known_before_gives_the_times_of_a_plan():
    job = job_of()
    steps = schedule(job)
    minutes = Minutes(job, steps, rates={False: Rate(0.8, "Offline performance")})
    times = {step.name: minutes.expected(step) for step in steps}
    assert times["Server performance"].source == "by the 0.80 samples/s of Offline performance"
    assert sum(known.seconds for known in times.values() if known) <= 900
    assert all(Minutes(job, steps).expected(step) is None for step in steps)


# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "seconds", "parts"),
    [([80.0, 20.0, 80.0], 100.0, [40.0, 20.0, 40.0]), ([math.inf, 5.0], 50.0, [45.0, 5.0]), ([10.0], -3.0, [0.0])],
)
def test_seconds_are_divided_so_that_who_gets_less_than_wanted_gets_as_much_as_others(wanted, seconds, parts):
    assert divide(wanted, seconds) == parts


def test_the_queries_that_fit_take_no_longer():
    for seconds in (20.0, 100.0, 1000.0):
        size = RunSize(10_000, 0.7)
        assert RunSize(fitting(size, seconds, 0.9), 0.7).seconds <= seconds
    assert fitting(RunSize(256, 0.01), 30.0, 0.9) == LEAST


@pytest.mark.parametrize("minutes", [0.0, math.inf, math.nan])
def test_minutes_are_above_zero(minutes):
    with pytest.raises(UsageError, match="CM_MLPERF_REHEARSAL_MINUTES"):
        Job.of(CampaignSettings.of({"CM_MLPERF_REHEARSAL_MINUTES": str(minutes)}))


def test_a_valid_job_has_no_minutes():
    (note,) = job_notes(job_of(execution_mode="valid", rehearsal_minutes=3.0))
    assert note.startswith("--rehearsal_minutes=3.0: ignored")

"""The schedule is data: what a step needs of others is named, and others came before it."""

import itertools
import re
from dataclasses import replace

import msgspec
import pytest

from builders import job_of, steps_of
from cm4vllm.accuracy.graders.catalogue import grader_lacks
from cm4vllm.campaign.amendments import JOB, Amendments, StepInput, amendments
from cm4vllm.campaign.job_checks.job_notes import job_notes
from cm4vllm.campaign.ledger import State
from cm4vllm.campaign.planning.expected_times import with_expected_times
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.planning.step_values import measured_rate
from cm4vllm.campaign.planning.steps import RECIPES, MeasuredTarget, given_values, names_of
from cm4vllm.common.errors import UsageError
from small_job import PROFILE, RUNS, SmallJob

#: The earlier steps that export the keys to which inputs refer.
EXPORTED_BY = {
    "CM_SUT_NAME": {"system"},
    "CM_ML_MODEL_NAME": {"model", "quantisation"},
    "CM_MLPERF_GRADER_MATH": {"grader math"},
    "CM_MLPERF_GRADER_MBXP": {"grader mbxp"},
}
FIELDS = {
    "scenario": ["", "Offline", "Server"],
    "modes": ["accuracy,performance", "accuracy", "performance"],
    "execution_mode": ["test", "valid"],
    "offline_target_qps": [None, 9.0],
    "server_target_qps": [None, 3.0],
    "rerun": ["no", "yes"],
    "api_server": ["", "http://127.0.0.1:1"],
    "run_checker": [True, False],
}


def jobs():
    for values in itertools.product(*FIELDS.values()):
        yield job_of(**dict(zip(FIELDS, values, strict=True)))
    yield job_of(vllm_model_name="owner/name", quantize="int8")
    yield job_of(model="gpt-oss-120b", compliance="TEST07,TEST09")
    yield job_of(model="mixtral-8x7b", round="v6.0")
    yield job_of(model="gpt-oss-120b", modes="performance", execution_mode="valid")


def test_what_a_step_needs_comes_of_steps_before_it_and_all_is_plain_data():
    for job in jobs():
        before, steps = set(), schedule(job)
        for step in steps:
            assert step.name not in before, step.name
            for value in given_values(step.inputs).values():
                if isinstance(value, MeasuredTarget):
                    assert value.step in before, (step.name, value)
                else:
                    assert all(EXPORTED_BY[key] & before for key in re.findall(r"<<<(\w+)>>>", str(value))), step.name
            if step.condition is not None:
                assert all(subject in before or "<<<" in subject for subject in step.condition.of), step.name
            before.add(step.name)
        written = msgspec.json.decode(msgspec.json.encode(steps))
        assert [step["name"] for step in written] == [step.name for step in steps]


def test_performance_runs_have_a_dataset_and_a_rate_of_their_own_where_the_rules_give_them_one():
    steps = steps_of(model="gpt-oss-120b", test_query_count=40, max_test_duration=5)
    for name in ("Offline rate", "Offline performance", "Server performance"):
        assert steps[name].inputs.mode == "performance"
    assert steps["Offline performance"].inputs.target_qps.step == "Offline rate"
    assert steps["Offline rate"].inputs.test_query_count == 40
    assert steps["performance dataset"].tags == "get,dataset,_performance,_tiny"
    assert "dataset" not in steps_of(model="gpt-oss-120b", modes="performance")


def test_sentences_are_split_only_for_scores_that_need_them():
    fields = {"vllm_model_name": "owner/name", "round": "v6.0"}
    assert "sentence model" in steps_of(model="mixtral-8x7b", **fields)
    for other in ({"model": "deepseek-r1"}, {"model": "mixtral-8x7b", "modes": "performance"}):
        assert "sentence model" not in steps_of(**other, **fields)


EDGE = {"model": "llama3.1-8b-edge"}
ALONE = EDGE | {"scenario": "SingleStream"}
VALID = {"execution_mode": "valid"}


@pytest.mark.parametrize(
    ("fields", "runs"),
    [
        ({}, "Offline accuracy, Offline performance, Server performance, Server accuracy"),
        (
            {**VALID, "find_target_qps": False},
            "Offline accuracy, Offline performance, Offline performance again, Server performance, Server accuracy",
        ),
        (
            {**VALID, "offline_target_qps": 9.0},
            "Offline accuracy, Offline performance, Server performance, Server performance again, "
            "Server performance again (2), Server accuracy",
        ),
        (
            EDGE,
            "Offline accuracy, Offline performance, SingleStream latency, SingleStream performance, "
            "SingleStream accuracy",
        ),
        (
            ALONE | VALID,
            "SingleStream latency, SingleStream performance, SingleStream performance again, SingleStream accuracy",
        ),
        (ALONE | {"singlestream_target_latency": 250.0}, "SingleStream performance, SingleStream accuracy"),
        (ALONE | {"modes": "accuracy"}, "SingleStream accuracy"),
        ({"modes": "performance"}, "Offline rate, Offline performance, Server performance"),
        ({"modes": "performance", "scenario": "Server", "server_target_qps": 3.0}, "Server performance"),
    ],
)
def test_the_loadgen_runs(fields, runs):
    steps = steps_of(**fields).values()
    assert [step.name for step in steps if step.tags.startswith("app,")] == runs.split(", ")


def test_a_single_stream_run_aims_at_the_latency_measured_before_it_or_given():
    steps = steps_of(**ALONE, **VALID)
    measured, run = steps["SingleStream latency"], steps["SingleStream performance"]
    assert (measured.inputs.target_qps, measured.inputs.test_query_count) == (None, 64)
    assert measured.condition.words.startswith("runs/SYSTEM/MODEL/SingleStream/performance holds no valid result")
    assert run.inputs.target_qps.words == (
        "1.33 x the mean latency of SingleStream latency, or that of a valid result of an earlier run in "
        "runs/SYSTEM/MODEL/SingleStream/performance"
    )
    assert run.inputs.target_qps.subject == "expected latency"
    assert steps["SingleStream performance again"].inputs.target_qps.step == "SingleStream performance"
    assert steps["SingleStream accuracy"].inputs.target_qps is None
    run = steps_of(**ALONE, singlestream_target_latency=250)["SingleStream performance"]
    assert (run.inputs.target_qps, run.inputs.target_qps_source) == (4.0, "given by --singlestream_target_latency")


def test_the_server_serves_what_the_steps_before_it_provide():
    """A name of the catalogue or of the hub is no model of the server's: the quantised folder would not be served."""
    steps = steps_of(vllm_model_name="llama-3.1-8b-instruct", quantize="int8")
    assert steps["server"].inputs.model_name == ""
    assert list(steps).index("quantisation") < list(steps).index("server")
    served = steps_of(vllm_model_name="served", api_server="http://127.0.0.1:1")
    assert served["server"].inputs.model_name is None


def test_a_compliance_test_is_run_and_verified_in_each_scenario():
    steps = steps_of(compliance="TEST06")
    names = list(steps)
    for scenario in ("Offline", "Server"):
        performance, run, verification = (
            steps[f"{scenario} {name}"] for name in ("performance", "TEST06", "TEST06: verification")
        )
        places = [names.index(name) for name in (performance.name, run.name, verification.name, "submission")]
        assert places == sorted(places)
        assert run.inputs.compliance_test == "TEST06"
        assert run.inputs.target_qps == performance.inputs.target_qps
        assert run.inputs.output_dir == verification.inputs.test_dir
    of_two = steps_of(model="gpt-oss-120b", compliance="TEST07,TEST09", scenario="Offline")
    assert of_two["TEST07 dataset"].tags == "get,dataset,_compliance.TEST07,_tiny"


@pytest.mark.parametrize(
    ("fields", "searched"),
    [
        ({}, False),
        ({"find_target_qps": True}, True),
        (VALID, True),
        ({**VALID, "find_target_qps": False}, False),
        ({**VALID, "server_target_qps": 3.0}, False),
        ({**VALID, "modes": "accuracy"}, False),
        ({**VALID, "scenario": "Offline"}, False),
    ],
)
def test_the_rate_is_searched_for_where_that_is_asked_and_in_a_valid_run_where_none_is_given(fields, searched):
    steps = steps_of(**fields)
    assert ("Server search" in steps) is searched
    assert "Offline search" not in steps
    if searched:
        run, valid = steps["Server performance"], fields == VALID
        assert list(steps).index("Server search") < list(steps).index(run.name)
        assert (run.inputs.target_qps.step, run.inputs.target_qps.searched) == ("Server search", True)
        assert "the rate found by Server search" in run.inputs.target_qps.words
        assert steps["Server search"].duration.words.startswith("1,500 s, 2.5 full-length" if valid else "75 s, about")
        assert run.duration.seconds == (0 if valid else 10)


def test_a_full_length_run_that_misses_a_limit_is_made_again_at_lower_rates():
    steps = steps_of(**VALID, find_target_qps=True)
    for times, name in ((1, "Server performance again"), (2, "Server performance again (2)")):
        assert steps[name].inputs.target_qps.lowered == times
        assert steps[name].condition.words == "Server performance missed a latency limit"


def test_answers_that_a_grader_judges_are_scored_with_its_record_where_it_can_run():
    fields = {"model": "mixtral-8x7b", "round": "v6.0", "scenario": "Offline"}
    steps = steps_of(**fields)
    wanted = "" if grader_lacks("mbxp") else "<<<CM_MLPERF_GRADER_MBXP>>>"
    assert steps["Offline accuracy: scores"].inputs.graders == wanted
    assert ("grader mbxp" in steps) is bool(wanted)
    assert any("not scored: mbxp" in note for note in job_notes(job_of(**fields))) is not bool(wanted)


def test_the_scores_of_a_valid_run_have_their_expected_time_in_the_plan():
    def duration(**fields):
        return steps_of(**VALID, vllm_model_name="owner/name", **fields)["Offline accuracy: scores"].duration

    words = duration().words
    assert re.fullmatch(r"[\d.]+ s, estimated for ROUGE of 13,368 answers of \d+ tokens on \d+ cores", words)
    assert duration(model="qwen3-vl-235b-a22b") is None


# --- `--adr` of the main job: settings of the job, inputs of its steps, and what the engine applies


KEYS = {"max_num_seqs": "CM_VLLM_SERVER_MAX_NUM_SEQS"}
OWN = {"seed": "CM_VLLM_SERVER_SEED", "output_dir": "CM_VLLM_SERVER_DIR"}


def reach(i):
    """Return what each recipe takes: the job has one of the server's flags."""
    flags = {JOB: KEYS, "run,vllm-server": {**KEYS, **OWN}}.get(i["tags"], {})
    return {"inputs": flags, "names": ["vllm"] if i["tags"].startswith("run,vllm-server") else []}


def test_a_flag_of_the_job_is_its_setting_and_another_one_an_input_of_the_step():
    applied = amendments({"vllm-server": {"max_num_seqs": "64", "seed": 7, "version": "1", "odd": True}}, reach)
    assert applied.settings == {"CM_VLLM_SERVER_MAX_NUM_SEQS": "64"}
    assert applied.inputs == (StepInput("vllm-server", "seed", "CM_VLLM_SERVER_SEED", "7"),)
    assert applied.rest == {"vllm-server": {"version": "1", "odd": True}}, "the engine applies or refuses these"
    as_env = amendments({"vllm-server": {"env": {"CM_VLLM_SERVER_MAX_NUM_SEQS": "64", "CM_X": ["a", "b"]}}}, reach)
    assert as_env.settings == applied.settings
    assert as_env.inputs == (StepInput("vllm-server", "env.CM_X", "CM_X", "a,b"),)
    assert amendments(None, reach) == amendments({}, reach) == Amendments()


def test_model_and_datasets_become_settings_and_other_tags_stay():
    asked = {
        "ml-model": "_hf.ORG/NAME,_odd",
        "dataset": "_path.a.json",
        "performance-dataset": "_path.b.json",
        "loadgen": "_from-pip",
        "vllm": "_version.1",
    }
    applied = amendments({name: {"tags": tags} for name, tags in asked.items()}, reach)
    assert applied.settings == {
        "CM_ML_MODEL_SOURCE": "_hf.ORG/NAME",
        "CM_DATASET_FILE": "a.json",
        "CM_PERFORMANCE_DATASET_FILE": "b.json",
        "CM_VLLM_WANTED_VERSION": "1",
    }
    left = {"ml-model": "_odd", "loadgen": "_from-pip", "vllm": "_version.1"}
    assert applied.rest == {name: {"tags": tags} for name, tags in left.items()}
    tiny = amendments({"dataset": {"tags": "_tiny"}, "ml-model": {"tags": "_tiny"}}, reach).settings
    assert tiny == {"CM_DATASET_SOURCE": "tiny", "CM_ML_MODEL_SOURCE": "_tiny"}
    other = amendments({"dataset": {"tags": "_articles"}, "ml-model": {"tags": "_smollm2"}}, reach).settings
    assert other == {"CM_DATASET_SOURCE": "articles", "CM_ML_MODEL_SOURCE": "_smollm2"}


@pytest.mark.parametrize(
    ("tags", "settings"),
    [
        ("_cuda", {"CM_VLLM_VARIANT": "cuda"}),
        ("_rocm, _version.0.9", {"CM_VLLM_VARIANT": "rocm", "CM_VLLM_WANTED_VERSION": "0.9"}),
        (["_system"], {"CM_VLLM_VARIANT": "system"}),
        ("_odd", {}),
    ],
)
def test_the_tags_of_a_vllm_are_known_before_the_first_step_and_stay(tags, settings):
    applied = amendments({"vllm": {"tags": tags}}, reach)
    assert (applied.settings, applied.rest) == (settings, {"vllm": {"tags": tags}})


def test_two_models_and_the_loadgen_of_a_round_are_refused():
    with pytest.raises(UsageError, match="names 2 sources"):
        amendments({"ml-model": {"tags": "_tiny,_hf.a/b"}}, reach)
    with pytest.raises(UsageError, match="_r5.1") as error:
        amendments({"loadgen": {"tags": "_r5.1"}}, reach)
    assert "among the tags of the command" in error.value.remedy


def test_a_step_gets_its_input_and_refuses_what_the_job_gives_it():
    def steps(change):
        applied = amendments({"vllm-server": change}, reach)
        return {step.name: step for step in schedule(replace(job_of(), step_inputs=applied.inputs))}

    with_seed = steps({"seed": "7"})
    assert with_seed["server"].env()["CM_VLLM_SERVER_SEED"] == "7"
    assert [name for name, step in with_seed.items() if "CM_VLLM_SERVER_SEED" in step.env()] == ["server"]
    with pytest.raises(UsageError, match="--adr.vllm-server.output_dir cannot be given"):
        steps({"output_dir": "/x"})


def test_names_without_a_step_or_a_dependency_are_named():
    asked = {name: {"tags": "_x"} for name in ("vllm-server", "vllm", "vlm", "compiler", "quantization")}
    sentences = amendments(asked, reach).without_effect(schedule(job_of()))
    assert [sentence.split()[0] for sentence in sentences] == ["--adr.vlm", "--adr.compiler", "--adr.quantization"]
    assert "did you mean 'vllm'?" in sentences[0]
    assert sentences[1] == "--adr.compiler has no effect: nothing is compiled: pip installs LoadGen"


def test_every_step_has_a_name_and_every_name_a_step():
    searching = {"search": "max-num-seqs:64..256", "find_target_qps": True}
    fields = [
        {"model": "gpt-oss-120b", "compliance": "TEST07,TEST09"},
        {"quantize": "int8,kv-fp8", "vllm_model_name": "a/b", **searching},
        {"model": "llama2-70b-99.9", "vllm_model_name": "llama-2-70b-chat", "division": "closed"},
        {"model": "mixtral-8x7b", "round": "v6.0", "vllm_model_name": "a/b"},
        {"power": "simulated"},
    ]
    steps = [step for field in fields for step in steps_of(**field).values()]
    assert [step.tags for step in steps if not step.names] == []
    unused = {"grader"} if grader_lacks("mbxp") else set()  # a machine without a sandbox has no step of a grader
    assert {name for step in steps for name in step.names} == set(RECIPES) - unused
    assert names_of("get,dataset,_performance,_path./a/b.json") == ("performance-dataset",)
    assert names_of("run,simulated-vllm-server,_describe") == ("vllm-server",)
    assert names_of("get,os") == ()


# --- a whole job on a slow server keeps to its minutes; its records say what is shorter, and the plan takes its times


RUN_NAMES = ("Offline accuracy", "Offline performance")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A job that ended on a server of some 3 samples/s, of which 256 would take longer than its minutes."""
    folder = tmp_path_factory.mktemp("slow")
    profile = folder / "slow.yaml"
    profile.write_text(PROFILE.read_text().replace("step_s: 0.008", "step_s: 0.1"))
    job = SmallJob(folder)
    job.given = (f"SMALL_PROFILE={profile}", "CM_TEST_QUERY_COUNT=", "CM_MLPERF_REHEARSAL_MINUTES=0.3")
    process = job.start(*job.given)
    assert process.wait(120) == 0, job.log.read_text()
    return job


def test_runs_that_a_slow_server_makes_too_long_are_shorter_say_so_and_are_found_again(made):
    words = made.log.read_text()
    for mode in ("accuracy", "performance"):
        settings = made.record(mode)["settings"]
        assert 2 <= (count := settings["samples"]) < 256
        assert settings["shortened"].startswith(f"{count} queries in place of 256, so that the job keeps to ")
        assert f"Offline {mode}: {settings['shortened']}" in words
    assert "; the job: " in words and " left" in words
    assert made.start(*made.given).wait(60) == 0, made.log.read_text()
    assert {made.states()[name].last.state for name in RUN_NAMES} == {State.KEPT}


def planned(made, **fields):
    job = job_of(output_dir=str(made.folder / "results"), scenario="Offline,Server", **fields)
    steps, notes = with_expected_times(job, schedule(job))
    return {step.name: step.duration for step in steps}, " ".join(notes)


def test_the_plan_of_a_result_takes_hours_from_the_rate_of_the_rehearsal(made):
    times, _ = planned(made, **VALID)
    rate = measured_rate(made.folder / RUNS / "performance")
    accuracy = times["Offline accuracy"]
    assert accuracy.seconds == pytest.approx(13_368 / rate, rel=0.01)
    assert accuracy.words.endswith(f"13,368 queries by the {rate} of Offline performance in the rehearsal")
    assert f"({accuracy.seconds / 3600:.1f} h)" in accuracy.words
    assert times["Server search"].at_least and times["Server search"].seconds > 2 * accuracy.seconds
    with_rate, _ = planned(made, **VALID, server_target_qps=0.5)
    assert with_rate["Server performance"].seconds == pytest.approx(2 * 13_368, rel=0.01)


def test_the_plan_of_a_rehearsal_says_that_its_minutes_are_an_upper_bound(made):
    times, notes = planned(made)
    assert "--rehearsal_minutes=15 is an upper bound" in notes and "samples/s of Offline performance in " in notes
    assert sum(times[name].seconds for name in (*RUN_NAMES, "Server performance", "Server accuracy")) <= 900


@pytest.mark.parametrize("fields", [{"vllm_model_name": "owner/name"}, {"output_dir": "/nowhere"}])
def test_without_a_rehearsal_of_the_same_model_the_times_are_those_of_the_rules(made, fields):
    fields = {"output_dir": str(made.folder / "results"), **fields}
    job, rehearsed = job_of(**VALID, **fields), job_of(**fields)
    assert with_expected_times(job, schedule(job)) == (schedule(job), ())
    (bound, verdict) = with_expected_times(rehearsed, schedule(rehearsed))[1]
    assert "upper bound" in bound and "measured a rate; it is measured first" in bound
    assert verdict.startswith("Server: with fewer than 662 queries")

"""`--adr` of the main job: settings of the job, inputs of its steps, and what the engine applies."""

from dataclasses import replace

import pytest

from cm4vllm.accuracy.graders.catalogue import grader_lacks
from cm4vllm.campaign.amendments import JOB, Amendments, amendments
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.planning.steps import RECIPES, StepInput, names_of
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import UsageError

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
    given = {
        "ml-model": "_hf.ORG/NAME,_odd",
        "dataset": "_path.a.json",
        "performance-dataset": "_path.b.json",
        "loadgen": "_from-pip",
        "vllm": "_version.1",
    }
    applied = amendments({name: {"tags": tags} for name, tags in given.items()}, reach)
    assert applied.settings == {
        "CM_ML_MODEL_SOURCE": "_hf.ORG/NAME",
        "CM_DATASET_FILE": "a.json",
        "CM_PERFORMANCE_DATASET_FILE": "b.json",
    }
    left = {"ml-model": "_odd", "loadgen": "_from-pip", "vllm": "_version.1"}
    assert applied.rest == {name: {"tags": tags} for name, tags in left.items()}
    tiny = amendments({"dataset": {"tags": "_tiny"}, "ml-model": {"tags": "_tiny"}}, reach).settings
    assert tiny == {"CM_DATASET_SOURCE": "tiny", "CM_ML_MODEL_SOURCE": "_tiny"}


def test_two_models_and_the_loadgen_of_a_round_are_refused():
    with pytest.raises(UsageError, match="names 2 sources"):
        amendments({"ml-model": {"tags": "_tiny,_hf.a/b"}}, reach)
    with pytest.raises(UsageError, match="_r5.1") as error:
        amendments({"loadgen": {"tags": "_r5.1"}}, reach)
    assert "among the tags of the command" in error.value.remedy


def test_a_step_gets_its_input_and_refuses_what_the_job_gives_it():
    def steps(change):
        applied = amendments({"vllm-server": change}, reach)
        return {step.name: step for step in schedule(replace(Job.of(CampaignSettings()), step_inputs=applied.inputs))}

    with_seed = steps({"seed": "7"})
    assert with_seed["server"].env()["CM_VLLM_SERVER_SEED"] == "7"
    assert [name for name, step in with_seed.items() if "CM_VLLM_SERVER_SEED" in step.env()] == ["server"]
    with pytest.raises(UsageError, match="--adr.vllm-server.output_dir cannot be given"):
        steps({"output_dir": "/x"})


def test_names_without_a_step_or_a_dependency_are_named():
    given = {name: {"tags": "_x"} for name in ("vllm-server", "vllm", "vlm", "compiler", "quantization")}
    sentences = amendments(given, reach).without_effect(schedule(Job.of(CampaignSettings())))
    assert [sentence.split()[0] for sentence in sentences] == ["--adr.vlm", "--adr.compiler", "--adr.quantization"]
    assert "did you mean 'vllm'?" in sentences[0]
    assert sentences[1] == "--adr.compiler has no effect: nothing is compiled: pip installs LoadGen"


def test_every_step_has_a_name_and_every_name_a_step():
    fields = [
        {"model": "gpt-oss-120b", "compliance": "TEST07,TEST09"},
        {
            "quantize": "int8,kv-fp8",
            "vllm_model_name": "a/b",
            "search": "max-num-seqs:64..256",
            "find_target_qps": True,
        },
        {"model": "llama2-70b-99.9", "vllm_model_name": "llama-2-70b-chat", "division": "closed"},
        {"model": "mixtral-8x7b", "round": "v6.0", "vllm_model_name": "a/b"},
        {"power": "simulated"},
    ]
    steps = [step for field in fields for step in schedule(Job.of(CampaignSettings(**field)))]
    assert [step.tags for step in steps if not step.names] == []
    unused = {"grader"} if grader_lacks("mbxp") else set()  # a machine without a sandbox has no step of a grader
    assert {name for step in steps for name in step.names} == set(RECIPES) - unused
    assert names_of("get,dataset,_performance,_path./a/b.json") == ("performance-dataset",)
    assert names_of("run,simulated-vllm-server,_describe") == ("vllm-server",)
    assert names_of("get,os") == ()

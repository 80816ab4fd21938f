"""From the command line: no stand-in replaces what was asked for, and --plan approves nothing that the run refuses."""

import pytest

from cm4vllm.common.errors import DatasetError, ModelError, SourceUnavailable, UsageError
from listing_server import listing_url


@pytest.mark.parametrize(
    ("flags", "tags", "wanted"),
    [
        (
            ["--vllm_model_name=llama-3.1-8b-instruct"],
            "",
            [
                "get,ml-model,_catalogue.llama-3.1-8b-instruct",
                "cnn_eval.json",
                "HF_TOKEN",
                "huggingface.co/meta-llama/",
            ],
        ),
        (
            ["--quantize=_fp8"],
            ",_hf.owner/name",
            ["get,dataset,_calibration,_mlcommons", "cnn_dailymail_calibration.json", "get,dataset,_mlcommons"],
        ),
        (["--api_server=A_SERVER_URL", "--vllm_model_name=owner/name"], "", ["get,dataset,_mlcommons"]),
    ],
)
def test_the_plan_of_a_model_of_ones_own_names_no_stand_in(cm, monkeypatch, flags, tags, wanted):
    monkeypatch.setenv("HF_TOKEN", "made-up")  # without one no gated model can be downloaded
    given = [flag.replace("A_SERVER_URL", listing_url()) for flag in flags]
    done = cm.main_job("--plan", *given, tags=tags)
    assert done.code == 0, done.output
    for word in wanted:
        assert word in done.output
    assert "_tiny" not in done.output
    assert "the tiny model" not in done.output


SUBMISSION, SCORES = "generate,mlperf,inference,submission", "process,mlperf,accuracy"


@pytest.mark.parametrize(
    ("flags", "tags", "shown", "absent"),
    [
        (
            ["--model=llama2-70b-99.9", "--dummy_layers=2"],
            ",_dummy",
            ["get,ml-model,_dummy.llama2-70b-99.9", "DUMMY WEIGHTS", "get,dataset,_tiny"],
            [SUBMISSION, SCORES, "from its hub"],
        ),
        (
            ["--rehearse=4xh100-llama2-70b-fp8"],
            "",
            ["SIMULATED", "run,simulated-vllm-server", "get,ml-model,_dummy.llama2-70b-99.9", "not scored"],
            [SUBMISSION, SCORES, "get,vllm", "detect,cpu"],
        ),
    ],
    ids=["random weights", "another machine"],
)
def test_the_plan_of_what_is_no_result_scores_nothing_and_makes_no_tree(cm, flags, tags, shown, absent):
    done = cm.main_job("--plan", *flags, tags=tags)
    assert done.code == 0, done.output
    assert [word for word in shown if word not in done.output] == []
    assert [word for word in absent if word in done.output] == []


@pytest.mark.parametrize(
    ("flags", "tags", "error", "word"),
    [
        (["--division=closed", "--execution_mode=valid"], "", UsageError, "rule MODEL"),
        ([], ",_path./nowhere/model", ModelError, "/nowhere/model"),
        (["--dataset_path=gone.json"], "", DatasetError, "gone.json"),
    ],
)
def test_the_plan_refuses_what_the_run_refuses(cm, flags, tags, error, word):
    """One for each class of errors; test_plan_of_main_job.py has many more without starting the command."""
    planned, done = cm.main_job("--plan", *flags, tags=tags), cm.main_job(*flags, tags=tags)
    planned.refused_with(error.exit_code, word)
    done.refused_with(error.exit_code, word)
    assert message_of(planned) == message_of(done)
    assert not (cm.cwd / "mlperf-results").exists()


@pytest.mark.parametrize(
    ("words", "error", "word"),
    [
        (["--tags=get,ml-model,_path./nowhere/model"], ModelError, "/nowhere/model"),
        (["--tags=get,ml-model", "--catalogue_name=nobody"], UsageError, "nobody"),
        (["--tags=get,dataset,_path./nowhere/data.json"], DatasetError, "/nowhere/data.json"),
        (["--tags=quantize,ml-model,_scheme.int9"], UsageError, "int9"),
        (["--tags=get,nltk-data", "--nltk_data=/nowhere/data.zip"], SourceUnavailable, "/nowhere/data.zip"),
        (["--tags=get,mlperf,inference,src", "--inference_src=/nowhere"], SourceUnavailable, "/nowhere"),
        (["--tags=run,vllm-server", "--api_server=http://127.0.0.1:many"], UsageError, "many"),
    ],
)
def test_the_plan_of_a_recipe_refuses_what_its_run_refuses(cm, words, error, word):
    planned = cm("plan", "script", "--quiet", *words)
    planned.refused_with(error.exit_code, word)
    if word == "int9":
        return  # its run may have to train a model first
    done = cm("run", "script", "--quiet", *words)
    done.refused_with(error.exit_code, word)
    assert message_of(planned) == message_of(done)


def test_a_server_is_stopped_by_a_port_that_is_taken(cm):
    assert cm("plan", "script", "--tags=run,vllm-server,_stop", "--port=22").code == 0


def message_of(done):
    return done.output[done.output.index("CM error:") :].strip()

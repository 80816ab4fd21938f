"""Which steps the job takes, in which order, seen from the function through which it reaches the recipes."""

import fcntl

import pytest

from cm4vllm.assets.records import DatasetRecord
from cm4vllm.campaign import job as module
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.campaign.targets import offline_target, server_target
from cm4vllm.common.errors import ModelError, ServerUnreachable, SourceUnavailable, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.common.units import SamplesPerSecond


class Recipes:
    """Notes the tags that are asked for, and fails where it is told to."""

    def __init__(self, **failures):
        self.tags = []
        self.failures = failures

    def __call__(self, tags, env):
        self.tags.append(tags)
        for word, error in self.failures.items():
            if word in tags.replace("-", "_").split(","):
                raise error
        return {}


def run(recipes, tmp_path, **fields):
    return module.run(Job.of(CampaignSettings(output_dir=str(tmp_path), **fields)), recipes, "cm run script")


def test_a_result_is_not_begun_when_nobody_could_check_it(tmp_path):
    recipes = Recipes(src=SourceUnavailable("no network"))
    with pytest.raises(SourceUnavailable):
        run(recipes, tmp_path, execution_mode="valid")
    assert recipes.tags == ["get,mlperf,inference,src"]


def test_a_rehearsal_goes_on_without_the_official_checker(tmp_path, capsys):
    recipes = Recipes(src=SourceUnavailable("no network"), ml_model=ModelError("stop here"))
    with pytest.raises(ModelError):
        run(recipes, tmp_path)
    assert recipes.tags[-1] == "get,ml-model,_tiny"
    assert "WARNING: the official checker will not run" in capsys.readouterr().out


def test_run_checker_no_leaves_its_source_alone(tmp_path):
    recipes = Recipes(ml_model=ModelError("stop here"))
    with pytest.raises(ModelError):
        run(recipes, tmp_path, run_checker=False, execution_mode="valid")
    assert recipes.tags == ["get,mlperf,inference,loadgen,_r6.1", "get,ml-model,_tiny"]


def test_a_given_server_is_looked_at_before_anything_is_fetched(tmp_path):
    recipes = Recipes(vllm_server=ServerUnreachable("nobody"))
    with pytest.raises(ServerUnreachable):
        run(recipes, tmp_path, run_checker=False, api_server="http://127.0.0.1:9")
    assert recipes.tags == ["run,vllm-server"]


@pytest.mark.parametrize(("name", "source"), [
    ("", "_tiny"), ("cm4vllm-tiny", "_tiny"), ("neuralmagic/Llama-2-7b-chat-hf-FP8",
                                               "_hf.neuralmagic/Llama-2-7b-chat-hf-FP8"),
])  # fmt: skip
def test_the_named_model_is_the_one_that_is_got(tmp_path, name, source):
    recipes = Recipes(ml_model=ModelError("stop here"))
    with pytest.raises(ModelError):
        run(recipes, tmp_path, run_checker=False, vllm_model_name=name)
    assert recipes.tags[-1] == f"get,ml-model,{source}"


def test_a_folder_is_taken_for_a_model_of_ones_own(tmp_path):
    recipes = Recipes(ml_model=ModelError("stop here"))
    with pytest.raises(ModelError):
        run(recipes, tmp_path, run_checker=False, vllm_model_name=str(tmp_path))
    assert recipes.tags[-1] == f"get,ml-model,_path.{tmp_path}"


@pytest.mark.parametrize(("sentences", "modes", "wanted"), [
    ("punkt_tab", "accuracy,performance", True), ("punkt_tab", "performance", False),
    ("punkt-untrained", "accuracy,performance", False),
])
def test_what_scoring_needs_is_there_before_the_server_starts(tmp_path, sentences, modes, wanted):
    class WithDataset(Recipes):
        def __call__(self, tags, env):
            super().__call__(tags, env)
            record = DatasetRecord(name="d", path="d.json", source="", sha256="", samples=1, max_input_tokens=1,
                                   sentences=sentences)
            write_record(tmp_path / "dataset.json", record)
            return {"CM_DATASET_RECORD": str(tmp_path / "dataset.json")}

    recipes = WithDataset(vllm_server=ServerUnreachable("stop here"))
    with pytest.raises(ServerUnreachable):
        run(recipes, tmp_path, run_checker=False, modes=modes)
    assert ("get,nltk-data" in recipes.tags) is wanted
    assert recipes.tags[-1] == "run,vllm-server"


def test_two_runs_do_not_share_a_results_folder(tmp_path):
    (tmp_path / "test").mkdir()
    with (tmp_path / "test" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        recipes = Recipes()
        with pytest.raises(UsageError, match="another run"):
            run(recipes, tmp_path)
        assert recipes.tags == []


def test_targets_say_where_they_come_from():
    rate = SamplesPerSecond(200)
    offline, server = offline_target(rate, rehearsal=False), server_target(rate)
    assert (offline.value, server.value) == (240, 40)
    assert offline_target(rate, rehearsal=True).value == 400
    assert "200.00 samples/s" in offline.source
    assert "Offline" in server.source

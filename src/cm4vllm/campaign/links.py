"""The recipes of the LoadGen runs and searches, run alone: their inputs, completed before their dependencies.

A recipe that is run alone gets model, dataset and server by the dependencies of its meta, which take their tags from
the keys that are set here. In the main job, which gives the records of all three, nothing is set.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cm4vllm.accuracy.live_rouge import live_scores
from cm4vllm.accuracy.scorer_needs import SENTENCES
from cm4vllm.accuracy.sentences import TRAINED
from cm4vllm.assets.models import check_source
from cm4vllm.assets.tiny.stand_ins import stand_in_named, variation_of
from cm4vllm.campaign.amendments import Reach, amendments
from cm4vllm.campaign.asset_sources import AssetInputs, Sources, sources
from cm4vllm.campaign.job_checks.capabilities import needs_sentences, require_runnable
from cm4vllm.campaign.job_checks.given_datasets import require_given_datasets
from cm4vllm.campaign.job_checks.preflight import (
    absolute_paths,
    require_results_folder,
    require_run_folder,
    require_server,
)
from cm4vllm.campaign.locks import only_one
from cm4vllm.campaign.own_server import earlier_server
from cm4vllm.campaign.planning.step_values import CHECKS
from cm4vllm.campaign.planning.steps import Check
from cm4vllm.campaign.powered_run import UNDER_POWER, make_powered_run
from cm4vllm.campaign.rehearsal.launch import PROFILE, require_rehearsal
from cm4vllm.campaign.search.probing import earlier_search, find_target_rate, require_searchable
from cm4vllm.campaign.search.search_space import asked_space
from cm4vllm.campaign.search.settings_job import searched_envs
from cm4vllm.common import input_types
from cm4vllm.common.files import typed_path, writable_folder
from cm4vllm.common.folders.ownership_notes import beside
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record
from cm4vllm.compliance.audit import audit_config, run_settings_of
from cm4vllm.loadgen.measurement import RunInputs, earlier_run, measure, require_run
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.run import RUN_FILE
from cm4vllm.records.searches.rate_search import SEARCH_FILE, SearchRecord
from cm4vllm.report.run_table import run_table
from cm4vllm.rules import Division, ExecutionMode, Media, Mode, Scenario, audit, benchmark_terms, round_terms
from cm4vllm.serving.launch_settings import LaunchSettings, require_usable
from cm4vllm.serving.planned_servers import media_of
from cm4vllm.serving.server import SERVER_FILE

#: The environment key of the main job's results: a recipe is run alone where it is not set.
RESULTS = "CM_MLPERF_RESULTS_DIR"
_SOURCE, _NAME = "CM_ML_MODEL_SOURCE", "CM_VLLM_SERVER_MODEL_NAME"
#: The keys that switch on the packages with which a server reads media.
_PACKAGES = {Media.AUDIO: "CM_VLLM_SERVER_NEEDS_SPEECH_PACKAGES", Media.IMAGE: "CM_VLLM_SERVER_NEEDS_VISION_PACKAGES"}
_FOLDER, _SERVER_FOLDER = "CM_MLPERF_OUTPUT_DIR", "CM_VLLM_SERVER_DIR"
_DIVISION = "CM_MLPERF_SUBMISSION_DIVISION"
_SERVER_RECORD, _PLANNED = "CM_VLLM_SERVER_RECORD", "CM_VLLM_SERVER_PLANNED"
#: yes: the folder of a link run alone holds an earlier result, which may be kept without a server.
_EARLIER = "CM_MLPERF_EARLIER_RESULT"


class LinkInputs(AssetInputs, frozen=True, kw_only=True):
    """The inputs that name the model and the dataset of a link, and the records of them that it is given."""

    model_record: input_types.ModelRecordPath = ""
    server_record: input_types.ServerRecordPath = ""

    @property
    def source(self) -> str:
        """The variation that gives the model: as asked for, or of the kind of the model whose record is given."""
        if self.rehearse or not self.model_record:
            return super().source
        model = read_record(Path(self.model_record), ModelRecord)
        if model.is_stand_in:
            return f"_{variation_of(model.architecture)}"
        return "_dummy" if model.is_dummy else f"_path.{model.path}"

    def sources(self) -> Sources:
        """Return the sources of model and dataset. Raises UsageError for inputs that contradict each other."""
        return sources(replace(self, vllm_model_name="") if self.model_record else self)


def completed_link(link: str, env: Mapping[str, Any], adr: Mapping[str, Any] | None, reach: Reach) -> Mapping[str, str]:
    """Return the keys that a link run alone gets before its dependencies; none in the main job.

    `link` are the tags of its recipe, `adr` the changes that `--adr` asks for. Raises CmError for what can be refused
    before anything is downloaded, installed or started.
    """
    if env.get(RESULTS):
        return {}
    changed = amendments(adr, reach, job=link).settings
    return {**changed, **_COMPLETED[link]({**env, **changed})}


def _completed_run(env: Mapping[str, Any]) -> dict[str, str]:
    inputs = _run_inputs(env)
    require_run(inputs)
    kind = inputs.compliance_test or inputs.terms.mode
    folder = typed_path(inputs.output_dir or f"mlperf-run/{inputs.terms.scenario}/{kind}").absolute()
    require_run_folder(folder, lock_of(folder))
    keep = Division.parse(inputs.division) is Division.OPEN
    return {
        **_assets(env, inputs),
        **_folders(folder, RUN_FILE),
        "CM_MLPERF_KEEP_ANSWERS": "yes" if keep else "no",
        SENTENCES: "yes" if _splits_sentences(env, inputs) else "no",
    }


def _splits_sentences(env: Mapping[str, Any], inputs: RunInputs) -> bool:
    """Return True if the scores of a run, which are shown while its answers come, need nltk's sentence model."""
    terms = inputs.terms
    if terms.mode is not Mode.ACCURACY or not needs_sentences(benchmark_terms(terms.round, terms.benchmark)):
        return False
    if inputs.dataset:
        return read_record(Path(inputs.dataset), DatasetRecord).sentences == TRAINED
    return LinkInputs.of({**env, **absolute_paths(env)}).sources().needs_sentence_model


def _completed_search(env: Mapping[str, Any]) -> dict[str, str]:
    inputs = _run_inputs(env)
    require_searchable(inputs.terms)
    require_run(inputs)
    folder = typed_path(inputs.output_dir or f"mlperf-search/{inputs.terms.scenario}").absolute()
    require_results_folder(folder, lock_of(folder))
    return {**_assets(env, inputs), **_folders(folder, SEARCH_FILE)}


def _completed_settings_search(env: Mapping[str, Any]) -> dict[str, str]:
    require_rehearsal(env)
    if search := str(env.get("CM_VLLM_SEARCH") or ""):
        asked_space(search, None, given=False, simulated=bool(env.get(PROFILE)))
    runs = [_run_inputs(run_env) for run_env in searched_envs(env)]
    for inputs in runs:
        require_run(inputs)
    folder = typed_path(runs[0].output_dir or "mlperf-search/server-settings").absolute()
    require_results_folder(folder, lock_of(folder))
    return {**_assets(env, runs[0]), _FOLDER: str(folder)}


def completed_server(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that a server alone gets before its dependencies: where the model among its tags comes from.

    Raises CmError for settings that no server can have.
    """
    settings = LaunchSettings.of(env)
    require_usable(settings)
    inputs = LinkInputs.of(env)
    if inputs.served:
        return {}
    variant = {"CM_VLLM_VARIANT": inputs.device} if inputs.device else {}
    if (media := media_of(settings)) is not None and not settings.container:  # an image has its own
        variant[_PACKAGES[media]] = "yes"
    name = inputs.vllm_model_name
    if inputs.model_record or (name and not inputs.model_source and not stand_in_named(name)):
        return variant
    model = inputs.sources().model
    check_source(model, inputs.dummy_layers)
    return {_SOURCE: model, _NAME: "", **variant}


def _folders(folder: Path, record: str) -> dict[str, str]:
    """Return the folders of a link and of its server, and the sign that both hold the records of an earlier command."""
    server = beside(folder, ".server")
    earlier = (folder / record).exists() and (server / SERVER_FILE).exists()
    return {_FOLDER: str(folder), _SERVER_FOLDER: str(server), _EARLIER: "yes" if earlier else "no"}


def planned_exports(env: Mapping[str, Any], exports: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer of the hook `plan` of a link.

    `exports` are the keys that the link sets, each with the name of a file in its folder. Whether a link run alone
    keeps an earlier result is not known before the run; in the main job only the step's folder may be unknown.
    """
    if not env.get(RESULTS) and env.get(_EARLIER) != "no":
        return {}
    folder = env.get(_FOLDER)
    return {"env": {key: str(Path(folder) / name) for key, name in exports.items()} if folder else {}}


def kept_server(link: str, env: Mapping[str, Any]) -> dict[str, str]:
    """Return the record of the server of the earlier result in the folder of a link, if that is kept; else nothing.

    `link` are the tags of its recipe. With the record no server is started: a kept result needs none.
    """
    planned = str(env.get(_PLANNED) or "")
    if env.get(RESULTS) or env.get(_SERVER_RECORD) or not planned:
        return {}
    path = earlier_server(Path(env[_SERVER_FOLDER]), planned, str(env["CM_ML_MODEL_RECORD"]))
    if path is None:
        return {}
    server = {_SERVER_RECORD: str(path)}
    return server if _IS_KEPT[link](RunInputs.of({**env, **server})) else {}


def make_run(env: Mapping[str, Any]) -> Path:
    """Make the LoadGen run that the environment describes, and return its record's path.

    A run alone is kept where its folder holds it already, keeps others out of that folder, and prints its table; in the
    main job, that does so. Raises CmError.
    """
    inputs = RunInputs.of(env)
    audit_text = audit_config(inputs.compliance_test, inputs.model)
    watch = partial(live_scores, nltk_data=env.get("CM_NLTK_DATA"))
    if env.get(UNDER_POWER):
        return make_powered_run(inputs, env, lambda run_inputs: measure(run_inputs, watch, audit_config=audit_text)[1])
    if env.get(RESULTS):
        return measure(inputs, watch, audit_config=audit_text)[1]
    folder = inputs.folder
    if inputs.server_record and env.get("CM_MLPERF_INFERENCE_API_SERVER"):
        _check_server({**env, _DIVISION: inputs.division})
    writable_folder(folder.parent)
    with only_one(lock_of(folder), folder):
        earlier = earlier_run(folder, run_settings_of(inputs))
        if earlier.record is not None:
            say(f"kept: {folder} holds this run, made with the same inputs")
            inputs.forget_generated_conf()
        else:
            if earlier.why_not:
                say(f"done again: {earlier.why_not}")
            measure(inputs, watch, audit_config=audit_text)
    print(run_table(folder), flush=True)
    return folder / RUN_FILE


def make_search(env: Mapping[str, Any]) -> dict[str, str]:
    """Search for the rate that the environment asks for, and return what the recipe exports.

    A search alone is kept where its folder holds it already, and keeps others out of that folder; in the main job, that
    does so. Raises CmError.
    """
    inputs = RunInputs.of(env)
    if env.get(RESULTS):
        return _search_exports(*find_target_rate(inputs))
    folder = inputs.folder
    writable_folder(folder.parent)
    with only_one(lock_of(folder), folder):
        earlier = earlier_search(inputs)
        if earlier is None:
            return _search_exports(*find_target_rate(inputs))
    say(f"kept: {folder} holds this search, made with the same inputs")
    say(f"search for the {earlier.scenario} rate: {earlier.words}")
    return _search_exports(earlier, folder / SEARCH_FILE)


def _search_exports(record: SearchRecord, path: Path) -> dict[str, str]:
    return {"CM_MLPERF_SEARCH_RECORD": str(path), "CM_MLPERF_SEARCH_RESULT": record.result}


def _check_server(env: Mapping[str, Any]) -> None:
    """Check that the given server is that of the model, as the main job does. Raises UsageError, ServerUnsuitable."""
    if not LinkInputs.of({**env, "CM_ML_MODEL_RECORD": ""}).sources().named:
        CHECKS[Check.NAMED_MODEL](env)
    CHECKS[Check.VOCABULARY](env)


def lock_of(folder: Path) -> Path:
    """Return the lock of a run's folder. It lies beside the folder, which appears only when the run is whole."""
    return beside(folder, ".lock", ".")


def _run_inputs(env: Mapping[str, Any]) -> RunInputs:
    """Return the inputs of a run that this version can make. Raises UsageError."""
    inputs = RunInputs.of(env)
    round_ = round_terms(inputs.round)
    require_runnable(round_, benchmark_terms(round_.name, inputs.model), (Scenario.parse(inputs.scenario),))
    return inputs


def _assets(env: Mapping[str, Any], inputs: RunInputs) -> dict[str, str]:
    """Return the keys that the dependencies for model, dataset, LoadGen and server take their tags from."""
    paths = absolute_paths(env)
    env = {**env, **paths}
    asked, round_, terms = LinkInputs.of(env), round_terms(inputs.round), inputs.terms
    if not asked.server_record:
        require_server(env, [terms])
    sources = asked.sources()
    if not asked.model_record:
        check_source(sources.model, asked.dummy_layers)
    valid = ExecutionMode.parse(inputs.execution_mode) is ExecutionMode.VALID
    benchmark = benchmark_terms(round_.name, inputs.model)
    tests = [inputs.compliance_test] if inputs.compliance_test else []
    for note in require_given_datasets(env, benchmark, [terms], model=sources.model, valid=valid, tests=tests):
        say(f"note: {note}")
    done = {
        **paths,
        _SOURCE: sources.model,
        "CM_DATASET_VARIATIONS": _dataset(sources, inputs),
        "CM_MLPERF_LOADGEN_VARIATION": round_.variation,
    }
    if asked.served:
        return done
    named = {_NAME: ""}  # the server gets the record in its place
    return {**done, **named, "CM_VLLM_VARIANT": asked.device} if asked.device else {**done, **named}


def _dataset(sources: Sources, inputs: RunInputs) -> str:
    """Return the variations of get,dataset that give the dataset of a run."""
    test = inputs.compliance_test
    if sources.compliance and test and audit(test, inputs.model).own_dataset:
        return f"_compliance.{test},{sources.compliance}"
    if sources.performance and inputs.terms.mode is Mode.PERFORMANCE:
        return f"_performance,{sources.performance}"
    return sources.dataset


def _is_run_kept(inputs: RunInputs) -> bool:
    return earlier_run(inputs.folder, run_settings_of(inputs)).record is not None


#: The keys that a link gets, and whether it keeps an earlier result as a whole, by the tags of its recipe.
_COMPLETED: Mapping[str, Callable[[Mapping[str, Any]], dict[str, str]]] = {
    "app,mlperf,inference,vllm": _completed_run,
    "find,mlperf,inference,target-qps": _completed_search,
    "find,mlperf,inference,server-settings": _completed_settings_search,
}
_IS_KEPT: Mapping[str, Callable[[RunInputs], bool]] = {
    "app,mlperf,inference,vllm": _is_run_kept,
    "find,mlperf,inference,target-qps": lambda inputs: earlier_search(inputs) is not None,
}

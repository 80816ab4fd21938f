"""The recipes of the LoadGen runs and searches, run alone: their inputs, completed before their dependencies.

A recipe that is run alone gets model, dataset and server by the dependencies of its meta, which take their tags from
the keys that are set here. In the main job, which gives the records of all three, nothing is set.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec.structs import replace

from cm4vllm.accuracy.scorer_needs import SENTENCES, ScoreInputs
from cm4vllm.accuracy.scoring import require_scorable
from cm4vllm.accuracy.sentences import TRAINED
from cm4vllm.assets.models import check_source
from cm4vllm.assets.packaged import smollm2
from cm4vllm.assets.tiny.stand_ins import stand_in_named, variation_of
from cm4vllm.campaign.amendments import AdrTargets, amendments
from cm4vllm.campaign.asset_sources import AssetInputs, Sources, sources
from cm4vllm.campaign.job_checks.capabilities import needs_sentences, require_runnable
from cm4vllm.campaign.job_checks.preflight import (
    require_given_datasets,
    require_results_folder,
    require_run_folder,
    require_server,
    with_absolute_paths,
)
from cm4vllm.campaign.ledger import only_one
from cm4vllm.campaign.own_server import earlier_server
from cm4vllm.campaign.planning.step_environment import Records, SearchExports, differing, values_of, with_values
from cm4vllm.campaign.planning.step_values import CHECKS
from cm4vllm.campaign.planning.steps import Check, StepInputs
from cm4vllm.campaign.powered_run import PowerInputs, make_powered_run
from cm4vllm.campaign.rehearsal.launch import require_rehearsal
from cm4vllm.campaign.search.probing import earlier_search, find_target_rate, require_searchable
from cm4vllm.campaign.search.search_space import asked_space
from cm4vllm.campaign.search.settings_job import SettingsJob
from cm4vllm.common import input_types
from cm4vllm.common.files import typed_path, writable_folder
from cm4vllm.common.folders.ownership_notes import path_beside
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.compliance.audit import audit_config, run_settings_of
from cm4vllm.loadgen.measurement import RunInputs, earlier_run, measure, require_run
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.run import RUN_FILE
from cm4vllm.records.searches.rate_search import SEARCH_FILE
from cm4vllm.report.final_table import run_table
from cm4vllm.rules import Division, ExecutionMode, Media, Mode, Scenario, audit, benchmark_terms, round_terms
from cm4vllm.serving.installation.vllm_choice import Choice
from cm4vllm.serving.launch import LaunchExports
from cm4vllm.serving.launch_settings import LaunchSettings, require_installable, require_usable
from cm4vllm.serving.planned_servers import media_of
from cm4vllm.serving.server import SERVER_FILE


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
        if smollm2.SOURCE in model.source:
            return f"_{smollm2.VARIATION}"
        return "_dummy" if model.is_dummy else f"_path.{model.path}"

    def sources(self) -> Sources:
        """Return the sources of model and dataset. Raises UsageError for inputs that contradict each other."""
        return sources(replace(self, vllm_model_name="") if self.model_record else self)


class LinkMarks(Settings, frozen=True, kw_only=True):
    """Keys that the dependencies of a link take their tags and conditions from, and the record of a planned server.

    `earlier`: the folder of a link run alone holds an earlier result, which may be kept without a server.
    """

    dataset_variations: Annotated[str, Key("CM_DATASET_VARIATIONS")] = ""
    loadgen_variation: Annotated[str, Key("CM_MLPERF_LOADGEN_VARIATION")] = ""
    splits_sentences: Annotated[bool, Key(SENTENCES)] = False
    needs_speech_packages: Annotated[bool, Key("CM_VLLM_SERVER_NEEDS_SPEECH_PACKAGES")] = False
    needs_vision_packages: Annotated[bool, Key("CM_VLLM_SERVER_NEEDS_VISION_PACKAGES")] = False
    earlier: Annotated[bool | None, Key("CM_MLPERF_EARLIER_RESULT")] = None
    planned: input_types.PlannedServer = ""


class Link(Settings, frozen=True, kw_only=True):
    """All that a link reads. With `results_dir` it is a step of a job, which keeps results and checks its server."""

    run: RunInputs
    assets: LinkInputs = LinkInputs()
    launch: LaunchSettings = LaunchSettings()
    power: PowerInputs = PowerInputs()
    scores: ScoreInputs = ScoreInputs()
    marks: LinkMarks = LinkMarks()
    results_dir: input_types.ResultsDir = ""


class LinkOutputs(StepInputs, frozen=True, kw_only=True):
    """Keys that a link, or a server, that is run alone gets before its dependencies; None is left as it is."""

    READ_BY: ClassVar[tuple[type[Settings], ...]] = (Choice, RunInputs, LaunchSettings, LinkInputs, LinkMarks)

    model_source: str | None = None
    vllm_model_name: str | None = None
    dataset_path: str | None = None
    performance_dataset_path: str | None = None
    compliance_dataset_path: str | None = None
    api_server_ca: str | None = None
    dataset_variations: str | None = None
    loadgen_variation: str | None = None
    output_dir: str | None = None
    folder: str | None = None
    variant: str | None = None
    keep_answers: bool | None = None
    splits_sentences: bool | None = None
    needs_speech_packages: bool | None = None
    needs_vision_packages: bool | None = None
    earlier: bool | None = None


def completed_link(
    link: str, env: Mapping[str, Any], adr: Mapping[str, Any] | None, adr_targets: AdrTargets
) -> Mapping[str, str]:
    """Return the keys that a link run alone gets before its dependencies; none in the main job.

    `link` are the tags of its recipe, `adr` the changes that `--adr` asks for. Raises CmError for what can be refused
    before anything is downloaded, installed or started.
    """
    if ScoreInputs.of(env).results_dir:
        return {}
    changed = amendments(adr, adr_targets, job=link).settings
    return {**changed, **_COMPLETED[link]({**env, **changed}).env()}


def _completed_run(link: Link) -> LinkOutputs:
    inputs = _require_runnable(link.run)
    require_run(inputs)
    kind = inputs.compliance_test or inputs.terms.mode
    folder = typed_path(inputs.output_dir or f"mlperf-run/{inputs.terms.scenario}/{kind}").absolute()
    require_run_folder(folder, lock_of(folder))
    return replace(
        _with_folders(_assets(link), folder, RUN_FILE),
        keep_answers=Division.parse(inputs.division) is Division.OPEN,
        splits_sentences=_splits_sentences(link),
    )


def _splits_sentences(link: Link) -> bool:
    """Return True if the scores of a run, which are shown while its answers come, need nltk's sentence model."""
    terms, dataset = link.run.terms, link.run.dataset
    if terms.mode is not Mode.ACCURACY or not needs_sentences(benchmark_terms(terms.round, terms.benchmark)):
        return False
    if dataset:
        return read_record(Path(dataset), DatasetRecord).sentences == TRAINED
    return with_absolute_paths(link.assets).sources().needs_sentence_model


def _completed_search(link: Link) -> LinkOutputs:
    inputs = _require_runnable(link.run)
    require_searchable(inputs.terms)
    require_run(inputs)
    folder = typed_path(inputs.output_dir or f"mlperf-search/{inputs.terms.scenario}").absolute()
    require_results_folder(folder, lock_of(folder))
    return _with_folders(_assets(link), folder, SEARCH_FILE)


def _completed_settings_search(search: SettingsJob, assets: LinkInputs) -> LinkOutputs:
    valid = ExecutionMode.parse(search.run.execution_mode) is ExecutionMode.VALID
    require_rehearsal(search.simulated, differing(search) | differing(assets), valid=valid)
    if search.asked.search:
        asked_space(search.asked.search, None, given=False, simulated=bool(search.asked.rehearse))
    runs = [_require_runnable(run) for run in search.runs()]
    for inputs in runs:
        require_run(inputs)
    folder = typed_path(runs[0].output_dir or "mlperf-search/server-settings").absolute()
    require_results_folder(folder, lock_of(folder))
    return replace(_assets(Link(run=runs[0], assets=assets, launch=search.launch)), output_dir=str(folder))


def completed_server(settings: LaunchSettings, inputs: LinkInputs) -> LinkOutputs:
    """Return what a server alone gets before its dependencies: where the model among its tags comes from.

    Raises CmError for settings that no server can have.
    """
    require_installable(settings)
    require_usable(settings)
    if inputs.served:
        return LinkOutputs()
    media = None if settings.container else media_of(settings)  # an image has its own packages
    done = LinkOutputs(
        variant=inputs.device or None,
        needs_speech_packages=media is Media.AUDIO or None,
        needs_vision_packages=media is Media.IMAGE or None,
    )
    name = inputs.vllm_model_name
    if inputs.model_record or (
        name and not inputs.model_source and not stand_in_named(name) and name != smollm2.VARIATION
    ):
        return done
    model = inputs.sources().model
    check_source(model, inputs.dummy_layers)
    return replace(done, model_source=model, vllm_model_name="")


def _with_folders(done: LinkOutputs, folder: Path, record: str) -> LinkOutputs:
    """Add the folders of a link and of its server, and whether both hold the records of an earlier command."""
    server = path_beside(folder, ".server")
    earlier = (folder / record).exists() and (server / SERVER_FILE).exists()
    return replace(done, output_dir=str(folder), folder=str(server), earlier=earlier)


def planned_exports(link: Link, exports: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer of the hook `plan` of a link.

    `exports` are the keys that the link sets, each with the name of a file in its folder. Whether a link run alone
    keeps an earlier result is not known before the run; in the main job only the step's folder may be unknown.
    """
    if not link.results_dir and link.marks.earlier is not False:
        return {}
    folder = link.run.output_dir
    return {"env": {key: str(Path(folder) / name) for key, name in exports.items()} if folder else {}}


def kept_server(tags: str, link: Link) -> LaunchExports:
    """Return the record of the server of the earlier result in the folder of a link, if that is kept; else none.

    `tags` are those of its recipe. With the record no server is started: a kept result needs none.
    """
    if link.results_dir or link.run.server_record or not link.marks.planned:
        return LaunchExports()
    path = earlier_server(Path(link.launch.folder), link.marks.planned, link.run.model_record)
    if path is None or not _IS_KEPT[tags](replace(link.run, server_record=str(path))):
        return LaunchExports()
    return LaunchExports(record=str(path))


def make_run(link: Link) -> Path:
    """Make the LoadGen run that a link describes, and return its record's path.

    A run alone is kept where its folder holds it already, keeps others out of that folder, and prints its table; in the
    main job, that does so. Raises CmError.
    """
    inputs = link.run
    audit_text = audit_config(inputs.compliance_test, inputs.model)
    require = partial(require_scorable, nltk_data=link.scores.nltk_data)
    if link.power.under_power:
        return make_powered_run(inputs, link.power, lambda run: measure(run, require, audit_config=audit_text)[1])
    if link.results_dir:
        return measure(inputs, require, audit_config=audit_text)[1]
    folder = inputs.folder
    if inputs.server_record and link.launch.api_server:
        _check_server(link)
    writable_folder(folder.parent)
    with only_one(lock_of(folder), folder):
        earlier, why_not = earlier_run(folder, run_settings_of(inputs))
        if earlier is not None:
            say(f"kept: {folder} holds this run, made with the same inputs")
            inputs.forget_generated_conf()
        else:
            if why_not:
                say(f"done again: {why_not}")
            measure(inputs, require, audit_config=audit_text)
    print(run_table(folder), flush=True)
    return folder / RUN_FILE


def make_search(link: Link) -> SearchExports:
    """Search for the rate that a link asks for, and return what the recipe exports.

    A search alone is kept where its folder holds it already, and keeps others out of that folder; in the main job, that
    does so. Raises CmError.
    """
    inputs = link.run
    if link.results_dir:
        record, path = find_target_rate(inputs)
        return SearchExports(record=str(path), result=record.result)
    folder = inputs.folder
    writable_folder(folder.parent)
    with only_one(lock_of(folder), folder):
        if (earlier := earlier_search(inputs)) is not None:
            say(f"kept: {folder} holds this search, made with the same inputs")
            say(f"search for the {earlier.scenario} rate: {earlier.words}")
        record = earlier or find_target_rate(inputs)[0]
    return SearchExports(record=str(folder / SEARCH_FILE), result=record.result)


def _check_server(link: Link) -> None:
    """Check that the given server is that of the model, as the main job does. Raises UsageError, ServerUnsuitable."""
    run = link.run
    records = Records(server_record=run.server_record, model_record=run.model_record, division=run.division)
    if not replace(link.assets, model_record="").sources().named:
        CHECKS[Check.NAMED_MODEL](records)
    CHECKS[Check.VOCABULARY](records)


def lock_of(folder: Path) -> Path:
    """Return the lock of a run's folder. It lies beside the folder, which appears only when the run is whole."""
    return path_beside(folder, ".lock", ".")


def _require_runnable(inputs: RunInputs) -> RunInputs:
    """Return the inputs of a run that this version can make. Raises UsageError for another one."""
    round_ = round_terms(inputs.round)
    require_runnable(round_, benchmark_terms(round_.name, inputs.model), (Scenario.parse(inputs.scenario),))
    return inputs


def _assets(link: Link) -> LinkOutputs:
    """Return what the dependencies for model, dataset, LoadGen and server take their tags from."""
    inputs, terms, ca = link.run, link.run.terms, link.launch.api_server_ca
    asked, round_ = with_absolute_paths(link.assets), round_terms(inputs.round)
    launch = with_values(link.launch, values_of(asked))
    if not link.assets.server_record:
        require_server(launch, [terms], simulated=bool(asked.rehearse))
    sources = asked.sources()
    if not asked.model_record:
        check_source(sources.model, asked.dummy_layers)
    valid = ExecutionMode.parse(inputs.execution_mode) is ExecutionMode.VALID
    benchmark = benchmark_terms(round_.name, inputs.model)
    tests = [inputs.compliance_test] if inputs.compliance_test else []
    notes = require_given_datasets(asked, launch, benchmark, [terms], model=sources.model, valid=valid, tests=tests)
    for note in notes:
        say(f"note: {note}")
    return LinkOutputs(
        dataset_path=asked.dataset_path or None,
        performance_dataset_path=asked.performance_dataset_path or None,
        compliance_dataset_path=asked.compliance_dataset_path or None,
        api_server_ca=str(typed_path(ca).absolute()) if ca else None,
        model_source=sources.model,
        dataset_variations=_dataset(sources, inputs),
        loadgen_variation=round_.variation,
        # The server gets the record in place of a name.
        vllm_model_name=None if asked.served else "",
        variant=None if asked.served else asked.device or None,
    )


def _dataset(sources: Sources, inputs: RunInputs) -> str:
    """Return the variations of get,dataset that give the dataset of a run."""
    test = inputs.compliance_test
    if sources.compliance and test and audit(test, inputs.model).own_dataset:
        return f"_compliance.{test},{sources.compliance}"
    if sources.performance and inputs.terms.mode is Mode.PERFORMANCE:
        return f"_performance,{sources.performance}"
    return sources.dataset


#: What a link gets, and whether it keeps an earlier result as a whole, by the tags of its recipe.
_COMPLETED: Mapping[str, Callable[[Mapping[str, Any]], LinkOutputs]] = {
    "app,mlperf,inference,vllm": lambda read: _completed_run(Link.of(read)),
    "find,mlperf,inference,target-qps": lambda read: _completed_search(Link.of(read)),
    "find,mlperf,inference,server-settings": lambda read: _completed_settings_search(
        SettingsJob.of(read), LinkInputs.of(read)
    ),
}
_IS_KEPT: Mapping[str, Callable[[RunInputs], bool]] = {
    "app,mlperf,inference,vllm": lambda inputs: earlier_run(inputs.folder, run_settings_of(inputs))[0] is not None,
    "find,mlperf,inference,target-qps": lambda inputs: earlier_search(inputs) is not None,
}

"""Steps during a run: values taken from earlier steps, conditions that hold, and checks after a step."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import asdict, replace

from cm4vllm.assets.samples.published_formats import require_media, rows_of
from cm4vllm.assets.tiny.stand_ins import stand_in_named
from cm4vllm.campaign.planning.step_environment import Records, RunStep, StepEnvironment, run_of
from cm4vllm.campaign.planning.steps import Check, Condition, MeasuredTarget, Need, Step, TargetQps, target_of
from cm4vllm.common.errors import DatasetError, UsageError
from cm4vllm.common.progress import say, warn
from cm4vllm.common.records import OtherSchema, read_record
from cm4vllm.common.settings import Settings
from cm4vllm.common.units import SamplesPerSecond
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.power.session import session_beside
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.searches.rate_search import SEARCH_FILE, SearchRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import Category, Division, ExecutionMode, Mode, division_rules
from cm4vllm.serving.probing.text_servers import check_tokenizer, require_division
from cm4vllm.serving.probing.vocabularies import check_vocabulary

#: The rule by which a division takes a benchmark's own dataset alone.
_DATASET_RULE = "DATASET"
_EXPORTED = re.compile(r"<<<(\w+)>>>")


class Values:
    """The values that steps take from earlier ones, in the `environment` of the job.

    `good` are the names of the steps that have ended well. The results of the job are in the folder `out`.
    """

    def __init__(self, out: Path, environment: StepEnvironment, steps: Mapping[str, Step]) -> None:
        self.out = out
        self.environment = environment
        self.good: set[str] = set()
        self._steps = steps
        self._said: set[str] = set()

    def inputs(self, step: Step) -> Settings:
        """Return a step's inputs with every value filled in."""
        values = asdict(step.inputs).items()
        inputs = replace(step.inputs, **{field: self._fill(text) for field, text in values if type(text) is str})
        if isinstance(inputs, RunStep) and isinstance(inputs.target_qps, MeasuredTarget):
            target = self.target(inputs.target_qps)
            return replace(inputs, target_qps=target.value, target_qps_source=target.source)
        return inputs

    def holds(self, condition: Condition) -> bool:
        return any(_NEEDS[condition.need](self, subject) for subject in condition.of)

    def target(self, wanted: MeasuredTarget) -> TargetQps:
        earlier = self._earlier_target(wanted.kept_from) if wanted.kept_from else None
        if earlier is None and wanted.searched:
            return self._searched_target(wanted)
        return earlier or target_of(self.rate(wanted.step), wanted.share, wanted.step, one_by_one=wanted.one_by_one)

    def _fill(self, value: str) -> str:
        return _EXPORTED.sub(lambda match: self.environment.exported(match[1]), value)

    def _searched_target(self, wanted: MeasuredTarget) -> TargetQps:
        search = read_record(self._folder(wanted.step) / SEARCH_FILE, SearchRecord)
        rate = search.lowered_rate(wanted.lowered)
        below = f"; lowered to {rate:g}, since a run missed a limit" if wanted.lowered else ""
        return TargetQps(rate, f"{wanted.step}: {search.words}{below}")

    def _folder(self, name: str) -> Path:
        """Return the folder of the LoadGen run that the step `name` makes."""
        return Path(self._fill(run_of(self._steps[name]).output_dir))

    def run(self, name: str) -> RunRecord:
        """Return the record of the run that a step made."""
        return read_record(self._folder(name) / RUN_FILE, RunRecord)

    def rate(self, name: str) -> SamplesPerSecond:
        """Return the samples/s that a step measured."""
        return measured_rate(self._folder(name))

    def _earlier_target(self, place: str) -> TargetQps | None:
        """Return the target of a valid result of an earlier run in a folder below the results."""
        folder = self.out / self._fill(place)
        if not (folder / RUN_FILE).exists():
            return None
        try:
            settings = read_record(folder / RUN_FILE, RunRecord).settings
        except OtherSchema:  # the run that follows says so, and measures again
            return None
        return TargetQps(settings.target_qps, settings.target_qps_source) if read_performance(folder).valid else None

    def has_ended_well(self, name: str) -> bool:
        return name in self.good

    def was_too_short(self, name: str) -> bool:
        """Return True if a performance run ended before the duration that the rules ask, and if so tell the user."""
        result = read_performance(self._folder(name))
        if result.duration >= result.min_duration:
            return False
        self._print_once(
            f"{name} ended after {result.duration}, before the {result.min_duration} that the rules require: the "
            "server was faster than in the run before. It is repeated, sized by the rate just measured"
        )
        return True

    def missed_limits(self, name: str) -> bool:
        """Return True if a performance run went on for long enough and is invalid, and if so report it."""
        result = read_performance(self._folder(name))
        if result.valid or result.duration < result.min_duration:
            return False
        self._print_once(
            f"{name} is not valid at {result.target_qps:g} queries/s: {'; '.join(result.reasons)}. It is repeated at "
            "the next lower rate that the search can distinguish from it"
        )
        return True

    def _print_once(self, text: str) -> None:
        """Print once why steps are taken; all the steps of a repeated run ask for the same condition."""
        if text not in self._said:
            self._said.add(text)
            say(text)

    def has_no_earlier_result(self, place: str) -> bool:
        return self._earlier_target(place) is None

    def lacks_power_session(self, place: str) -> bool:
        """Return True if no folder of runs that the pattern names has its power session."""
        return not any(session_beside(folder) is not None for folder in self.out.glob(place))


_NEEDS: Mapping[Need, Callable[[Values, str], bool]] = {
    Need.ENDED_WELL: Values.has_ended_well,
    Need.TOO_SHORT: Values.was_too_short,
    Need.MISSED_LIMITS: Values.missed_limits,
    Need.NO_SESSION: Values.lacks_power_session,
    Need.NO_EARLIER_RESULT: Values.has_no_earlier_result,
}


def measured_rate(folder: Path) -> SamplesPerSecond:
    """Return the samples/s of the LoadGen run in a folder. Raises CmError."""
    record = read_record(folder / RUN_FILE, RunRecord)
    performance = record.settings.mode is Mode.PERFORMANCE
    return read_performance(folder).samples_per_second if performance else record.samples_per_second


def _require_stand_in(records: Records) -> None:
    """Raise UsageError unless a server for which no model was named serves a stand-in."""
    server = read_record(Path(records.server_record), ServerRecord)
    if not stand_in_named(Path(server.model_name).name):
        raise UsageError(
            f"the server at {server.endpoint} serves {server.model_name}, and no model was named",
            cause="its files describe the result, and its dataset is the benchmark's: the stand-in's files and "
            "dataset would be used instead",
            remedy=f"name it: --vllm_model_name={server.model_name}, if that is its hub id or its name in the "
            "catalogue;\notherwise with its files: --tags=run-mlperf,inference,_path.FOLDER; _tiny says that it is the "
            "stand-in",
        )


def _require_vocabulary(records: Records) -> None:
    server = read_record(Path(records.server_record), ServerRecord)
    model = read_record(Path(records.model_record), ModelRecord)
    require_division(server, Division.parse(records.division))
    check_vocabulary(server, model)
    check_tokenizer(server, model)


def _require_media(records: Records) -> None:
    dataset = read_record(Path(records.dataset_record), DatasetRecord)
    require_media(Path(dataset.media_folder), rows_of(Path(dataset.path)))


def _require_published_prompts(records: Records) -> None:
    """Refuse a result, and name for a rehearsal, prompts that are not as the rules of the division ask for them."""
    division = Division.parse(records.division)
    rule = division_rules(division, Category.parse(records.category)).get(_DATASET_RULE)
    valid = ExecutionMode.parse(records.execution_mode) is ExecutionMode.VALID
    datasets = (records.dataset_record, records.performance_dataset_record, records.compliance_dataset_record)
    for path in filter(None, datasets) if rule else ():
        dataset = read_record(Path(path), DatasetRecord)
        if dataset.tokenised_again and valid:
            raise DatasetError(
                f"the dataset {dataset.name} cannot be used for a result of the {division} division",
                cause=dataset.tokenised_again,
                remedy="name the benchmark's own model, whose tokenizer the dataset is for; or give --division=open",
            )
        if dataset.tokenised_again:
            warn(f"{division} division, a valid run would be refused: {dataset.name}: {dataset.tokenised_again}")


#: The checks after a step; each gets the records that all steps so far have left, and raises CmError.
CHECKS: Mapping[Check, Callable[[Records], None]] = {
    Check.NAMED_MODEL: _require_stand_in,
    Check.VOCABULARY: _require_vocabulary,
    Check.PROMPTS: _require_published_prompts,
    Check.MEDIA: _require_media,
}

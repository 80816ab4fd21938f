"""The environment of CM in which the steps of a job run: the only place where a job writes it, and reads it again.

And the typed inputs of steps that the settings of their recipes cannot hold: each is a field of these settings.
"""

from collections import ChainMap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec.structs import asdict, replace

from cm4vllm.campaign.planning.steps import MeasuredTarget, Step, StepInputs
from cm4vllm.campaign.powered_run import PowerInputs
from cm4vllm.campaign.search.search_space import SettingsInputs
from cm4vllm.common import input_types
from cm4vllm.common.settings import Key, Settings, env_keys, parts_of
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.rules import ExecutionMode, Mode, Scenario
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings


class Shortened(Settings, frozen=True, kw_only=True):
    """A run that is shorter than its own length: its number of queries, why, and the minutes it was computed from."""

    test_query_count: input_types.TestQueryCount = None
    shortened: input_types.ShortenedWhy = ""
    rehearsal_minutes: input_types.RehearsalMinutes = None


class RunStep(StepInputs, frozen=True, kw_only=True):
    """A LoadGen run, or a search for its rate.

    An empty `max_test_duration` takes that of the job away. `under_power` is yes or simulated, None for a run without.
    """

    READ_BY: ClassVar[tuple[type[Settings], ...]] = (Shortened, PowerInputs, RunInputs)

    scenario: Scenario
    mode: Mode
    output_dir: str
    target_qps: float | MeasuredTarget | None = None
    target_qps_source: str | None = None
    compliance_test: str | None = None
    execution_mode: ExecutionMode | None = None
    test_query_count: int | None = None
    max_test_duration: Literal[""] | None = None
    keep_answers: bool | None = None
    search_result_dir: str | None = None
    under_power: str | None = None
    shortened: str | None = None
    rehearsal_minutes: float | None = None

    def shorter(self, by: Shortened | None) -> "RunStep":
        """Return the inputs of the run as it is shortened; None leaves it as it is."""
        return self if by is None else replace(self, **asdict(by))


def run_of(step: Step) -> RunStep:
    """Return the inputs of a step that makes a LoadGen run, or searches for its rate."""
    if not isinstance(step.inputs, RunStep):
        raise TypeError(f"{step.name} makes no LoadGen run")
    return step.inputs


class ServerStep(StepInputs, frozen=True, kw_only=True):
    """A server for the steps after it; an empty name takes that of the job away: the model's record stands for it."""

    READ_BY: ClassVar[tuple[type[Settings], ...]] = (ServerSettings, LaunchSettings)

    folder: str
    background: bool
    model_name: Literal[""] | None = None
    extra: str | None = None


class SettingsSearchStep(StepInputs, frozen=True, kw_only=True):
    """A search over server settings; the servers that it starts are those of the model's record, whatever its name."""

    READ_BY: ClassVar[tuple[type[Settings], ...]] = (LaunchSettings, SettingsInputs)

    output_dir: str
    search: str
    minutes: float
    scenarios: str
    model_name: Literal[""] | None = None


class PreflightInputs(Settings, frozen=True, kw_only=True):
    """An input of the power client: whether a submission is made after its session."""

    before_tree: input_types.BeforeTree = False


class JobExports(Settings, frozen=True, kw_only=True):
    """The folder of a job's results, and its page."""

    results_dir: input_types.ResultsDir
    summary: Annotated[str, Key("CM_MLPERF_SUMMARY")]


class SearchExports(Settings, frozen=True, kw_only=True):
    """The record of a search for a rate, and the folder of the full-length run that passed in it, empty for none."""

    record: Annotated[str, Key("CM_MLPERF_SEARCH_RECORD")] = ""
    result: Annotated[str, Key("CM_MLPERF_SEARCH_RESULT")] = ""


S = TypeVar("S", bound=Settings)
#: Nothing is set by --env.
NOTHING: Mapping[str, str] = MappingProxyType({})
NO_SETTINGS = Settings()


class JobInputs(Settings, frozen=True, kw_only=True):
    """Inputs of every step of a job: the benchmark, its server, and the folder of the job's results."""

    model: input_types.Benchmark
    execution_mode: input_types.ExecutionMode
    api_server: input_types.ApiServer
    results_dir: input_types.ResultsDir


class Records(Settings, frozen=True, kw_only=True):
    """The records that the steps so far have left, by which later ones find model, datasets and server."""

    model_record: input_types.ModelRecordPath = ""
    dataset_record: input_types.DatasetRecordPath = ""
    performance_dataset_record: input_types.PerformanceDatasetRecordPath = ""
    compliance_dataset_record: input_types.ComplianceDatasetRecordPath = ""
    server_record: input_types.ServerRecordPath = ""
    division: input_types.Division = "open"
    category: input_types.Category = ""
    execution_mode: input_types.ExecutionMode = "test"


class Names(Settings, frozen=True, kw_only=True):
    """The names of the system and of the model, by which results are filed; empty before they are known."""

    system: Annotated[str, Key("CM_SUT_NAME")] = ""
    model: input_types.ModelName = ""


class StepEnvironment:
    """The environment of the steps of a job: the job's settings, and what the steps so far have exported.

    `typed` is what the user set by --env, `given` are settings, of which those count that differ from their defaults,
    and `common` is what they stand for.
    """

    def __init__(self, typed: Mapping[str, str] = NOTHING, *given: Settings, common: Settings = NO_SETTINGS) -> None:
        self._values = dict(typed)
        for settings in given:
            self._values |= differing(settings)
        self._values |= common.env()

    def take(self, exports: Settings | Mapping[str, str]) -> None:
        """Add what a step has exported."""
        self._values.update(exports.env() if isinstance(exports, Settings) else exports)

    def of_step(self, step: Step, inputs: Settings) -> dict[str, str]:
        """Return the environment of a step, whose `inputs` are its own with all values filled in."""
        return {**self._values, **step.env(inputs)}

    def read(self, kind: type[S], more: Mapping[str, str] | None = None) -> S:
        """Return settings as the recipes of the steps read them, with `more` values. Raises UsageError."""
        return kind.of({**self._values, **(more or {})})

    @property
    def values(self) -> dict[str, str]:
        """All values so far, for the plan of the engine."""
        return dict(self._values)

    def exported(self, key: str) -> str:
        """Return the value of a key, empty where no step has exported it."""
        return self._values.get(key, "")


def values_of(settings: Settings) -> dict[str, Any]:
    """Return the values of settings by their keys; a value of their own goes before that of a part."""
    own = {key: getattr(settings, field) for field, key in env_keys(type(settings)).items()}
    return dict(ChainMap(own, *(values_of(getattr(settings, field)) for field in parts_of(type(settings)))))


def with_values(settings: S, values: Mapping[str, Any]) -> S:
    """Return settings, and their parts, with the values that others have under the same keys."""
    own = {field: values[key] for field, key in env_keys(type(settings)).items() if key in values}
    parts = {field: with_values(getattr(settings, field), values) for field in parts_of(type(settings))}
    return replace(settings, **own, **parts)


def differing(settings: Settings) -> dict[str, str]:
    """Return the settings that differ from their defaults as environment values: recipes know the defaults."""
    values, defaults = values_of(settings), values_of(type(settings)())
    return {key: text for key, text in settings.env().items() if values[key] != defaults[key]}

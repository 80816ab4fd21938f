"""The typed inputs of the steps of jobs: each is a field of the settings that the step's recipe reads."""

from typing import ClassVar, Literal

from msgspec.structs import asdict, replace

from cm4vllm.campaign.planning.steps import MeasuredTarget, Step, StepInputs
from cm4vllm.campaign.powered_run import PowerInputs
from cm4vllm.campaign.search.search_space import SettingsInputs
from cm4vllm.common import input_types
from cm4vllm.common.settings import Settings
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

"""The flags of the main job as they were given, and the job that they ask for, checked against the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

from cm4vllm import NO_SUBMITTER, REHEARSAL_NOTICE, SIMULATED_NOTICE, SIMULATED_POWER_NOTICE
from cm4vllm.assets.packaged.articles import require_summaries
from cm4vllm.campaign.asset_sources import AssetInputs, Sources, asked_quantisation, sources
from cm4vllm.campaign.job_checks.capabilities import (
    compliance_tests,
    graders,
    needs_sentences,
    require_runnable,
    require_scored,
)
from cm4vllm.campaign.live.page_address import Address
from cm4vllm.campaign.planning.step_environment import values_of, with_values
from cm4vllm.campaign.planning.steps import ScheduledJob, StepInput, reruns
from cm4vllm.campaign.search.search_space import SEARCH_MINUTES, Space, asked_space
from cm4vllm.common import input_types
from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.files import typed_path
from cm4vllm.common.settings import Bounds, Key, Settings
from cm4vllm.hardware.named_machine import NamedMachine
from cm4vllm.loadgen.settings import require_workers
from cm4vllm.rules import (
    BenchmarkTerms,
    Category,
    Division,
    ExecutionMode,
    Mode,
    RoundTerms,
    Scenario,
    Terms,
    benchmark_terms,
    default_round,
    division_rules,
    round_terms,
    terms,
)
from cm4vllm.serving.installation.vllm_choice import DEVICES
from cm4vllm.serving.launch_settings import LaunchSettings

S = TypeVar("S", bound=Settings)
#: The rule by which a division takes a benchmark's own model alone.
_MODEL_RULE = "MODEL"
IMPLEMENTATIONS = ("vllm", "reference")
#: Queries/s beyond which LoadGen generates more queries than a machine's memory holds.
_RATES = Bounds(most=1e6)
#: ms of an answer at least: a shorter one stands for a rate beyond that of the other scenarios.
_LEAST_LATENCY = 1e-3

#: A file system takes names of 255 bytes, and other names are made of these.
_LONGEST_NAME = 100
#: The minutes of a rehearsal.
REHEARSAL_MINUTES = 15.0


class JobSettings(AssetInputs, frozen=True, kw_only=True):
    """The flags that jobs of MLPerf Inference and of MLPerf Endpoints have, as given.

    `servers` holds those of servers that the job starts; a value that both have goes by the job's own.
    """

    execution_mode: input_types.ExecutionMode = "test"
    submitter: input_types.Submitter = NO_SUBMITTER
    output_dir: input_types.JobOutputDir = "mlperf-results"
    rerun: input_types.Rerun = "no"
    attempts: input_types.Attempts = 2
    serve: input_types.Serve = ""
    revision: input_types.ModelRevision = ""
    hw_name: input_types.SystemName = ""
    system_file: input_types.SystemFile = ""
    vllm_index_url: input_types.VllmIndexUrl = ""
    vllm_extra_index_url: input_types.VllmExtraIndexUrl = ""
    vllm_wheel: input_types.VllmWheel = ""
    vllm_version: input_types.VllmVersion = ""
    servers: LaunchSettings = LaunchSettings()


class CampaignSettings(JobSettings, frozen=True, kw_only=True):
    """The flags and variations of the entry recipe, as given."""

    round: input_types.Round = default_round()
    rules_file: input_types.RulesFile = ""
    scenario: input_types.Scenario = ""
    all_scenarios: Annotated[bool, Key("CM_MLPERF_LOADGEN_ALL_SCENARIOS")] = False
    modes: Annotated[str, Key("CM_MLPERF_LOADGEN_MODES")] = "accuracy,performance"
    division: input_types.Division = "open"
    category: input_types.Category = ""
    implementation: Annotated[str, Key("CM_MLPERF_IMPLEMENTATION")] = "vllm"
    livecodebench_path: input_types.ProblemsDir = ""
    offline_target_qps: Annotated[float | None, Key("CM_MLPERF_LOADGEN_OFFLINE_TARGET_QPS"), _RATES] = None
    server_target_qps: Annotated[float | None, Key("CM_MLPERF_LOADGEN_SERVER_TARGET_QPS"), _RATES] = None
    singlestream_target_latency: Annotated[
        float | None, Key("CM_MLPERF_LOADGEN_SINGLESTREAM_TARGET_LATENCY"), Bounds()
    ] = None
    find_target_qps: Annotated[bool | None, Key("CM_MLPERF_FIND_PERFORMANCE_MODE")] = None
    search: input_types.Search = ""
    search_minutes: input_types.SearchMinutes = None
    test_query_count: input_types.TestQueryCount = None
    max_test_duration: input_types.MaxTestDuration = None
    rehearsal_minutes: input_types.RehearsalMinutes = None
    quantize: Annotated[str, Key("CM_ML_MODEL_QUANTIZATION")] = ""
    num_workers: input_types.NumWorkers = None
    max_in_flight: input_types.MaxInFlight = None
    compliance: Annotated[str, Key("CM_MLPERF_LOADGEN_COMPLIANCE")] = ""
    run_checker: Annotated[bool, Key("CM_RUN_SUBMISSION_CHECKER")] = True
    published_results: Annotated[str, Key("CM_MLPERF_PUBLISHED_RESULTS")] = ""
    power: input_types.Power = "no"
    power_server: input_types.PowerServer = ""
    ntp_server: input_types.NtpServer = ""
    power_settings: input_types.PowerSettings = ""
    power_wiring: input_types.PowerWiring = ""
    power_supplies: input_types.PowerSupplies = ""
    power_port: input_types.PowerPort = 4950
    num_analyzers: input_types.NumAnalyzers = 1
    power_src: input_types.PowerPrograms = ""
    published: Annotated[str, Key("CM_MLPERF_PUBLISHED")] = ""
    calibration_samples: input_types.CalibrationSamples = 512
    inference_src: input_types.InferenceSource = ""
    grader_src: input_types.GraderSource = ""
    nltk_data: input_types.SentenceSource = ""
    rehearse_seed: input_types.RehearseSeed = 0
    rehearse_faults: input_types.RehearseFaults = ""
    accept_restarted_server: input_types.AcceptRestarted = False
    machine: input_types.Machine = ""
    gpu_memory_gib: input_types.GpuMemory = None

    def view(self, kind: type[S]) -> S:
        """Return settings of a class that describes a part of the job, with the values that the job has for them."""
        return with_values(kind(), values_of(self))

    @property
    def launch(self) -> LaunchSettings:
        """The settings of the job's servers."""
        return self.view(LaunchSettings)

    @property
    def targets(self) -> Mapping[Scenario, float | None]:
        """The targets that were given: queries/s, or the expected ms of an answer where queries come one by one."""
        return {
            Scenario.OFFLINE: self.offline_target_qps,
            Scenario.SERVER: self.server_target_qps,
            Scenario.INTERACTIVE: self.server_target_qps,
            Scenario.SINGLE_STREAM: self.singlestream_target_latency,
        }


@dataclass(frozen=True, kw_only=True)
class Job(ScheduledJob):
    """The settings, understood: what is run, under which rules, and where its files go.

    `machine` is the one that a plan for another machine is for; None for this one.
    """

    settings: CampaignSettings
    round: RoundTerms
    benchmark: BenchmarkTerms
    category: Category
    scenarios: tuple[Scenario, ...]
    modes: tuple[Mode, ...]
    division: Division
    tests: tuple[str, ...]
    sources: Sources
    quantisation: str = ""
    findings: tuple[Finding, ...] = ()
    space: Space | None = None
    step_inputs: tuple[StepInput, ...] = ()
    machine: NamedMachine | None = None

    @property
    def no_tree(self) -> str:
        """The reason why no submission tree is made, empty if one is made."""
        if self.settings.rehearse:
            return f"{SIMULATED_NOTICE}: the server of --rehearse is simulated, and nothing that it gives is a result"
        if self.settings.power == "simulated":
            return f"{SIMULATED_NOTICE}: the power of --power=simulated is made up, and no result may hold it"
        if set(self.modes) != set(Mode):
            return "it needs an accuracy and a performance run of each scenario"
        broken = dict.fromkeys(finding.code for finding in self.findings)
        words = f"the job does not keep these rules of the {self.division} division: {', '.join(broken)}"
        return words if broken else ""

    @property
    def proves_model(self) -> bool:
        """Return True if the model is to be compared with the benchmark's published digests."""
        known = _MODEL_RULE in division_rules(self.division, self.category)
        return known and all(finding.code != _MODEL_RULE for finding in self.findings)

    @property
    def title(self) -> str:
        return f"{self.benchmark.name} {self.round.name}, {', '.join(self.scenarios)}, {self.division}"

    @property
    def notices(self) -> list[str]:
        return [
            *([SIMULATED_NOTICE] if self.settings.rehearse else []),
            *([SIMULATED_POWER_NOTICE] if self.settings.power == "simulated" else []),
            *([REHEARSAL_NOTICE] if self.rehearsal else []),
        ]

    @property
    def scores(self) -> bool:
        """Return True if accuracy runs are scored: the answers of a simulated server have no meaning."""
        return not self.settings.rehearse

    @property
    def search_minutes(self) -> float:
        """The minutes that a search over server settings may take."""
        return self.settings.search_minutes or SEARCH_MINUTES

    @property
    def rehearsal_minutes(self) -> float:
        """The minutes that a rehearsal may take from the start of its server on."""
        return self.settings.rehearsal_minutes or REHEARSAL_MINUTES

    @property
    def searches_rate(self) -> bool:
        """Return True if rates that are not given are searched for. Without --find_target_qps: not in a rehearsal."""
        asked = self.settings.find_target_qps
        return not self.rehearsal if asked is None else asked

    @property
    def needs_sentence_model(self) -> bool:
        """Return True if nltk's trained model splits answers for the scores."""
        return (
            self.scores
            and Mode.ACCURACY in self.modes
            and needs_sentences(self.benchmark)
            and self.sources.needs_sentence_model
        )

    @property
    def graders(self) -> tuple[str, ...]:
        """The graders of accuracy runs that can run, on this machine or on that of a plan."""
        here, problems = not self.settings.machine, self.settings.livecodebench_path
        return graders(self.benchmark, problems, here=here) if Mode.ACCURACY in self.modes else ()

    def terms(self, scenario: Scenario, mode: Mode) -> Terms:
        """Return the terms of one of the job's runs."""
        return terms(self.round.name, self.benchmark.name, scenario, mode, self.division)

    @classmethod
    def of(cls, settings: CampaignSettings) -> Job:
        """Check `settings` against the rules. Raises UsageError at the first that does not fit."""
        execution_mode = ExecutionMode.parse(settings.execution_mode)
        round_ = round_terms(settings.round)
        benchmark = benchmark_terms(round_.name, settings.model)
        category = _category(settings, benchmark)
        division = Division.parse(settings.division)
        scenarios = _scenarios(settings, benchmark, category)
        require_runnable(round_, benchmark, scenarios)
        _require_values(settings)
        asset_sources = sources(settings)
        modes = _modes(settings, asset_sources, execution_mode)
        _require_dataset(asset_sources, benchmark, execution_mode)
        require_scored(benchmark, modes, execution_mode, settings.livecodebench_path, here=not settings.machine)
        return cls(
            settings=settings,
            round=round_,
            benchmark=benchmark,
            category=category,
            scenarios=scenarios,
            modes=modes,
            execution_mode=execution_mode,
            division=division,
            tests=compliance_tests(settings.compliance, benchmark, division, category),
            sources=asset_sources,
            out=typed_path(settings.output_dir).absolute() / execution_mode,
            attempts=settings.attempts,
            quantisation=asked_quantisation(settings.quantize, benchmark.name, served=bool(settings.api_server)),
            rerun=reruns(settings.rerun),
            serve=Address.parse(settings.serve) if settings.serve else None,
            space=asked_space(
                settings.search,
                settings.search_minutes,
                given=bool(settings.api_server),
                simulated=bool(settings.rehearse),
            ),
        )


def _require_values(settings: CampaignSettings) -> None:
    """Raise UsageError for a value that no job can have, whatever its benchmark."""
    _one_of("implementation", settings.implementation, IMPLEMENTATIONS)
    if settings.device:
        _one_of("device", settings.device, DEVICES)
    require_workers(settings.num_workers)
    name, latency = settings.submitter, settings.singlestream_target_latency
    fits = 0 < len(name.encode()) <= _LONGEST_NAME and name[0] not in ".-"
    if not fits or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise UsageError(
            f"--submitter={name!r} is not usable",
            cause="it names one folder of the submission, where the official checker allows no spaces",
            remedy=f"use letters, digits, '-', '_' and '.', {_LONGEST_NAME} at most, first a letter or a digit",
        )
    if latency is not None and latency < _LEAST_LATENCY:
        raise UsageError(
            f"--singlestream_target_latency={latency:g} is not usable",
            cause=f"it is in ms, and at least {_LEAST_LATENCY:g}",
        )
    if settings.find_target_qps and settings.server_target_qps is not None:
        raise UsageError(
            f"--find_target_qps cannot be given with --server_target_qps={settings.server_target_qps:g}",
            cause="the rate is either searched for or given",
            remedy="leave one of them out",
        )


def _modes(settings: CampaignSettings, sources: Sources, style: ExecutionMode) -> tuple[Mode, ...]:
    """Return the modes that the user asked for; with random weights, performance only.

    Raises UsageError for what cannot be done with those.
    """
    modes = tuple(Mode.parse(mode) for mode in settings.modes.split(","))
    if not sources.dummy or settings.rehearse:
        return modes
    refused = {
        "--execution_mode=valid": (style is ExecutionMode.VALID, "a result is of a model's own weights"),
        "_accuracy-only": (Mode.PERFORMANCE not in modes, "the answers of random weights have no accuracy"),
        "--compliance": (bool(settings.compliance), "compliance tests read a model's answers"),
        "--quantize": (
            bool(settings.quantize),
            "there are no weights to quantise; --quantization=fp8 has vLLM quantise its random ones",
        ),
    }
    for variation, (asked, why) in refused.items():
        if asked:
            raise UsageError(
                f"{variation} cannot be given with random weights (_dummy)",
                cause=why,
                remedy="leave it out, or name a model with weights by --vllm_model_name",
            )
    return (Mode.PERFORMANCE,)


def _require_dataset(sources: Sources, benchmark: BenchmarkTerms, style: ExecutionMode) -> None:
    """Raise DatasetError, UsageError where the articles are asked for a benchmark of another kind, or for a result."""
    if not sources.has_articles:
        return
    require_summaries(benchmark)
    if style is ExecutionMode.VALID:
        raise UsageError(
            "--execution_mode=valid cannot be given with the articles",
            cause=f"a result needs the {benchmark.samples:,} samples of the benchmark's own dataset",
            remedy="add --dataset=benchmark, or rehearse with --execution_mode=test",
        )


def _category(settings: CampaignSettings, benchmark: BenchmarkTerms) -> Category:
    """Return the category that was asked for, else the benchmark's. Raises UsageError where it has no such results."""
    category = Category.parse(settings.category) if settings.category else benchmark.category
    if benchmark.required_on(category) is None:
        raise UsageError(
            f"the category does not fit the model {benchmark.name}",
            cause=f"--category={category}: it has no such results in round {benchmark.round}",
            remedy=f"leave --category out: it is {benchmark.category} for this benchmark",
        )
    return category


def _scenarios(settings: CampaignSettings, benchmark: BenchmarkTerms, category: Category) -> tuple[Scenario, ...]:
    """Return the scenarios that the user asked for, else those of a complete result; of alternatives, the first."""
    chosen = [Scenario.parse(word) for word in settings.scenario.split(",")] if settings.scenario else []
    if chosen and not settings.all_scenarios:
        return tuple(sorted(dict.fromkeys(chosen), key=list(Scenario).index))
    needed = benchmark.required_on(category) or benchmark.required[0]
    return tuple(scenario for scenario in benchmark.scenarios if scenario in (*needed.all_of, *needed.one_of[:1]))


def _one_of(flag: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"--{flag}={value} is not supported", remedy=nearest(value, choices))

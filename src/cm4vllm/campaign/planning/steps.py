"""The steps of a schedule, and their dependencies on the results of earlier steps: plain data, for JSON too.

And the facts that a job of MLPerf Inference and one of MLPerf Endpoints share, which their execution needs to know.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import fields

from cm4vllm.campaign.live.page_address import Address
from cm4vllm.common import input_types
from cm4vllm.common.records import Record
from cm4vllm.common.settings import Settings, env_keys, setting_text
from cm4vllm.common.units import SamplesPerSecond, four_digits
from cm4vllm.rules import ExecutionMode

#: LoadGen sizes an Offline run as 1.1 x 600 s x target QPS samples, and the run must last 600 s. An accuracy run is
#: shorter, so that filling and emptying the server's batch weigh more in it and its rate comes out too low (by 8 % in a
#: run on two cores: 213.5 samples/s, then 232.9): with this factor a run lasts 792 s at the rate measured before it,
#: and still 600 s at a rate 1.32 times as high.
OFFLINE_MARGIN = 1.2
#: In a rehearsal, whose accuracy run takes a second or two: up to 1.9 times the rate measured in it was seen after it.
REHEARSAL_MARGIN = 2.0

#: The share of the Offline rate that a scenario with queries at their own times is asked for where its rate is not
#: searched for. It is a safe choice, not the highest rate that keeps the latency limits.
SERVER_SHARE = 0.2
#: In a rehearsal: the rate of its short Offline accuracy run is up to 1.9 times too low (see REHEARSAL_MARGIN), so that
#: this is about the same share of what the server carries.
REHEARSAL_SHARE = 0.4
#: The most that a search for that rate takes: in full-length runs, and in a rehearsal in seconds.
SEARCH_RUNS, REHEARSAL_SEARCH_S = 2.5, 75.0

#: Where each query follows the answer before it, LoadGen plans as many as take 1,200 s at the expected latency, rounds
#: them up to whole passes over the dataset, and issues all of them; a run that ends before 600 s is not valid. With
#: this share of the rate measured before it a run lasts 900 s or a pass, and still 600 s where the server turns out to
#: be 1.5 times as fast.
LATENCY_SHARE = 0.75
#: Queries of the run that measures the mean latency: as many as LoadGen needs to estimate its 90th percentile.
LATENCY_QUERIES = 64


@dataclass(frozen=True)
class TargetQps:
    """A target rate in queries/s (samples/s in Offline) and where it comes from, in words."""

    value: float
    source: str


def target_of(rate: SamplesPerSecond, share: float, step: str, *, one_by_one: bool = False) -> TargetQps:
    """Return `share` of the `rate` that `step` measured as a target QPS.

    The words name a latency where queries come one by one.
    """
    source = (
        f"{1 / share:.3g} x the mean latency of {step}, {four_digits(1000 / rate)} ms"
        if one_by_one
        else f"{share} x the {rate} of {step}"
    )
    return TargetQps(float(f"{rate * share:.3g}"), source)


#: The recipes that steps run, by the names that `--adr` changes them by; the public recipes' names where they have one.
RECIPES = {
    "submission-checker-src": "get,mlperf,inference,src",
    "inference-src": "get,mlperf,inference,src",
    "grader": "get,mlperf,grader",
    "power-src": "get,mlperf,power,src",
    "power-client": "run,mlperf,power,client",
    "loadgen": "get,mlperf,inference,loadgen",
    "mlperf-inference-loadgen": "get,mlperf,inference,loadgen",
    "ml-model": "get,ml-model",
    "model-identity": "verify,ml-model",
    "quantization": "quantize,ml-model",
    "calibration": "get,dataset,_calibration",
    "performance-dataset": "get,dataset,_performance",
    "compliance-dataset": "get,dataset,_compliance",
    "dataset": "get,dataset",
    "nltk-data": "get,nltk-data",
    "server-settings-search": "find,mlperf,inference,server-settings",
    "vllm-server": "run,vllm-server",
    "cpu": "detect,cpu",
    "system-description": "get,sut,description",
    "target-qps-search": "find,mlperf,inference,target-qps",
    "mlperf-inference-implementation": "app,mlperf,inference,vllm",
    "mlperf-accuracy-script": "process,mlperf,accuracy",
    "compliance-test": "process,mlperf,compliance",
    "submission-generator": "generate,mlperf,inference,submission",
    "accuracy-log-truncator": "truncate,mlperf,inference,accuracy,log",
    "submission-checker": "run,mlperf,inference,submission,checker",
    "mlperf-inference-submission-checker": "run,mlperf,inference,submission,checker",
}
#: A simulated server takes the place of vLLM's.
_SIMULATED = ("run,simulated-vllm-server", "run,vllm-server")

#: The word of --rerun that stands for all steps.
ALL = "all"
#: The words of --rerun for every step, and for none; all others name steps.
_ALL, _NONE = ("yes", "on", "true", "1", ALL), ("no", "off", "false", "0", "")

#: Runs the recipe with these tags on top of this environment, and returns what it exports. Raises CmError.
Recipes = Callable[[str, Mapping[str, str]], Mapping[str, str]]


class Product(StrEnum):
    """A product of a step, kept when the same command is given again."""

    SERVER = "a server started by the job"
    RUN = "a LoadGen run"
    SEARCH = "a search for a rate"
    SETTINGS = "a search over server settings"
    SCORES = "the scores of an accuracy run"
    VERDICT = "the verdict on a compliance test"
    CURVE = "the points of a curve"
    POINT = "a point of a curve"

    @property
    def asks_server(self) -> bool:
        """Return True if it is made by requests to the server."""
        return self in (Product.RUN, Product.SEARCH, Product.CURVE, Product.POINT)


class Check(StrEnum):
    """A check of the job itself after a step, in words."""

    NAMED_MODEL = "the server serves the model that the job takes it for"
    VOCABULARY = "the server reads token ids as the model's tokenizer does"
    PROMPTS = "the prompts are as published where the division's rules ask for that"
    MEDIA = "the files of the samples are those of which the dataset's record was made"


class Need(StrEnum):
    """A condition on earlier steps: the step is run only if it holds."""

    ENDED_WELL = "ended well"
    TOO_SHORT = "ended too early to be valid"
    MISSED_LIMITS = "missed a latency limit"
    NO_SESSION = "holds no power session of an earlier run"
    NO_EARLIER_RESULT = "holds no valid result of an earlier run, whose target would be kept"


def readable_text(text: str) -> str:
    """Return a text of a schedule in words: SYSTEM and MODEL stand for names that only the run can tell."""
    return text.replace("<<<CM_SUT_NAME>>>", "SYSTEM").replace("<<<CM_ML_MODEL_NAME>>>", "MODEL")


class Condition(Record, frozen=True, kw_only=True):
    """A step is run if `need` holds for one of `of`: names of steps, or folders of runs below the results."""

    need: Need
    of: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"{' or '.join(map(readable_text, self.of))} {self.need}"


class MeasuredTarget(Record, frozen=True, kw_only=True):
    """A target rate that only the run can give: `share` x the samples/s that `step` measured.

    With `one_by_one` it stands for the latency that LoadGen expects.

    With `searched`, `step` is a search and the target is the rate that it found; `lowered` is the number of runs at
    that rate that have missed a limit. A valid result of an earlier run in the folder `kept_from`, below the results,
    gives its own target instead, so that the same command finds that result again.
    """

    step: str
    share: float = 1.0
    kept_from: str = ""
    searched: bool = False
    lowered: int = 0
    one_by_one: bool = False

    @property
    def subject(self) -> str:
        return "expected latency" if self.one_by_one else "target QPS"

    @property
    def words(self) -> str:
        kept = (
            f", or that of a valid result of an earlier run in {readable_text(self.kept_from)}"
            if self.kept_from
            else ""
        )
        if self.searched:
            below = f", lowered by {self.lowered} step{'s' if self.lowered > 1 else ''}" if self.lowered else ""
            return f"the rate found by {self.step}{below}{kept}"
        if self.one_by_one:
            return f"{1 / self.share:.3g} x the mean latency of {self.step}{kept}"
        return f"{self.share} x the samples/s of {self.step}{kept}"


class Duration(Record, frozen=True, kw_only=True):
    """The duration of a step, and its source. With `at_least` it may take longer.

    `by_rules` says that it follows from the rules alone, whatever the server's rate is.
    """

    seconds: float
    source: str
    at_least: bool = False
    by_rules: bool = False

    @property
    def words(self) -> str:
        hours = f" ({self.seconds / 3600:.1f} h)" if self.seconds >= 3600 else ""
        return f"{'at least ' if self.at_least else ''}{four_digits(self.seconds)} s{hours}, {self.source}"


class Brings(Record, frozen=True, kw_only=True):
    """A step's download or installation beyond what its recipe states; `disk_bytes` is 0 if the size is not known.

    `how` is download, install or make; `source` says where the size comes from.
    """

    how: str
    what: str
    disk_bytes: int = 0
    source: str = ""


class ResultFolders(Settings, frozen=True, kw_only=True):
    """The folder of a step's result, by the key of its kind."""

    output_dir: input_types.OutputDir = ""
    result_dir: input_types.ScoredDir = ""
    test_dir: input_types.VerifiedDir = ""

    @property
    def folder(self) -> Path | None:
        """The folder, None where none is given."""
        given = self.output_dir or self.result_dir or self.test_dir
        return Path(given) if given else None


class StepInputs(Settings, frozen=True, kw_only=True):
    """Inputs of a step beyond what the settings of its recipe can hold, `READ_BY`, whose keys its fields have.

    A field whose default is None can take a value of the job away, or be a target that only the run can give.
    """

    READ_BY: ClassVar[tuple[type[Settings], ...]] = ()

    def env(self) -> dict[str, str]:
        """Return the inputs that are given as the recipe reads them."""
        return env_of(self)


def given_values(inputs: Settings) -> dict[str, Any]:
    """Return the values that the inputs of a step give, by the keys that its recipe reads: those that are no defaults.

    They are beside those of the whole job. `<<<KEY>>>` in a text stands for what an earlier step exports under KEY.
    """
    read_by = inputs.READ_BY if isinstance(inputs, StepInputs) else (type(inputs),)
    keys = {field: key for settings in read_by for field, key in env_keys(settings).items()}
    defaults = {field.name: field.default for field in fields(inputs)}
    values = {field: getattr(inputs, field) for field in keys if field in defaults}
    return {keys[field]: value for field, value in values.items() if value != defaults[field]}


def env_of(inputs: Settings) -> dict[str, str]:
    """Return the inputs of a step as its recipe reads them, without a target that only the run can give."""
    known = {key: value for key, value in given_values(inputs).items() if not isinstance(value, MeasuredTarget)}
    return {key: setting_text(value) for key, value in known.items()}


def result_folder(inputs: Settings) -> Path | None:
    """Return the folder of the result of a step with these inputs, None for a step without one."""
    return ResultFolders.of(env_of(inputs)).folder


@dataclass(frozen=True)
class StepInput:
    """An input of the steps named `name` that --adr gives, by its flag and its environment key."""

    name: str
    flag: str
    key: str
    value: str


class Step(Record, frozen=True, kw_only=True):
    """One recipe that the job runs, by its `tags`.

    `inputs` are those beside the inputs of the whole job, `amended` those that --adr adds. `gives` says what it leaves
    among the results, or provides. `duration` is None where it is not known; `expected` is how long a step may be
    expected to take where `duration` is the least. A step that fails ends the job: at once, or with `report_first`
    after the report. Where `without` says what the job then lacks, it goes on if only the source of something cannot be
    reached. One that `fetches` needs neither a server nor a GPU: --prepare takes it too. A step without `product` is
    taken by each command: it takes seconds, or its recipe keeps what it made.
    """

    name: str
    tags: str
    inputs: Settings = Settings()
    amended: tuple[StepInput, ...] = ()
    gives: str = ""
    brings: tuple[Brings, ...] = ()
    duration: Duration | None = None
    expected: Duration | None = None
    condition: Condition | None = None
    product: Product | None = None
    checks: tuple[Check, ...] = ()
    without: str = ""
    fetches: bool = False
    report_first: bool = False
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which `--adr` changes it."""
        return names_of(self.tags)

    @property
    def key(self) -> str:
        """The step's name as --rerun takes it: server.performance."""
        return key_of(self.name)

    def env(self, inputs: Settings | None = None) -> dict[str, str]:
        """Return the inputs as the recipe reads them; `inputs` are the step's own with all values filled in."""
        return env_of(inputs or self.inputs) | {amendment.key: amendment.value for amendment in self.amended}


def point_name(number: int) -> str:
    """Return the name of the step that measures a point of a curve, counted from 1."""
    return f"point {number}"


def reruns(text: str) -> frozenset[str]:
    """Return the keys of the steps that --rerun names; ALL in their place stands for every step."""
    word = text.lower()
    if word in _ALL or word in _NONE:
        return frozenset({ALL} if word in _ALL else ())
    return frozenset(filter(None, map(str.strip, word.split(","))))


def key_of(name: str) -> str:
    """Return the name of a step as --rerun takes it."""
    return name.lower().replace(": ", ".").replace(" ", ".")


def names_of(tags: str) -> tuple[str, ...]:
    """Return the names by which `--adr` changes the recipe with these tags."""
    words = {word.partition(".")[0] for word in tags.replace(*_SIMULATED).split(",")}
    fitting = [recipe for recipe in RECIPES.values() if set(recipe.split(",")) <= words]
    recipe = max(fitting, key=lambda tags: tags.count(","), default="")
    return tuple(name for name, other in RECIPES.items() if other == recipe)


@dataclass(frozen=True, kw_only=True)
class ScheduledJob(ABC):
    """A job that is executed by its schedule; its results go to the folder `out`.

    A step is tried `attempts` times where the server that the job started ends during it. `rerun` are the steps that
    are taken again, by their keys. `serve` is where the live view is served, `notes` are shown before the first step.
    """

    execution_mode: ExecutionMode
    out: Path
    attempts: int
    rerun: frozenset[str] = frozenset()
    serve: Address | None = None
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The job in a few words."""

    @property
    @abstractmethod
    def notices(self) -> list[str]:
        """Statements that every page and record of the job must carry, as far as they are known before its runs."""

    @property
    def rehearsal(self) -> bool:
        """Return True for a rehearsal: its runs are shorter than the rules ask."""
        return self.execution_mode is ExecutionMode.TEST

    def reruns(self, step: str) -> bool:
        """Return True if a step is made again even if an earlier command left its product."""
        return not self.rerun.isdisjoint((ALL, key_of(step)))

"""The records in the files under data/: rounds, scenarios, rules of divisions, and the families of benchmarks.

An entry states a fact and the cells that it holds for.
"""

from enum import StrEnum
from typing import Literal

from cm4vllm.common.records import Record
from cm4vllm.rules.assets import Catalogue
from cm4vllm.rules.vocabulary import Category, Division, Mode, Scenario


class Arrivals(StrEnum):
    """The arrival of queries from LoadGen: all samples at once, by a Poisson process, or one after the other."""

    AT_ONCE = "at-once"
    POISSON = "poisson"
    ONE_BY_ONE = "one-by-one"


class RateUse(StrEnum):
    """LoadGen's use of the target rate: to compute the size of the run, to pace its queries, or none."""

    SIZES = "sizes"
    PACES = "paces"
    NONE = "none"


class Media(StrEnum):
    """The kind of input that a sample carries beside its prompt."""

    AUDIO = "audio"
    IMAGE = "image"


class Logged(StrEnum):
    """The form in which LoadGen's accuracy log holds an answer, as the reference gives it.

    TOKENS are int32 token ids, TEXT is UTF-8, LABELS are int64 indices of characters.
    """

    TOKENS = "tokens"
    TEXT = "text"
    LABELS = "labels"


class Seeds(Record, frozen=True, kw_only=True):
    """LoadGen's three seeds, unsigned 64-bit integers, compared exactly by the checker."""

    qsl: int
    sample_index: int
    schedule: int


class LoadGenWheel(Record, frozen=True, kw_only=True):
    """Versions of mlcommons-loadgen: `wheel` is installed, any from `first` to `last` has the round's seeds.

    With `repeats_whole_datasets` it generates an Offline performance run of exactly the samples of the dataset
    once for each sample, in memory: their square.
    """

    wheel: str
    first: str
    last: str
    repeats_whole_datasets: bool = False


class Checker(Record, frozen=True, kw_only=True):
    """An official checker: a commit of mlcommons/inference, and how it is started from tools/submission.

    `respelled_is_inferred` says that it marks the result in a scenario's folder of another spelling as inferred.
    `own_fault` is the last line of a known fault of its own, which is no finding on a tree; empty where none is known.
    """

    name: str
    commit: str
    argv: tuple[str, ...]
    respelled_is_inferred: bool = False
    own_fault: str = ""


class PowerPrograms(Record, frozen=True, kw_only=True):
    """The official power client and server of a round: a commit of mlcommons/power-dev that its checkers accept.

    `section` is that of the server's configuration file in which the first analyzer is described. `supplies` is where
    a tree has the file of a system's power supplies, below the submitter's folder; empty where a round has none.
    `python_below` is the first Python with which the programs do not start: they compare what inspect.getsource returns
    with their files, and since 3.13 it returns a line end for an empty one.
    """

    commit: str
    section: str
    python_below: tuple[int, int]
    supplies: str = ""


class RoundTerms(Record, frozen=True, kw_only=True):
    """One round: LoadGen's seeds and wheel, the layout of its submission trees, its checkers and power programs.

    Recipes take the round by its `variation`; the `default` one where none is named. `builds` are versions that LoadGen
    states where it was built from the sources of the round. `test_seeds` are those of compliance tests that have seeds
    of their own. `sources` names the place that states each.
    """

    name: str
    variation: str
    seeds: Seeds
    loadgen: LoadGenWheel
    layout: str
    checkers: tuple[Checker, ...]
    power: PowerPrograms
    sources: dict[str, str]
    builds: tuple[str, ...] = ()
    test_seeds: dict[str, Seeds] = {}
    default: bool = False


class ScenarioEntry(Record, frozen=True, kw_only=True):
    name: Scenario
    loadgen: str
    arrivals: Arrivals
    first_token: bool
    rate: RateUse
    early_stopping: bool
    min_queries: int
    min_duration_ms: int
    source: str


class DivisionRule(Record, frozen=True, kw_only=True):
    """A rule of some divisions, in our words, with the place that states it; no categories stand for all."""

    code: str
    divisions: tuple[Division, ...]
    text: str
    source: str
    categories: tuple[Category, ...] = ()


class Entry(Record, frozen=True, kw_only=True):
    """A fact and the cells that it holds for: an empty or absent selector stands for all.

    `since` and `until` are rounds, both included.
    """

    source: str
    since: str = ""
    until: str = ""
    benchmarks: tuple[str, ...] = ()
    scenarios: tuple[Scenario, ...] = ()
    modes: tuple[Mode, ...] = ()


class BenchmarkEntry(Entry, frozen=True, kw_only=True):
    """A benchmark: its name, other names that its results' folder may have, and parts of names that identify it."""

    name: str
    aliases: tuple[str, ...] = ()
    name_parts: tuple[str, ...] = ()


class RequiredEntry(Entry, frozen=True, kw_only=True):
    """The scenarios that a closed result on a system of one of the types needs: all of these, and one of those."""

    system_types: tuple[str, ...]
    all_of: tuple[Scenario, ...]
    one_of: tuple[Scenario, ...] = ()


class LoadGenEntry(Entry, frozen=True, kw_only=True):
    name: str


class LimitsEntry(Entry, frozen=True, kw_only=True):
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None


class SamplesEntry(Entry, frozen=True, kw_only=True):
    count: int


class DurationEntry(Entry, frozen=True, kw_only=True):
    milliseconds: int


class FilesEntry(Entry, frozen=True, kw_only=True):
    """Files that an accuracy run publishes: a folder beside its logs, and the names in it without their endings."""

    folder: str
    names: tuple[str, ...]


class UserConfEntry(Entry, frozen=True, kw_only=True):
    setting: Literal["performance_sample_count_override", "min_query_count"]
    value: int


class LengthsEntry(Entry, frozen=True, kw_only=True):
    """The least and the most new tokens of an answer, as divisions state them that have the rule LENGTHS."""

    min_tokens: int
    max_tokens: int


class GenerationEntry(LengthsEntry, frozen=True, kw_only=True):
    """The sampling parameters of the reference implementation, with its lengths of answers."""

    temperature: float
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    beams: int = 1
    reasoning_effort: str = ""


class AnswerEntry(Entry, frozen=True, kw_only=True):
    """The mean tokens of an answer of the benchmark's own model, where no target states them."""

    mean_tokens: int


class ColumnEntry(Entry, frozen=True, kw_only=True):
    """A column that the dataset has beyond prompt, tokens and reference, and the values that it may hold: any without.

    With `in_part` a value stands somewhere in what the column holds, in any case.
    """

    name: str
    values: tuple[str, ...] = ()
    in_part: bool = False


class StopEntry(Entry, frozen=True, kw_only=True):
    """A sequence of tokens that ends the answers to the samples with these columns; `text` is what they stand for."""

    tokens: tuple[int, ...]
    text: str
    where: dict[str, str]


class LoggedEntry(Entry, frozen=True, kw_only=True):
    """The form of logged answers; `labels` are the characters that LABELS number, others are left out."""

    form: Logged
    labels: str = ""


class PromptEntry(Entry, frozen=True, kw_only=True):
    """The messages of a sample that is asked for in a conversation: `user` has {title}, {description}, {categories}.

    `name` is the first round that has it. `lists` says how a list stands in it: as Python prints it, or as JSON.
    """

    name: str
    system: str
    user: str
    lists: Literal["python", "json"]


class RefusedEntry(Entry, frozen=True, kw_only=True):
    """Scenarios that are not run, with the reason: no result of LoadGen could pass."""

    why: str


class ServerOptionEntry(Entry, frozen=True, kw_only=True):
    """An option of `vllm serve` without which a server of the benchmark would break a rule."""

    name: str
    value: str


class Speculation(Entry, frozen=True, kw_only=True):
    """Speculative decoding that a benchmark allows; None where a number is the submitter's."""

    algorithm: str
    steps: int | None = None
    topk: int | None = None


class TargetEntry(Entry, frozen=True, kw_only=True):
    """A bound of accuracy: `lower` x `reference`, and `upper` x `upper_reference` (or `reference`).

    `tolerance` is in percent, between the scores of a compliance test and of the accuracy run.
    """

    metric: str
    label: str
    reference: float
    lower: float | None = None
    upper: float | None = None
    upper_reference: float | None = None
    total: bool = False
    tolerance: float = 1.0


class ComplianceEntry(Entry, frozen=True, kw_only=True):
    tests: tuple[str, ...]


class Family(Record, frozen=True, kw_only=True):
    """The benchmarks of one model, one file under data/benchmarks/.

    `media` is what a sample carries beside its prompt, of `longest_media_s` seconds at most. `token_latencies` says
    that LoadGen counts tokens, and judges the first one. `refused` are scenarios that are not run.
    `least_issued` are the samples of an Offline query where they are not those of the dataset. What only a run needs is
    left out of the files of benchmarks that cm4vllm does not run: `language_model` is false for those of other models.
    `assets` are what the catalogue does not have.
    """

    model: str
    benchmarks: tuple[BenchmarkEntry, ...]
    required: tuple[RequiredEntry, ...]
    samples: tuple[SamplesEntry, ...]
    language_model: bool = True
    media: Media | None = None
    longest_media_s: float | None = None
    token_latencies: bool = True
    logged: tuple[LoggedEntry, ...] = ()
    server_options: tuple[ServerOptionEntry, ...] = ()
    prompts: tuple[PromptEntry, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()
    loadgen: tuple[LoadGenEntry, ...] = ()
    scorer: str = ""
    least_issued: tuple[SamplesEntry, ...] = ()
    min_queries: tuple[SamplesEntry, ...] = ()
    min_durations: tuple[DurationEntry, ...] = ()
    accuracy_files: tuple[FilesEntry, ...] = ()
    limits: tuple[LimitsEntry, ...] = ()
    user_conf: tuple[UserConfEntry, ...] = ()
    generation: tuple[GenerationEntry, ...] = ()
    answers: tuple[AnswerEntry, ...] = ()
    closed_lengths: tuple[LengthsEntry, ...] = ()
    columns: tuple[ColumnEntry, ...] = ()
    stop_sequences: tuple[StopEntry, ...] = ()
    speculative_decoding: tuple[Speculation, ...] = ()
    first_token_reported_again: bool = True
    targets: tuple[TargetEntry, ...] = ()
    compliance: tuple[ComplianceEntry, ...] = ()
    assets: Catalogue | None = None

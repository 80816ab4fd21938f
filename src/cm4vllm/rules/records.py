"""The results of a lookup of MLPerf's rules: targets, limits, generation, and the terms of rounds, benchmarks and runs.

They travel in the settings and in the records of runs; the numbers in them are those of the tables.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from cm4vllm.common.records import Record
from cm4vllm.rules.entries import Arrivals, LoadGenWheel, Logged, Media, RateUse, Seeds
from cm4vllm.rules.vocabulary import Category, Mode, Scenario


class AccuracyTarget(Record, frozen=True, kw_only=True):
    """The range that a closed result must reach: `lower` <= `metric` <= `upper`; None stands for no bound.

    `label` is the key in accuracy.txt, `metric` the checker's name of it. `reference` is what the reference
    implementation reached. Open results may miss a target; then they say so. A `total` is summed over the samples, and
    its target is set for all of the benchmark's. `tolerance` is the percent by which the score of a compliance test may
    differ from that of the accuracy run.
    """

    metric: str
    label: str
    reference: float
    lower: float | None
    upper: float | None
    source: str
    total: bool = False
    tolerance: float = 1.0

    def met(self, value: float, *, whole: bool = True) -> bool | None:
        """Return True if `value` meets the target; None for a total over a part of the dataset, which has no target."""
        if self.total and not whole:
            return None
        return (self.lower is None or value >= self.lower) and (self.upper is None or value <= self.upper)


class LatencyLimits(Record, frozen=True, kw_only=True):
    """99th percentiles in ms that a result must stay below; None where there is no limit.

    `latency_ms` is of a whole answer, for benchmarks without token latencies.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    latency_ms: float | None
    source: str

    @property
    def by_name(self) -> dict[str, float]:
        """The limits in ms by the names of what they limit: TTFT, TPOT, or the latency of a whole answer."""
        values = {"TTFT": self.ttft_ms, "TPOT": self.tpot_ms, "latency": self.latency_ms}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def waiting(self) -> tuple[str, float] | None:
        """The limit that a query which waits for its answer meets first, by name: of its first token, if any."""
        return next(((name, self.by_name[name]) for name in ("TTFT", "latency") if name in self.by_name), None)


class Generation(Record, frozen=True, kw_only=True):
    """Sampling parameters and length limits in tokens, as the reference implementation sets them.

    `lengths_source` states the lengths where it is not the reference. `max_tokens` 0 stands for no limit but the
    server's context, `temperature` 0 is greedy decoding. None stands for a parameter that the reference leaves to its
    engine.
    """

    max_tokens: int
    min_tokens: int
    temperature: float
    source: str
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    beams: int = 1
    reasoning_effort: str = ""
    lengths_source: str = ""

    @property
    def greedy(self) -> bool:
        """Return True if the most likely token is taken each time: also where the choice is cut to that token."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0


class StopSequence(Record, frozen=True, kw_only=True):
    """A sequence of tokens that ends an answer, which keeps it, and its text.

    It holds for the samples with these values in columns of the dataset.
    """

    tokens: tuple[int, ...]
    text: str
    where: dict[str, str]

    def ends(self, row: Mapping[str, object]) -> bool:
        """Return True if the sequence ends the answer to this row of the dataset."""
        return all(row.get(name) == value for name, value in self.where.items())


class Column(Record, frozen=True, kw_only=True):
    """A column that a sample is scored by: it holds one of `values`, with `in_part` beside more and in any case.

    Without values it holds anything.
    """

    values: tuple[str, ...]
    in_part: bool = False

    def takes(self, value: object) -> bool:
        """Return True if the column may hold `value`."""
        if not self.values:
            return True
        return any(word in str(value).lower() for word in self.values) if self.in_part else value in self.values


class ChatPrompt(Record, frozen=True, kw_only=True):
    """The two messages of a sample that is asked for in a conversation. `name` is the first round that has them."""

    name: str
    system: str
    user: str
    lists: Literal["python", "json"]

    def messages(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """Return the text of the system and of the user, as the reference writes them of a row of the dataset."""
        categories = row["categories"]
        listed = json.dumps(categories) if self.lists == "json" else str(categories)
        return self.system, self.user.format(title=row["title"], description=row["description"], categories=listed)


class RequiredScenarios(Record, frozen=True, kw_only=True):
    """The scenarios that a closed result on a system of `system_type` needs: `all_of`, and one of `one_of` if any."""

    system_type: str
    all_of: tuple[Scenario, ...]
    one_of: tuple[Scenario, ...]
    source: str


class BenchmarkTerms(Record, frozen=True, kw_only=True):
    """One benchmark in one round.

    `model` is the reference's. `scenarios` are those that a result may have, those of `required` for every type of
    system. `samples` is the size of the accuracy dataset. `min_tokens` and `max_tokens` hold every answer of every mode
    (0 where the rules state none). `loadgen` says whether the rules state how LoadGen measures the text that it
    generates; else it is no `language_model`, or the endpoints harness measures it.
    `columns` are those of the dataset beyond prompt, tokens and reference; a sample is scored by them.
    `performance_samples` is the size of the dataset that performance runs have of their own, 0 where it is the same.
    `accuracy_files` names by folder the files that an accuracy run publishes beside its logs, without their endings.
    A sample carries `media` of `longest_media_s` seconds at most, None for text alone; `server_options` are those of
    `vllm serve` that the rules then ask for. `refused` are scenarios that are not run, each with the reason.
    """

    round: str
    name: str
    model: str
    category: Category
    scenarios: tuple[Scenario, ...]
    required: tuple[RequiredScenarios, ...]
    samples: int
    max_tokens: int
    scorer: str
    compliance: tuple[str, ...]
    loadgen: bool
    columns: dict[str, Column] = {}
    performance_samples: int = 0
    language_model: bool = True
    accuracy_files: dict[str, tuple[str, ...]] = {}
    media: Media | None = None
    longest_media_s: float | None = None
    server_options: dict[str, str] = {}
    refused: dict[Scenario, str] = {}

    def required_on(self, system_type: str) -> RequiredScenarios | None:
        """Return the scenarios that a closed result on a system of this type needs; None where the benchmark has none.

        A system of both types is `datacenter,edge` or `edge,datacenter`.
        """
        kind = ",".join(sorted(system_type.split(",")))
        return next((entry for entry in self.required if entry.system_type == kind), None)


class Terms(Record, frozen=True, kw_only=True):
    """All that the rules say of one run: of a round, a benchmark, a scenario and a mode.

    `loadgen_name` and `loadgen_scenario` are LoadGen's own: Interactive is its Server under another name.
    `first_token` says that LoadGen is notified of the first token of an answer, which is then streamed;
    `first_token_reported_again` that the whole answer is reported with its first token, as most references do.
    `samples` is the size of this mode's dataset: an accuracy run covers it, a performance run draws from it.
    `min_samples` is the least number of samples of a run that LoadGen issues at once, 1 elsewhere. `min_queries` is the
    least number of queries, which decides where there is no `early_stopping`.
    `user_conf` holds settings that the round's mlperf.conf lacks. `min_duration_ms` is the least configured duration.
    `stops` end the answers to some samples. Benchmarks of other than language models have no lengths of answers.
    `media` is what a sample carries beside its prompt. `token_latencies` says that LoadGen counts tokens. `logged` is
    the form of the answers in the accuracy log, `labels` the characters that it numbers. `mean_tokens` is the mean
    length of the answers of the benchmark's own model in tokens, 0 where it is not known. `prompt` is how a sample is
    asked for in a conversation.
    """

    round: str
    benchmark: str
    scenario: Scenario
    mode: Mode
    loadgen_name: str
    loadgen_scenario: str
    arrivals: Arrivals
    rate: RateUse
    first_token: bool
    first_token_reported_again: bool
    samples: int
    min_samples: int
    min_duration_ms: int
    user_conf: dict[str, int]
    generation: Generation
    limits: LatencyLimits | None
    targets: tuple[AccuracyTarget, ...]
    scorer: str
    seeds: Seeds
    loadgen: LoadGenWheel
    layout: str
    compliance: tuple[str, ...]
    stops: tuple[StopSequence, ...] = ()
    min_queries: int = 1
    early_stopping: bool = False
    media: Media | None = None
    token_latencies: bool = True
    logged: Logged = Logged.TOKENS
    labels: str = ""
    mean_tokens: float = 0.0
    prompt: ChatPrompt | None = None

    @property
    def paced(self) -> bool:
        """Return True if LoadGen issues queries at a rate of its own, independent of the server's answers."""
        return self.arrivals is Arrivals.POISSON

    @property
    def at_once(self) -> bool:
        """Return True if LoadGen issues all samples in one query, so that the client limits the requests in flight."""
        return self.arrivals is Arrivals.AT_ONCE

    @property
    def one_by_one(self) -> bool:
        """Return True if each query follows the answer to the previous query."""
        return self.arrivals is Arrivals.ONE_BY_ONE

    @property
    def needs_rate(self) -> bool:
        """Return True if a target rate must be known: for the queries' pace, or for the size of a performance run."""
        return self.rate is RateUse.PACES or (self.rate is RateUse.SIZES and self.mode is Mode.PERFORMANCE)

"""The large language models of MLPerf Inference: what a run of each must be like, and what its results must reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.rules.scenarios import Scenario

__all__ = ["BENCHMARKS", "AccuracyTarget", "Benchmark", "LatencyLimit", "benchmark_named"]


@dataclass(frozen=True)
class AccuracyTarget:
    """What a closed result must reach: `metric` >= `lower`, and <= `upper` where there is one.

    `label` is the key in accuracy.txt, `metric` the name the checker gives it (constants.py, `accuracy-target` and
    `accuracy-upper-limit`). Open results may miss it; then they say so. A `total` is summed over the samples, and its
    target is set for all of the benchmark's.
    """

    metric: str
    label: str
    lower: float
    upper: float | None = None
    total: bool = False

    def met(self, value: float, *, whole: bool = True) -> bool | None:
        """Tell whether `value` reaches it; None for a total over a part of the dataset: its target is set for all."""
        if self.total and not whole:
            return None
        return value >= self.lower and (self.upper is None or value <= self.upper)


@dataclass(frozen=True)
class LatencyLimit:
    """99th percentiles in ms that a Server result must stay below (constants.py, LLM_LATENCY_LIMITS)."""

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of the suite.

    `loadgen_name` is the name under which loadgen/mlperf.conf knows it: LoadGen accepts an unknown name silently and
    then measures with wrong limits. `samples` is the size of the dataset, which an accuracy run covers whole.
    Generation is greedy with `max_tokens`; `min_tokens` is the reference's, raised by us only for models that may end
    at once, because LoadGen cannot compute TPOT from fewer than two tokens.
    `first_token_told_again` says what the reference tells LoadGen when an answer is whole, where its first token was
    told before: all tokens (SUT_VLLM.py, SUT_API.py, deepseek-r1/mlperf/server_sut.py), or all but the first, which
    lowers n_tokens by one (gpt-oss-120b/mlperf/server_sut.py, _send_final_response).
    """

    name: str
    rounds: tuple[str, ...]
    loadgen_name: str
    samples: int
    max_tokens: int
    min_tokens: int
    targets: tuple[AccuracyTarget, ...]
    limits: Mapping[Scenario, LatencyLimit]
    system_type: str = "datacenter"
    scorer: str = "rouge"
    first_token_told_again: bool = True
    refused: str = ""


_ROUGE_LLAMA2_99 = (
    AccuracyTarget("ROUGE1", "rouge1", 43.986888),
    AccuracyTarget("ROUGE2", "rouge2", 21.814848),
    AccuracyTarget("ROUGEL", "rougeL", 28.330038),
    AccuracyTarget("TOKENS_PER_SAMPLE", "tokens_per_sample", 265.005, 323.895),
)
_ROUGE_LLAMA2_999 = (
    AccuracyTarget("ROUGE1", "rouge1", 44.3867688),
    AccuracyTarget("ROUGE2", "rouge2", 22.0131648),
    AccuracyTarget("ROUGEL", "rougeL", 28.5875838),
    AccuracyTarget("TOKENS_PER_SAMPLE", "tokens_per_sample", 265.005, 323.895),
)
_ROUGE_LLAMA31_8B = (
    AccuracyTarget("ROUGE1", "rouge1", 38.391408),
    AccuracyTarget("ROUGE2", "rouge2", 15.748425),
    AccuracyTarget("ROUGEL", "rougeL", 24.250743),
    AccuracyTarget("ROUGELSUM", "rougeLsum", 35.43507),
    AccuracyTarget("GEN_LEN", "gen_len", 7350879.6, 8984408.4, total=True),
)
_NO_SCORER = "its accuracy is an exact match by a grader of its own, which is not built yet"

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("llama3.1-8b", ("v5.1", "v6.0", "v6.1"), "llama3_1-8b", 13368, 128, 1, _ROUGE_LLAMA31_8B,
                  {Scenario.SERVER: LatencyLimit(2000, 100)}),
        Benchmark("llama2-70b-99", ("v4.1", "v5.0", "v5.1", "v6.0"), "llama2-70b", 24576, 1024, 1, _ROUGE_LLAMA2_99,
                  {Scenario.SERVER: LatencyLimit(2000, 200)},
                  refused="its dataset and its way of counting tokens per sample are not built yet"),
        Benchmark("llama2-70b-99.9", ("v4.1", "v5.0", "v5.1", "v6.0", "v6.1"), "llama2-70b", 24576, 1024, 1,
                  _ROUGE_LLAMA2_999, {Scenario.SERVER: LatencyLimit(2000, 200)},
                  refused="its dataset and its way of counting tokens per sample are not built yet"),
        Benchmark("deepseek-r1", ("v5.1", "v6.0", "v6.1"), "deepseek-r1", 4388, 20000, 1, (),
                  {Scenario.SERVER: LatencyLimit(2000, 80)}, scorer="exact_match", refused=_NO_SCORER),
        Benchmark("gpt-oss-120b", ("v6.0", "v6.1"), "gpt-oss-120b", 4395, 32768, 1, (),
                  {Scenario.SERVER: LatencyLimit(3000, 80)}, scorer="exact_match", first_token_told_again=False,
                  refused=_NO_SCORER),
    )
}  # fmt: skip


def benchmark_named(name: str, round_name: str) -> Benchmark:
    """Return the benchmark `name` as round `round_name` has it.

    Raises UsageError when it is unknown, not in that round, or cannot be run yet.
    """
    if name not in BENCHMARKS:
        raise UsageError(f"unknown model {name!r}", remedy=nearest(name, BENCHMARKS))
    found = BENCHMARKS[name]
    in_round = [b.name for b in BENCHMARKS.values() if round_name in b.rounds and not b.refused]
    if round_name not in found.rounds:
        raise UsageError(f"model {name} is not in round {round_name}", remedy=f"that round has {', '.join(in_round)}")
    if found.refused:
        raise UsageError(f"model {name} cannot be run yet", cause=found.refused,
                         remedy=f"that round's {', '.join(in_round)} can")
    return found

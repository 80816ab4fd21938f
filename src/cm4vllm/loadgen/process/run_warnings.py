"""Warnings about a run that has just ended, each with its cause, from the record of the run."""

from __future__ import annotations

from collections.abc import Iterator

from cm4vllm.loadgen.client.client_doubts import Doubt, doubts, slowed
from cm4vllm.loadgen.records import RunRecord

__all__ = ["run_warnings"]


def run_warnings(run: RunRecord) -> list[str]:
    """Return the warnings on which the reader can act, one sentence each; empty if there are none.

    The report has the others as well, and those on the precision of a rehearsal's figures.
    """
    warnings = (*doubts(run), *_limited(run), *_slower(run), *_preemptions(run), *_finish_reasons(run))
    known = (doubt for doubt in warnings if doubt.remedy and not (doubt.precision and run.settings.rehearsal))
    return [*run.faults, *(doubt.text for doubt in known)]


def _limited(run: RunRecord) -> Iterator[Doubt]:
    """Give the parts that were slowed down for other reasons than heat, which makes a measurement doubtful."""
    for counter, amount in (run.machine_load.throttled if run.machine_load else {}).items():
        if "temperature" not in counter:
            yield Doubt(slowed(counter, amount), "nvidia-smi -q -d POWER shows the limit", precision=True)


def _slower(run: RunRecord) -> Iterator[Doubt]:
    """Say when the server lost speed that the number of its requests does not explain."""
    speed = run.server_metrics.speed if run.server_metrics else None
    if speed is not None and speed.slowed:
        yield Doubt(
            f"{speed.words}. Longer prompts or answers can be the cause; where they are not, other programs, the host "
            "of a virtual machine, or heat took the machine's speed",
            "repeat the run",
            precision=True,
        )


def _preemptions(run: RunRecord) -> Iterator[Doubt]:
    metrics = run.server_metrics
    if metrics is not None and metrics.preemptions:
        yield Doubt(
            f"the server preempted {metrics.preemptions:,} requests, whose tokens it computed twice; its KV cache "
            f"was up to {metrics.kv_cache_usage_max:.0%} full",
            "give it a larger KV cache (--gpu_memory_utilization, --kv_cache_space) or fewer sequences at a time "
            "(--max_num_seqs)",
        )


def _finish_reasons(run: RunRecord) -> Iterator[Doubt]:
    """Say when more answers were cut off at the greatest length than the benchmark's mean length allows.

    Were a share p of the answers as long as they may be, their mean length would be p times that at least.
    """
    reasons = run.client.finish_reasons
    target = next(
        (target_of for target_of in run.settings.terms.targets if target_of.metric == "TOKENS_PER_SAMPLE"), None
    )
    if reasons is None or target is None or not (answers := reasons.stop + reasons.length):
        return
    most = (target.upper or target.reference) / run.settings.max_tokens
    share = reasons.length / answers
    if share > most:
        yield Doubt(
            f"{reasons.length:,} of {answers:,} answers ended at their greatest length of "
            f"{run.settings.max_tokens:,} tokens (finish_reason length), more than the {most:.0%} that the "
            f"benchmark's {target.reference:,.0f} tokens per sample allow",
            "see whether the model's generation_config.json names the tokens that end an answer",
        )

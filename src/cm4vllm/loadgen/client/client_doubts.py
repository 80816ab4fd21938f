"""Reasons to doubt that the client could measure the server on this machine, from the record of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cm4vllm.hardware.throttling import TIMES
from cm4vllm.loadgen.records import ADDED_TTFT, HEADROOM, ClientRecord, MachineLoad, RunRecord, RunSettings, SelfCheck
from cm4vllm.rules import Mode

__all__ = ["Doubt", "client_doubts", "doubts", "headroom", "slowed", "times_the_load"]

#: The parts of the machine that others and the hypervisor may take during a run.
OTHERS, STOLEN = 0.05, 0.10


@dataclass(frozen=True)
class Doubt:
    """A reason to doubt a run, with its remedy, which is empty where the reader can do nothing.

    `precision` says that the figures may be inexact and nothing else is wrong: no defect of a rehearsal, whose figures
    are no result.
    """

    words: str
    remedy: str = ""
    precision: bool = False

    @property
    def text(self) -> str:
        """The reason and the remedy in one sentence."""
        return self.words + (f": {self.remedy}" if self.remedy else "")


#: The remedy for a client that shares its processors with the server or with other programs.
_MORE_ROOM = "run it on a machine of its own (--api_server), or end other programs"


def headroom(run: RunRecord) -> float | None:
    """Return how many times its load the client could have carried; None where it was not checked.

    The load is the target or the load that was reached, whichever is greater, in queries as long as those of the
    self-check.
    """
    check, client = run.client.self_check, run.client
    if check is None:
        return None
    asked = 1 - client.kept / client.completed if client.completed else 1.0
    return times_the_load(
        check, run.settings, round(asked * client.completed), round(asked * client.completion_tokens), run.duration_s
    )


def times_the_load(check: SelfCheck, settings: RunSettings, done: int, tokens: int, seconds: float) -> float | None:
    """Return how many times the load the client can carry, where `done` samples with `tokens` took so many seconds."""
    if seconds <= 0:
        return None
    load = max(max(done, tokens / check.tokens) / seconds, settings.expected_qps)
    return check.capacity_qps / load if load else None


def client_doubts(run: RunRecord) -> list[str]:
    """Return the reasons to doubt the client's measurement, one sentence each; empty where there is none."""
    return [doubt.text for doubt in doubts(run)]


def doubts(run: RunRecord) -> Iterator[Doubt]:
    """Give the reasons to doubt the client's measurement, each with its remedy."""
    room = headroom(run)
    if room is None:
        yield Doubt("the client was not checked before the run", precision=True)
    elif room < HEADROOM:
        yield Doubt(
            f"the client may have been the bottleneck: it can carry {room:.2f} times the load of this run, and "
            f"should be able to carry {HEADROOM} times as much",
            _MORE_ROOM,
            precision=True,
        )
    yield from _machine_doubts(run)
    limits = run.settings.terms.limits
    if limits is None or limits.ttft_ms is None:
        return
    allowed = ADDED_TTFT * limits.ttft_ms
    check = run.client.self_check
    if check and check.added_ttft and check.added_ttft.p99_ms > allowed:
        yield Doubt(
            f"in its self-check the client added {check.added_ttft.p99_ms:.1f} ms to the 99th percentile of TTFT, "
            f"more than {ADDED_TTFT:.0%} of the limit of {limits.ttft_ms:g} ms",
            _MORE_ROOM,
            precision=True,
        )
    if run.client.at_once > run.client.completed / 2:
        yield Doubt(
            f"{run.client.at_once} of {run.client.completed} answers came whole, not token by token: a "
            "proxy in front of the server collects them, so that TTFT is the time of a whole answer, and TPOT does not "
            "describe the server",
            "configure it to pass them on at once (nginx: proxy_buffering off)",
        )
    late = _late_ms(run.client)
    if late > allowed:
        yield Doubt(
            f"during the run the client was {late:.1f} ms late (99th percentile), more than {ADDED_TTFT:.0%} of the "
            f"TTFT limit of {limits.ttft_ms:g} ms",
            _MORE_ROOM,
            precision=True,
        )


def _machine_doubts(run: RunRecord) -> Iterator[Doubt]:
    load = run.machine_load
    if load is None or run.settings.mode is not Mode.PERFORMANCE:
        return
    for number, node in enumerate(run.node_loads, 1):
        yield from _slowed_machine(node, f"node {number} of the server")
    if load.others is not None and load.others > OTHERS:
        yield Doubt(
            f"during the run other processes used {load.others:.0%} of this machine's {load.processors} processors: "
            "server and client had the rest",
            "end them and run again",
            precision=True,
        )
    yield from _slowed_machine(load, "this machine")


def _slowed_machine(load: MachineLoad, machine: str) -> Iterator[Doubt]:
    """Say what kept the processors of a machine from working, or from working as fast as they can."""
    if load.stolen > STOLEN:
        yield Doubt(
            f"during the run the hypervisor gave {load.stolen:.0%} of the processors of {machine} to other machines",
            "run on one that is not shared",
            precision=True,
        )
    for counter, amount in load.throttled.items():
        if "temperature" in counter:
            yield Doubt(
                f"{slowed(counter, amount)}: {machine} was too hot to run as fast as it can",
                "see to its cooling",
                precision=True,
            )


def slowed(counter: str, amount: float) -> str:
    """Return in words that a processor or GPU was slowed down."""
    where, _, cause = counter.removesuffix(TIMES).partition(": ")
    how = f"{amount:,.0f} times" if counter.endswith(TIMES) else f"for {amount:,.1f} s"
    return f"during the run {where} was slowed down by {cause} {how}"


def _late_ms(client: ClientRecord) -> float:
    """Return the greatest 99th percentile of the issue lags and the event loops' lags."""
    return max(
        (lag.p99_ms for process in client.processes for lag in (process.issue_lag, process.loop_lag) if lag),
        default=0.0,
    )

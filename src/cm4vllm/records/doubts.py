"""Reasons to doubt a run, from its record: that the client could measure the server, and what the run itself showed."""

from collections.abc import Iterator
from dataclasses import dataclass

from cm4vllm.records.client import ADDED_TTFT, HEADROOM, ClientRecord, SelfCheck
from cm4vllm.records.run import QUOTA, TIMES, MachineLoad, RunRecord, RunSettings, fewer_open_requests
from cm4vllm.records.server import Prompts
from cm4vllm.rules import Mode

#: The parts of the machine that others and the hypervisor may take during a run.
OTHERS, STOLEN = 0.05, 0.10
#: Seconds after which the system sends again what a full queue of a listening server dropped (Linux: 1 s).
SLOW_CONNECT_S = 0.9
#: The error of TPOT by tokens that come with the first one that is not worth a word.
TPOT_ERROR = 0.02
#: Milliseconds from the last token to the end that are more than the reading of a stream takes.
LATE_END_MS = 10.0
#: Tokens by which the texts of prompts may run together with those of a chat template.
TEMPLATE_SPREAD = 4


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
    return [doubt.text for doubt in _doubts(run)]


def _doubts(run: RunRecord) -> Iterator[Doubt]:
    """Yield the reasons to doubt the client's measurement, each with its remedy."""
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
    yield from _prompt_doubts(run)
    yield from _server_doubts(run)
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


def _server_doubts(run: RunRecord) -> Iterator[Doubt]:
    """Yield the reasons to doubt the figures of a performance run that lie in how the server answered."""
    client, settings = run.client, run.settings
    if settings.mode is not Mode.PERFORMANCE:
        return
    if client.longest_connect_s >= SLOW_CONNECT_S:
        yield Doubt(
            f"a connection to the server took {client.longest_connect_s:.1f} s to open ({client.retries:,} requests "
            "were sent again): the queue in which it accepts connections was full",
            "raise the server's listen backlog (net.core.somaxconn), or give it "
            + fewer_open_requests(at_once=settings.terms.at_once),
            precision=True,
        )
    mean = client.completion_tokens / client.completed if client.completed else 0.0
    if not settings.stream_interval or mean <= 1:
        return
    first = client.first_event_tokens
    if first - 1 > TPOT_ERROR * (mean - 1):
        yield Doubt(
            f"the first event of an answer held {first:.1f} tokens (mean), of {mean:.1f} in all: TPOT divides the time "
            f"after it by the tokens after the first one, and is {(first - 1) / (mean - 1):.0%} too low",
            "have the server send each token when it is made, or its first one alone (vLLM: --stream-interval)",
        )
    lag = client.end_lag_ms or 0.0
    if lag > LATE_END_MS:
        yield Doubt(
            f"an answer ended {lag:.1f} ms after its last token (median of a few): TPOT counts that time, "
            f"{lag / (mean - 1):.2f} ms for each token",
            "see what the server, or a gateway before it, does between the last token and the usage",
        )


def _prompt_doubts(run: RunRecord) -> Iterator[Doubt]:
    """Yield a doubt where the server counts more tokens of prompts than were sent, and no chat template explains it."""
    client, dialect = run.client, run.settings.server.dialect
    least, most = client.least_more, client.most_more
    if dialect is None or least is None or most is None:
        return
    if dialect.prompts is Prompts.TEXT and most > 0:
        yield Doubt(
            f"the server counts more tokens of prompts than were sent: {client.more_words}",
            "see whether it begins or ends each text with a token that the text has already (add_bos_token)",
        )
    if dialect.prompts is Prompts.CHAT and most - least > TEMPLATE_SPREAD:
        yield Doubt(
            f"the server counts {least:,} to {most:,} more tokens of a prompt than were sent, where a chat template "
            "adds the same to each: it may have cut some of them",
            "see the length up to which it reads prompts",
        )


def _machine_doubts(run: RunRecord) -> Iterator[Doubt]:
    """Yield the doubts about a performance run that come from the load of the machines."""
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
    """Yield what kept the processors of a machine from working, or from working as fast as they can."""
    if load.stolen > STOLEN:
        yield Doubt(
            f"during the run the hypervisor gave {load.stolen:.0%} of the processors of {machine} to other machines",
            "run on one that is not shared",
            precision=True,
        )
    for counter, amount in load.throttled.items():
        if counter.startswith(QUOTA) and counter.endswith(TIMES):
            lost = load.throttled.get(counter.removesuffix(TIMES))
            yield Doubt(
                f"{_slow_down_in_words(counter, amount)}{f', its threads for {lost:,.1f} s' if lost else ''}: the "
                "control group of server and client was kept from processors that were free",
                "run it in a control group without a CPU quota (docker run without --cpus)",
                precision=True,
            )
        if "temperature" in counter:
            yield Doubt(
                f"{_slow_down_in_words(counter, amount)}: {machine} was too hot to run as fast as it can",
                "see to its cooling",
                precision=True,
            )


def _slow_down_in_words(counter: str, amount: float) -> str:
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


def run_warnings(run: RunRecord) -> list[str]:
    """Return the warnings about a run that has just ended on which the reader can act, one sentence each.

    The report has the others as well, and those on the precision of a rehearsal's figures.
    """
    warnings = (*_doubts(run), *_limits_in_doubt(run), *_slow_server(run), *_preemptions(run), *_finish_reasons(run))
    known = (doubt for doubt in warnings if doubt.remedy and not (doubt.precision and run.settings.rehearsal))
    return [*run.faults, *(doubt.text for doubt in known)]


def _limits_in_doubt(run: RunRecord) -> Iterator[Doubt]:
    """Yield the parts that were slowed down for other reasons than heat, which makes a measurement doubtful."""
    for counter, amount in (run.machine_load.throttled if run.machine_load else {}).items():
        if "temperature" not in counter and not counter.startswith(QUOTA):
            yield Doubt(_slow_down_in_words(counter, amount), "nvidia-smi -q -d POWER shows the limit", precision=True)


def _slow_server(run: RunRecord) -> Iterator[Doubt]:
    """Yield a doubt where the server lost speed that the number of its requests does not explain."""
    speed = run.server_metrics.speed if run.server_metrics else None
    if speed is not None and speed.slowed:
        yield Doubt(
            f"{speed.words}. Longer prompts or answers can be the cause; where they are not, other programs, the host "
            "of a virtual machine, or heat took the machine's speed",
            "repeat the run",
            precision=True,
        )


def _preemptions(run: RunRecord) -> Iterator[Doubt]:
    """Yield a doubt if the server preempted requests."""
    metrics = run.server_metrics
    if metrics is not None and metrics.preemptions:
        yield Doubt(
            f"the server preempted {metrics.preemptions:,} requests, whose tokens it computed twice; its KV cache "
            f"was up to {metrics.kv_cache_usage_max:.0%} full",
            "give it a larger KV cache (--gpu_memory_utilization, --kv_cache_space) or fewer sequences at a time "
            "(--max_num_seqs)",
        )


def _finish_reasons(run: RunRecord) -> Iterator[Doubt]:
    """Yield a doubt where more answers were cut off at the greatest length than the benchmark's mean length allows.

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

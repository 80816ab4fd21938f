"""The client's part of a run's record: what it counted, its processes, its own capacity."""

from __future__ import annotations

from collections import Counter

from cm4vllm.common.records import Record

#: Times the load that the client must be able to carry, so that the server and not the client is what is measured.
HEADROOM = 1.5
#: The part of a TTFT limit that the client may add to it.
ADDED_TTFT = 0.01
#: Tokens of each answer that may be in no text and are no sign of another tokenizer: those that begin and end a message
#: or a channel of it (gpt-oss: 3 to 10).
FORMAT_TOKENS = 16


class Spread(Record, frozen=True, kw_only=True):
    """Times in ms: their median, their 99th percentile, the greatest."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class ProcessRecord(Record, frozen=True, kw_only=True):
    """One process of the client during the run: LoadGen's, or a worker's.

    `issue_lag` is the time between LoadGen's call and the moment a query is written to its connection, in the Server
    scenario; `loop_lag` how late a worker's event loop ran what was due; `end_lag`, of a few streams, the time from the
    last token to the end of the answer, which is the server's. The garbage collector is off: `gc_pauses` is 0 unless
    something turned it on. `watching_s` is the part of `cpu_s` in which LoadGen's process reported how far it is.
    """

    name: str
    cpu_s: float
    wall_s: float
    peak_memory_mib: float
    gc_pauses: int = 0
    gc_longest_ms: float = 0.0
    loop_lag: Spread | None = None
    issue_lag: Spread | None = None
    end_lag: Spread | None = None
    watching_s: float = 0.0

    @property
    def cpu_share(self) -> float:
        """The share of one processor that the process used; 1 is a whole processor."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


class SelfCheck(Record, frozen=True, kw_only=True):
    """The client's own capacity, measured before the run against a server in memory.

    It answers `tokens` tokens a query at once. Server: queries came at `qps`; `added_ttft` is the time to first token,
    all of it the client's and that server's. Offline: queries followed each other as fast as they could.
    `capacity_qps` is what the client can carry: at `qps`, divided by the share of a processor that its busiest process
    used. `server_share` is that of the server in memory: near 1, the capacity is a lower bound.
    """

    workers: int
    tokens: int
    queries: int
    qps: float
    capacity_qps: float
    busiest: str
    busiest_share: float
    server_share: float
    added_ttft: Spread | None = None


class FinishReasons(Record, frozen=True, kw_only=True):
    """Whole answers by their finish_reason: ended by a token, or at max_tokens or the model's length."""

    stop: int
    length: int


class TextCounts(Record, frozen=True, kw_only=True):
    """Answers of a server that gives text alone, counted by its `usage` and by the model's own tokenizer.

    `answers` is the number of answers that were compared: all of an accuracy run, a sample of a performance run, none
    where the server counts none. `apart` is the sum over them of the differences in tokens; where an answer ended by
    itself the server may count one token more, the one that ended it, which is in no text. `more` is the number of
    answers by how many tokens more the server counts: the key -1 stands for fewer, the greatest for all beyond it.
    `first_tokens` is the number of tokens in the first pieces of their texts. `unsent` says how an answer shows that
    tokens were generated and not sent. `prompts_changed` is the number of prompts whose text the tokenizer reads as
    other ids. Earlier versions wrote the last three here, and in `least_more` the least key of `more`.
    """

    answers: int
    server_tokens: int
    tokenizer_tokens: int
    apart: int
    least_more: int = 0
    more: dict[int, int] = {}
    first_tokens: int = 0
    unsent: str = ""
    prompts_changed: int = 0
    prompt_tokens: int = 0
    server_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0

    @classmethod
    def of_answer(cls, server_tokens: int, tokenizer_tokens: int, *, more: int, first: int, unsent: str) -> TextCounts:
        """Return the counts of one answer, in which the server counts so many `more` tokens."""
        return cls(
            answers=1,
            server_tokens=server_tokens,
            tokenizer_tokens=tokenizer_tokens,
            apart=abs(more),
            more={max(-1, min(more, FORMAT_TOKENS + 1)): 1},
            first_tokens=first,
            unsent=unsent if more > 0 else "",
        )

    @property
    def format_tokens(self) -> int:
        """The tokens that the server counts and that are in no text, the same in most answers: a constant few, or 0."""
        more = self._more
        most = max(more, key=lambda tokens: (more[tokens], -tokens), default=0)
        return most if 0 <= most <= FORMAT_TOKENS else 0

    @property
    def difference(self) -> float | None:
        """The part of the server's tokens by which both differ, but for format_tokens; None without a comparison."""
        constant = self.format_tokens
        # Beyond both ends of `more`, the constant changes each distance by as much as at the end.
        apart = self.apart + sum(n * (abs(more - constant) - abs(more)) for more, n in self._more.items())
        return apart / self.server_tokens if self.server_tokens else None

    @property
    def _more(self) -> dict[int, int]:
        return self.more or {self.least_more: self.answers}

    def plus(self, other: TextCounts) -> TextCounts:
        """Return the sum of these counts and the other ones."""
        return TextCounts(
            answers=self.answers + other.answers,
            server_tokens=self.server_tokens + other.server_tokens,
            tokenizer_tokens=self.tokenizer_tokens + other.tokenizer_tokens,
            apart=self.apart + other.apart,
            more=dict(sorted((Counter(self.more) + Counter(other.more)).items())),
            first_tokens=self.first_tokens + other.first_tokens,
            unsent=self.unsent or other.unsent,
        )


class ClientRecord(Record, frozen=True, kw_only=True):
    """The client's record of a run. `failures` holds one line for each kind of failure, with its count.

    `finish_reasons` is None in records of versions that did not read them. `reported_tokens` were reported to LoadGen:
    fewer than `completion_tokens` where the benchmark's reference leaves out the first one of each answer.
    `at_once` counts the streams that came whole, which something between server and client had collected.
    `connections` counts those that were opened, the slowest in `longest_connect_s`. `kept` of the requests were
    answered in an earlier piece of the run, and the server was not asked for them again. `text` is None where the
    server lists token ids. The server states `server_prompt_tokens` and `cached_prompt_tokens`; it counts each prompt
    by `least_more` to `most_more` more tokens than were sent, None where it counts none. `models` counts the answers by
    the names of the model in them. `first_tokens` came with the first event of their answers; 0 of answers in text.
    """

    requests: int
    completed: int
    failed: int
    retries: int
    prompt_tokens: int
    completion_tokens: int
    finish_reasons: FinishReasons | None = None
    failures: dict[str, int] = {}
    reported_tokens: int = 0
    at_once: int = 0
    text: TextCounts | None = None
    connections: int = 0
    longest_connect_s: float = 0.0
    server_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    least_more: int | None = None
    most_more: int | None = None
    first_tokens: int = 0
    models: dict[str, int] = {}
    kept: int = 0
    processes: list[ProcessRecord] = []
    self_check: SelfCheck | None = None

    @property
    def end_lag_ms(self) -> float | None:
        """The time from the last token to the end of an answer, median of a few; None where answers came whole."""
        return max((process.end_lag.p50_ms for process in self.processes if process.end_lag), default=None)

    @property
    def first_event_tokens(self) -> float:
        """The mean number of tokens that came with the first event of an answer; 0 where it is not known."""
        if self.text is not None:
            return self.text.first_tokens / self.text.answers if self.text.answers else 0.0
        asked = self.completed - self.kept
        return self.first_tokens / asked if asked else 0.0

    @property
    def more_words(self) -> str:
        """The tokens that the server counts in each prompt beyond those sent, in words; empty for none."""
        least, most = self.least_more, self.most_more
        if least is None or most is None or most <= 0:
            return ""
        return f"{least:,} more in each" if least == most else f"{least:,} to {most:,} more in each"

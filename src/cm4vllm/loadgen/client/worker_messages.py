"""The records that LoadGen's process and a worker process exchange over a socket pair.

To the worker, one `REQUEST` record a query: its key, where its body lies in the memory that both share, the tokens of
its prompt, and when it was issued. From the worker, a `HEADER` and the bytes it announces: an int32 for each token, or
UTF-8. Numbers are the machine's own, unaligned.
"""

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from cm4vllm.loadgen.client.text_tokens import TextSettings
from cm4vllm.records.access import Access
from cm4vllm.records.client import ProcessRecord, TextCounts
from cm4vllm.records.server import Api
from cm4vllm.serving.answers.event_stream import printable_beginning
from cm4vllm.serving.answers.stated import AnswerLimits, Stated

#: Key, offset and length of the body, tokens of the prompt, time of issue (time.monotonic_ns).
REQUEST = struct.Struct("=QQIIq")
#: Key, kind, and a number: the token itself (FIRST), tokens that follow (DONE, DONE_AT_LENGTH), tokens of which none
#: follows (COUNTED, COUNTED_AT_LENGTH), bytes that follow (the others).
HEADER = struct.Struct("=QIi")

#: The number of tokens before the labels of an answer.
COUNT = struct.Struct("=i")
#: Different names of models in the answers of a run that are kept, and the name of all others.
_MOST_NAMES, OTHER_NAMES = 8, "other names"


class Kind(IntEnum):
    """The kind of a worker's record."""

    #: The worker has reached its servers; the text is empty.
    READY = 0
    #: The worker cannot work; the text says why.
    UNREACHABLE = 1
    #: A query's first token arrived.
    FIRST = 2
    #: A query's answer is whole: its tokens follow.
    DONE = 3
    #: A query cannot be answered; the text says why. FAILED_LATE: after its first token was reported.
    FAILED = 4
    FAILED_LATE = 5
    #: The last record of a worker: its `Stats` as JSON.
    STATS = 6
    #: As FIRST and DONE, of a server that gives text: nothing is known of the first token but that it came, and of the
    #: tokens of an answer but their number.
    FIRST_TEXT = 7
    COUNTED = 8
    #: As DONE and COUNTED, of an answer whose finish_reason is `length`.
    DONE_AT_LENGTH = 9
    COUNTED_AT_LENGTH = 10
    #: A query's answer is whole: the number of its tokens follows as an int32, and what is logged.
    ENCODED = 11
    ENCODED_AT_LENGTH = 12


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one of several `workers`. `max_in_flight` is its own share; None: no bound. `patient`: no time is
    measured.

    `text` says how answers are read that are text; None where they list token ids.
    The key and the headers that `access` names are not among the settings: the worker reads them from its environment.
    """

    name: str
    endpoints: list[str]
    ca_file: str
    access: Access = Access()
    api: Api
    stream_interval: int
    limits: AnswerLimits
    max_in_flight: int | None
    workers: int = 1
    patient: bool = False
    text: TextSettings | None = None


@dataclass(slots=True)
class Counts:
    """Counts of the client so far; `at_length` of the completed answers ended with finish_reason `length`.

    `server_prompt_tokens` and `cached_prompt_tokens` are stated by the server. `least_more` and `most_more` are by how
    many more tokens it counted a prompt than were sent, at least and at most; None where it counts none. `models`
    counts answers by the names of the model in them. `first_tokens` came with the first event of their answers.
    """

    requests: int = 0
    completed: int = 0
    failed: int = 0
    retries: int = 0
    connections: int = 0
    longest_connect_s: float = 0.0
    prompt_tokens: int = 0
    server_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    least_more: int | None = None
    most_more: int | None = None
    completion_tokens: int = 0
    first_tokens: int = 0
    at_once: int = 0
    at_length: int = 0
    models: dict[str, int] = field(default_factory=dict)

    def take(self, stated: Stated, prompt_tokens: int, first_tokens: int) -> None:
        """Count what a server states about an answer to a prompt of `prompt_tokens`."""
        self.cached_prompt_tokens += stated.cached_tokens
        self.first_tokens += first_tokens
        if stated.prompt_tokens >= 0:
            self.server_prompt_tokens += stated.prompt_tokens
            more = stated.prompt_tokens - prompt_tokens
            if self.least_more is None or self.most_more is None:
                self.least_more = self.most_more = more
            elif not self.least_more <= more <= self.most_more:
                self.least_more, self.most_more = min(self.least_more, more), max(self.most_more, more)
        for name in stated.models:
            known = name in self.models or len(self.models) < _MOST_NAMES
            key = printable_beginning(name) if known else OTHER_NAMES
            self.models[key] = self.models.get(key, 0) + 1


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and measurements of a worker in the whole run."""

    counts: Counts
    process: ProcessRecord
    text: TextCounts | None = None


def total(counts: Iterable[Counts]) -> Counts:
    """Return the counts of several clients as those of one."""
    clients = list(counts)
    least = [each.least_more for each in clients if each.least_more is not None]
    most = [each.most_more for each in clients if each.most_more is not None]
    return Counts(
        **{name: sum(getattr(each, name) for each in clients) for name in _SUMMED},
        least_more=min(least, default=None),
        most_more=max(most, default=None),
        longest_connect_s=max((each.longest_connect_s for each in clients), default=0.0),
        models=dict(sum((Counter(each.models) for each in clients), Counter())),
    )


_SUMMED = (
    "requests",
    "completed",
    "failed",
    "retries",
    "connections",
    "prompt_tokens",
    "server_prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "first_tokens",
    "at_once",
    "at_length",
)

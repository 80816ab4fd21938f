"""The records that LoadGen's process and a worker process exchange over a socket pair.

To the worker, one `REQUEST` record a query: its key, where its body lies in the memory that both share, the tokens of
its prompt, and when it was issued. From the worker, a `HEADER` and the bytes it announces: an int32 for each token, or
UTF-8. Numbers are the machine's own, unaligned.
"""

import struct
from enum import IntEnum

import msgspec

from cm4vllm.loadgen.client.client_counts import Counts
from cm4vllm.loadgen.client.text_tokens import TextSettings
from cm4vllm.records.access import Access
from cm4vllm.records.client import ProcessRecord, TextCounts
from cm4vllm.records.server import Api
from cm4vllm.serving.answers.stated import AnswerLimits

#: Key, offset and length of the body, tokens of the prompt, time of issue (time.monotonic_ns).
REQUEST = struct.Struct("=QQIIq")
#: Key, kind, and a number: the token itself (FIRST), tokens that follow (DONE, DONE_AT_LENGTH), tokens of which none
#: follows (COUNTED, COUNTED_AT_LENGTH), bytes that follow (the others).
HEADER = struct.Struct("=QIi")

#: The number of tokens before the labels of an answer.
COUNT = struct.Struct("=i")


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


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and measurements of a worker in the whole run."""

    counts: Counts
    process: ProcessRecord
    text: TextCounts | None = None

"""The event log of the reference client (events.jsonl), read into one row a sample of the performance run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec

from cm4vllm.common.bounded_documents import lines_of, require_bounded
from cm4vllm.common.errors import CmError
from cm4vllm.serving.answers.stated import FinishReason

_START, _STOP = "session.start_performance_tracking", "session.stop_performance_tracking"
_ISSUED, _FIRST, _COMPLETE = "sample.issued", "sample.recv_first", "sample.complete"
_ERRORS = "error."
_CUT_OFF = "the answer ended without a finish reason"
#: Errors of requests are quoted up to this length.
_SHOWN = 80


@dataclass(slots=True)
class SampleTimes:
    """Times of a sample in ns of the client's monotonic clock, None where they are missing.

    `tokens` are those of the whole answer, `tokens_after_first` those after its first chunk, by the model's tokenizer.
    """

    issued_ns: int
    first_ns: int | None = None
    complete_ns: int | None = None
    tokens: int = 0
    tokens_after_first: int = 0

    @property
    def ttft_ns(self) -> int | None:
        """Time from the issue to the first chunk; None where there was none."""
        return None if self.first_ns is None else self.first_ns - self.issued_ns

    @property
    def latency_ns(self) -> int | None:
        """Time from the issue to the end of the answer; None where there was none."""
        return None if self.complete_ns is None else self.complete_ns - self.issued_ns

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first chunk; None without a first chunk, or without a token after it."""
        if self.first_ns is None or self.complete_ns is None or self.tokens_after_first <= 0:
            return None
        return (self.complete_ns - self.first_ns) / self.tokens_after_first


class _Event(msgspec.Struct):
    event_type: str
    timestamp_ns: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    sample_uuid: str = ""
    finish_reason: str | None = None
    data: msgspec.Raw = msgspec.Raw()


def read_events(path: Path, count_tokens: Callable[[str], int]) -> list[SampleTimes]:
    """Return the samples that were issued between the start and the stop of the performance run, in their order.

    `count_tokens` is the tokenizer of the model. A sample that is issued again before its answer is complete stays at
    its place, and the last issue before its first chunk counts. A line that was cut off at the end of the log is passed
    over. Raises CmError for a log that cannot be read, or whose other lines are no events.
    """
    samples, under_way, measured = list[SampleTimes](), dict[str, SampleTimes](), False
    for event, content in _events(path):
        sample = under_way.get(event.sample_uuid)
        if event.event_type in (_START, _STOP):
            measured = event.event_type == _START
        elif event.event_type == _ISSUED and measured and event.sample_uuid:
            if sample is None:
                under_way[event.sample_uuid] = SampleTimes(event.timestamp_ns)
                samples.append(under_way[event.sample_uuid])
            elif sample.first_ns is None:
                sample.issued_ns = event.timestamp_ns
        elif sample and sample.first_ns is None and event.event_type == _FIRST:
            sample.first_ns = event.timestamp_ns
        elif sample and event.event_type == _COMPLETE:
            _complete(under_way.pop(event.sample_uuid), event.timestamp_ns, _answer(content) or [], count_tokens)
    return samples


def _complete(sample: SampleTimes, at_ns: int, chunks: list[str], count_tokens: Callable[[str], int]) -> None:
    sample.complete_ns = at_ns
    sample.tokens = count_tokens("".join(chunks))
    sample.tokens_after_first = count_tokens("".join(chunks[1:]))


def failed_samples(path: Path) -> dict[str, str]:
    """Return the samples of a run whose requests failed, each with the reason in words.

    The client counts them as completed: it logs the error, then an empty answer (load_generator/session.py). An answer
    that was cut off has no finish reason, or another one than that of a whole answer; of a server that states none,
    only one without text is known to be such. Raises CmError as read_events.
    """
    failed, unfinished, states_reasons = dict[str, str](), dict[str, bool](), False
    for event, content in _events(path):
        sample = event.sample_uuid
        if event.event_type.startswith(_ERRORS) and sample:
            failed[sample] = _error(content)
        elif event.event_type == _COMPLETE and sample not in failed:
            states_reasons |= bool(event.finish_reason)
            if not event.finish_reason:
                unfinished[sample] = any(_answer(content) or ())
            elif event.finish_reason not in get_args(FinishReason):
                failed[sample] = f"the answer was cut off with the finish reason {event.finish_reason[:_SHOWN]}"
    cut_off = (sample for sample, has_text in unfinished.items() if states_reasons or not has_text)
    return failed | dict.fromkeys(cut_off, _CUT_OFF)


def _error(content: Any) -> str:
    """Return the words of an error, which the client writes as [ErrorData, its kind, its message], on one line."""
    words = content[1:] if isinstance(content, list) else [content]
    text = " ".join(str(words[-1] if words else "").split()) or "an error without a message"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _answer(content: Any) -> list[str] | None:
    """Return the chunks of an answer, its reasoning first; None for an event without an answer."""
    if not isinstance(content, list) or len(content) < 2 or content[0] != "TextModelOutput":
        return None
    output, reasoning = (_chunks(part) for part in (*content[1:3], None)[:2])
    return reasoning + output


def _chunks(part: object) -> list[str]:
    """Return the chunks of a text: several of a streamed answer, one of a whole one."""
    if isinstance(part, list):
        return [str(chunk) for chunk in part]
    return [str(part)] if part else []


def _events(path: Path) -> Iterator[tuple[_Event, Any]]:
    """Yield each event, with its content where it has an answer or an error."""
    decoder = msgspec.json.Decoder(_Event)
    try:
        for number, line in enumerate(lines_of(path), 1):
            try:
                event = decoder.decode(line)
                has_content = event.data and event.event_type.startswith((_COMPLETE, _ERRORS))
                yield event, require_bounded(msgspec.json.decode(event.data)) if has_content else None
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return
                cause = str(error) if isinstance(error, ValueError) else "it is nested too deep"
                raise CmError(f"line {number} of {path} is no event of the client", cause=cause) from error
    except (OSError, ValueError) as error:
        cause = str(error.strerror) if isinstance(error, OSError) else str(error)
        raise CmError(f"{path} cannot be read", cause=cause) from error

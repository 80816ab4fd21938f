"""Answers of servers that give text and no token ids: text, counts and end out of an answer's bytes.

The formats are those of OpenAI's completions and conversations. An answer must be what id_answers asks of one, but
for the ids: it has one choice, no error, ends with finish_reason `stop` or `length`, and keeps to the limits, as far as
the server counts its tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from cm4vllm.records.server import Dialect, Prompts
from cm4vllm.serving.answers.event_stream import AnswerError, EventStream
from cm4vllm.serving.answers.stated import AnswerLimits, Choice, Decoders, Document, FinishReason, Named, Parts, Stated


class TextAnswer(NamedTuple):
    """A whole answer: its text, why it ended, and the server's statements.

    `first` is the text that came first, with an event of its own in a stream. `unsent` names the generated tokens that
    the answer shows and that are not in its text; empty for most.
    """

    text: str
    finish_reason: FinishReason
    stated: Stated
    first: str = ""
    unsent: str = ""


class _Part(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(Choice, gc=False):
    text: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    delta: _Part | None = None
    message: _Part | None = None


_DECODERS = Decoders(msgspec.json.Decoder(Named[_Choice]), msgspec.json.Decoder(list[Document[_Choice]]))


def whole_text(body: bytes, prompt_tokens: int, limits: AnswerLimits | None, dialect: Dialect) -> TextAnswer:
    """Return an answer that is no stream, as TextReader.finish. Raises AnswerError when it is not whole."""
    parts = _TextParts()
    parts.add_one(body)
    return parts.answer(prompt_tokens, limits, dialect)


class _TextParts(Parts[_Choice]):
    """The part of an answer read so far; the answer's documents are added in order."""

    __slots__ = ("pieces", "reasoned", "tools")

    def __init__(self) -> None:
        super().__init__(_DECODERS)
        self.pieces: list[str] = []
        self.reasoned = self.tools = False

    def _add(self, documents: Sequence[Document[_Choice]], raw: bytes) -> None:
        for document in documents:
            choice = self._choice(document, raw)
            if choice is None:
                continue
            begun = len(self.pieces)
            self._add_texts(choice)
            if choice.finish_reason is not None or self.reason is not None:
                self._end(choice.finish_reason, goes_on=len(self.pieces) > begun)

    def _add_texts(self, choice: _Choice) -> None:
        """Add the texts of a choice; what a model writes while it reasons is generated and counted like the rest."""
        part = choice.delta or choice.message
        if part is None:
            reasoning, text = choice.reasoning_content or choice.reasoning, choice.text
        else:
            reasoning, content = part.reasoning_content or part.reasoning, part.content
            text = "".join(_texts(content)) if isinstance(content, list) else content
            if part.tool_calls or part.function_call:
                self.tools = True
        if reasoning:
            self.reasoned = True
            self.pieces.append(reasoning)
        if text:
            self.pieces.append(text)

    def answer(self, prompt_tokens: int, limits: AnswerLimits | None, dialect: Dialect) -> TextAnswer:
        """Return the answer, if it is whole and, with `limits`, keeps to them. Raises AnswerError."""
        if self.reason in ("tool_calls", "function_call"):
            raise AnswerError(f"the answer is a call of a tool (finish_reason {self.reason}), and no text")
        reason, text = self.finish_reason(), "".join(self.pieces)
        stated = self.stated() if dialect.usage else Stated(models=self.named())
        if limits is not None and dialect.usage:
            _require_counts(stated, text, prompt_tokens, limits, dialect, reason)
        return TextAnswer(text, reason, stated, self.pieces[0] if self.pieces else "", self._unsent_tokens(stated))

    def _unsent_tokens(self, stated: Stated) -> str:
        """Name the generated tokens that the answer shows and that are not in its text."""
        if self.tools:
            return "the answer has calls of tools (tool_calls), whose tokens are in no text"
        if stated.reasoning_tokens and not self.reasoned:
            return "the usage counts reasoning tokens (reasoning_tokens), and their text was not sent"
        return ""


def _require_counts(
    stated: Stated, text: str, prompt_tokens: int, limits: AnswerLimits, dialect: Dialect, reason: FinishReason
) -> None:
    """Raise AnswerError for an answer that does not keep to what was asked for, as the server itself counts it."""
    if stated.tokens < 0:
        raise AnswerError("the answer has no usage.completion_tokens")
    if text and not stated.tokens:
        raise AnswerError("the answer has text, and its usage counts no tokens")
    _require_prompt(stated.prompt_tokens, prompt_tokens, dialect.prompts)
    limits.require_kept(max(prompt_tokens, stated.prompt_tokens), stated.tokens, reason)


def _require_prompt(counted: int, sent: int, prompts: Prompts) -> None:
    """Raise AnswerError where a server counts fewer tokens of a prompt than were sent: it cuts it, or reads another.

    A chat template, and a server that begins a text with a token of its own, add some. The tokens of prompts that are
    sent as ids, or have a picture, are known exactly; those of a clip are positions, and are not compared.
    """
    if prompts is Prompts.AUDIO:
        return
    detail = f"{sent} were sent, it counts {counted}"
    if prompts in (Prompts.IDS, Prompts.PICTURE) and counted != sent:
        pictures = ": it reads other prompts, or pictures of other sizes" if prompts is Prompts.PICTURE else ""
        raise AnswerError(f"the server counts other prompt tokens than were sent{pictures}", detail)
    if counted < sent:
        raise AnswerError(
            "the server counts fewer prompt tokens than were sent: it cuts prompts, or reads them as other tokens "
            "than the tokenizer of the model that was given"
            if counted >= 0
            else "the answer has no usage.prompt_tokens",
            detail,
        )


def _texts(content: list[Any]) -> Iterator[str]:
    """Yield the texts of a content that is a list of parts."""
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text


class TextReader(EventStream):
    """Gathers the bytes of one stream, and gives its answer at the end."""

    __slots__ = ("_begun_text", "_dialect", "_parts")

    def __init__(self, dialect: Dialect) -> None:
        self._parts = _TextParts()
        super().__init__(self._parts)
        self._dialect = dialect
        self._begun_text = False

    @property
    def token_count(self) -> int:
        """The number of pieces of text in the whole events read so far."""
        return len(self._parts.pieces)

    def feed(self, data: bytes) -> int | None:
        """Process the next bytes. Returns 0 when the first text came just now, whose token is not known, else None."""
        self._buffer += data
        if self._begun_text:
            return None
        self.compact()
        self._begun_text = bool(self._parts.pieces)
        return 0 if self._begun_text else None

    def compact(self) -> None:
        """Reduce whole lines to their texts."""
        self._read(self._buffer.rfind(b"\n") + 1)

    def finish(self, prompt_tokens: int, limits: AnswerLimits | None) -> TextAnswer:
        """Return the whole answer. Raises AnswerError when the stream is not whole.

        Without `limits`, which a probe has not, its counts are not judged.
        """
        self._require_whole(done=self._dialect.done)
        return self._parts.answer(prompt_tokens, limits, self._dialect)

"""Servers that return text but no token ids: the dialect of their API, found by trial requests, and its description.

SGLang, TensorRT-LLM's front end, `transformers serve` and gateways are such servers. What they generate is counted by
their `usage`, and the ids are those that the model's own tokenizer makes of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.client import FORMAT_TOKENS
from cm4vllm.records.server import Api, Dialect, Prompts, ServerRecord
from cm4vllm.rules import Division
from cm4vllm.serving.answers.stated import Stated
from cm4vllm.serving.answers.text_answers import TextAnswer
from cm4vllm.serving.probing.server_access import not_measurable
from cm4vllm.serving.probing.server_requests import (
    LONG_S,
    REFUSED,
    Site,
    ask,
    error_words,
    read_text,
    request,
    sites_of,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer


#: Parameters of a request without which a server can still be measured; others are needed.
_OPTIONAL = ("min_tokens", "top_k", "top_p", "seed", "stream_options")
_PROMPT_IDS, _PROMPT_TEXT = [3, 4, 5], "On Monday the harbour log says that"
_TOKENS = 8
_DRAWN = {"max_tokens": _TOKENS, "min_tokens": 2, "temperature": 0, "top_p": 1, "top_k": 1, "seed": 42}
#: Tokens of an answer by which a tokenizer is compared with the server's, and how far a few may lie apart; those of a
#: whole run are compared more closely.
_SAMPLE_TOKENS, _SAMPLE_APART = 64, 0.1


@dataclass
class _Refused(Exception):
    """A request in one dialect was answered with an error."""

    status: int
    words: str


def text_body(
    dialect: Dialect, model: str, prompt: str | Sequence[int], drawn: Mapping[str, Any], *, streamed: bool
) -> dict[str, Any]:
    """Return the document that asks for one answer to `prompt`, token ids or text, `drawn` with these parameters."""
    asked: dict[str, Any] = {"model": model}
    if dialect.prompts in (Prompts.CHAT, Prompts.PICTURE):
        asked["messages"] = [{"role": "user", "content": prompt}]
    else:
        asked["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    asked |= drawn
    if streamed:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return {name: value for name, value in asked.items() if name not in dialect.left_out}


def find_dialect(site: Site, model: str, api: Api) -> tuple[Dialect, Stated]:
    """Return the first dialect in which a server gives text, whole and streamed, with as much of a request as it takes.

    With it come the server's statements about its last answer. Prompts are sent as token ids where the server takes
    them. Raises ServerUnreachable, ServerUnsuitable.
    """
    causes: dict[str, None] = {}
    for prompts in (Prompts.CHAT,) if api is Api.CHAT else (Prompts.IDS, Prompts.TEXT):
        dialect: Dialect | None = Dialect(prompts=prompts)
        guessed: list[str] = []
        while dialect is not None:
            try:
                taken, stated = _complete_dialect(site, model, dialect, api)
                return _with_more(site, model, taken, api, guessed), stated
            except _Refused as refusal:
                causes[f"{api.path}: HTTP {refusal.status} {refusal.words}".strip()] = None
                dialect, dropped = _with_less(dialect, refusal)
                guessed += dropped
    raise ServerUnsuitable(
        f"the server at {site.endpoint} gives neither token ids nor text",
        cause="\n".join(causes),
        remedy="leave --api out, or serve the model with a chat template"
        if api is Api.CHAT
        else "check that --vllm_model_name is the name that the server uses for the model; for a server that offers "
        "only "
        "chat give --api=chat (open division)",
    )


def _with_less(dialect: Dialect, refusal: _Refused) -> tuple[Dialect | None, list[str]]:
    """Return the dialect without the parameters that a server refused, and which of them were guessed.

    The parameters that the refusal names are left out. Where it names none, or repeats the whole request, the next one
    of _OPTIONAL is, by guess. The dialect is None where none is left that could be left out.
    """
    left = [name for name in _OPTIONAL if name not in dialect.left_out]
    named = [name for name in left if re.search(rf"\b{name}\b", refusal.words)]
    about_prompt = refusal.status != HTTPStatus.INTERNAL_SERVER_ERROR and re.search(
        r"\b(prompt|messages)\b", refusal.words
    )
    if not left or (about_prompt and not named):
        return None, []
    all_named = {*left} - {"stream_options"} <= {*named}  # which only a request for a stream has
    guessed = left[:1] if all_named or not named else []
    return replace(dialect, left_out=[*dialect.left_out, *(guessed or named)]), guessed


def _with_more(site: Site, model: str, dialect: Dialect, api: Api, guessed: Sequence[str]) -> Dialect:
    """Return the dialect with those parameters again that were left out by guess and that the server takes after all.

    Raises as `_complete_dialect` does, but for _Refused.
    """
    for name in guessed:
        if name != dialect.left_out[-1]:  # else the server did not answer without it
            with suppress(_Refused):
                more = replace(dialect, left_out=[other for other in dialect.left_out if other != name])
                dialect, _ = _complete_dialect(site, model, more, api)
    return dialect


def _complete_dialect(site: Site, model: str, dialect: Dialect, api: Api) -> tuple[Dialect, Stated]:
    """Return the dialect, completed from two answers in it. Raises _Refused, ServerUnreachable, ServerUnsuitable."""
    prompt = _PROMPT_IDS if dialect.prompts is Prompts.IDS else _PROMPT_TEXT
    stated, done = [], True
    for streamed in (False, True):
        body = text_body(dialect, model, prompt, _DRAWN, streamed=streamed)
        status, answer = ask(site, "POST", api.path, body, LONG_S)
        if status in REFUSED:
            raise _Refused(status, error_words(site, answer))
        if status != HTTPStatus.OK:
            raise not_measurable(site.endpoint, f"its {api.path} answers HTTP {status} {error_words(site, answer)}")
        read, done = read_text(site, answer, dialect.prompts, streamed=streamed)
        kind, tokens = "a streamed answer" if streamed else "an answer", read.stated.tokens
        if not read.text and tokens <= 0:
            raise not_measurable(site.endpoint, f"{kind} has no text and no token_ids")
        if tokens > _TOKENS:
            raise not_measurable(site.endpoint, f"{kind} of at most {_TOKENS} tokens counts {tokens} in its usage")
        stated.append(read.stated)
    if dialect.prompts is Prompts.IDS and any(each.prompt_tokens != len(_PROMPT_IDS) for each in stated):
        # Without that count it is not known whether the ids were read as ids.
        first = stated[0].prompt_tokens
        raise _Refused(
            HTTPStatus.OK,
            f"the prompt was sent as {len(_PROMPT_IDS)} token ids, and the server counts "
            f"{first if first >= 0 else 'nothing'}",
        )
    usage = all(min(each.prompt_tokens, each.tokens) >= 0 for each in stated)
    return replace(dialect, usage=usage, done=done), stated[-1]


def check_tokenizer(server: ServerRecord, model: ModelRecord) -> None:
    """Prove that a server which gives text alone may be that of `model`, whose tokenizer counts an answer as it does.

    A few tokens more, the same of a short and of a long answer, are those that begin and end a message. Raises
    ServerUnsuitable, ServerUnreachable, and ModelError where the model has no tokenizer.
    """
    if server.dialect is None or not server.dialect.usage or server.dialect.prompts is Prompts.AUDIO:
        return
    tokenizer = read_tokenizer(model.tokenizer_file)
    answer, count = _sample(server, server.dialect, tokenizer, _SAMPLE_TOKENS)
    counted = answer.stated.tokens
    if counted < 0 or abs(counted - count) <= 1 + _SAMPLE_APART * counted:
        return
    if answer.unsent:
        raise ServerUnsuitable(
            f"the server at {server.endpoint} does not send all text that it generates",
            cause=f"it counts {counted} tokens in an answer whose text has {count}: {answer.unsent}",
            remedy="serve the model without parsers of reasoning and tools, or have the server send their text",
        )
    short, short_count = _sample(server, server.dialect, tokenizer, _SAMPLE_TOKENS // 4)
    if counted - count == short.stated.tokens - short_count <= FORMAT_TOKENS:
        return
    raise ServerUnsuitable(
        f"the server at {server.endpoint} does not serve {model.name}",
        cause=f"it counts {counted} tokens in an answer for which that model's tokenizer gives {count}",
        remedy="name the model it serves with --vllm_model_name (a hub id or a folder)",
    )


def _sample(server: ServerRecord, dialect: Dialect, tokenizer: Tokenizer, most: int) -> tuple[TextAnswer, int]:
    """Return an answer of at most `most` tokens, and how many `tokenizer` makes of its text."""
    site, prompts, path = sites_of(server)[0], dialect.prompts, server.api.path
    prompt = tokenizer.encode(_PROMPT_TEXT).ids if prompts is Prompts.IDS else _PROMPT_TEXT
    body = text_body(dialect, server.model_name, prompt, {**_DRAWN, "max_tokens": most}, streamed=False)
    answer, _ = read_text(site, request(site, "POST", path, body, LONG_S), prompts, streamed=False)
    return answer, len(tokenizer.encode(answer.text, add_special_tokens=False).ids)


def require_division(server: ServerRecord, division: Division) -> None:
    """Raise ServerUnsuitable for a server whose results can only be of the open division, in another one."""
    if server.open_only and division is not Division.OPEN:
        raise ServerUnsuitable(
            f"the {division} division is not possible with the server at {server.endpoint}",
            cause="\n".join(server.open_only),
            remedy="give --division=open, or use a server that returns token ids and serves the model itself",
        )

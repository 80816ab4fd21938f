"""Servers that return text but no token ids: the dialect of their API, found by trial requests, and its description.

SGLang, TensorRT-LLM's front end, `transformers serve` and gateways are such servers. What they generate is counted by
their `usage`, and the ids are those that the model's own tokenizer makes of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from cm4vllm.assets.records import ModelRecord
from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.rules import Division
from cm4vllm.serving.records import Api, Dialect, Prompts, ServerRecord
from cm4vllm.serving.server_requests import (
    LONG_S,
    Site,
    ask,
    choices_of,
    decoded,
    events_of,
    not_measurable,
    request,
    said,
    sites_of,
    usage_of,
)

__all__ = ["check_tokenizer", "counting", "find_dialect", "require_division", "text_body"]

#: Parameters of a request without which a server can still be measured; others are needed.
_OPTIONAL = ("min_tokens", "top_k", "top_p", "seed", "stream_options")
_PROMPT_IDS, _PROMPT_TEXT = [3, 4, 5], "On Monday the harbour log says that"
_TOKENS = 8
_DRAWN = {"max_tokens": _TOKENS, "min_tokens": 2, "temperature": 0, "top_p": 1, "top_k": 1, "seed": 42}
#: Tokens of an answer by which a tokenizer is compared with the server's, and how far a few may lie apart; those of a
#: whole run are compared more closely.
_SAMPLE_TOKENS, _SAMPLE_APART = 64, 0.1


class _Refused(Exception):
    """A request in one dialect was answered with an error."""


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


def find_dialect(site: Site, model: str, api: Api) -> Dialect:
    """Return the first dialect in which a server gives text, whole and streamed, with as much of a request as it takes.

    Prompts are sent as token ids where the server takes them. Raises ServerUnreachable, ServerUnsuitable.
    """
    causes: dict[str, None] = {}
    for prompts in (Prompts.CHAT,) if api is Api.CHAT else (Prompts.IDS, Prompts.TEXT):
        dialect: Dialect | None = Dialect(prompts=prompts)
        while dialect is not None:
            try:
                return _tried(site, model, dialect, api)
            except _Refused as refusal:
                causes[f"{api.path}: {refusal}".strip()] = None
                dialect = _with_less(dialect, str(refusal))
    remedy = (
        "leave --api out, or serve the model with a chat template"
        if api is Api.CHAT
        else "check that --vllm_model_name is the name that the server uses for the model; for a server that offers "
        "only "
        "chat give --api=chat (open division)"
    )
    raise ServerUnsuitable(
        f"the server at {site.endpoint} gives neither token ids nor text", cause="\n".join(causes), remedy=remedy
    )


def _with_less(dialect: Dialect, refusal: str) -> Dialect | None:
    """Return the dialect without what a server refused: the parameters that it names, else all; None without any."""
    left = [name for name in _OPTIONAL if name not in dialect.left_out]
    named = [name for name in left if re.search(rf"\b{name}\b", refusal)]
    if not named and re.search(r"\b(prompt|messages)\b", refusal):
        return None
    return replace(dialect, left_out=[*dialect.left_out, *(named or left)]) if left else None


def _tried(site: Site, model: str, dialect: Dialect, api: Api) -> Dialect:
    """Return the dialect, completed from two answers in it. Raises _Refused, ServerUnreachable, ServerUnsuitable."""
    prompt = _PROMPT_IDS if dialect.prompts is Prompts.IDS else _PROMPT_TEXT
    counted, done = [], True
    for streamed in (False, True):
        body = text_body(dialect, model, prompt, _DRAWN, streamed=streamed)
        status, answer = ask(site, "POST", api.path, body, LONG_S)
        if status != 200:
            raise _Refused(f"HTTP {status} {said(site, answer)}")
        if streamed:
            documents, done = events_of(site, api.path, answer)
            if not documents:
                raise not_measurable(site.endpoint, f"its streamed {api.path} has no events")
        else:
            documents = [decoded(site, api.path, answer)]
        counted.append(_counted(site, documents, streamed=streamed))
    if dialect.prompts is Prompts.IDS and any(usage != len(_PROMPT_IDS) for usage, _ in counted):
        # Without that count it is not known whether the ids were read as ids.
        raise _Refused(
            f"HTTP 200 the prompt was sent as {len(_PROMPT_IDS)} token ids, and the server counts "
            f"{counted[0][0] if counted[0][0] >= 0 else 'nothing'}"
        )
    return replace(dialect, usage=all(tokens >= 0 for _, tokens in counted), done=done)


def _counted(site: Site, documents: Sequence[Mapping[str, Any]], *, streamed: bool) -> tuple[int, int]:
    """Return how many tokens of prompt and answer a server counts, -1 where it does not. Raises ServerUnsuitable."""
    kind = "a streamed answer" if streamed else "an answer"
    text, reason = "", None
    usage = usage_of(documents)
    for document in documents:
        if document.get("error"):
            raise not_measurable(site.endpoint, site.access.hidden(f"it answered: {str(document['error'])[:200]}"))
        for choice in choices_of(document):
            text += "".join(_texts(choice))
            reason = choice.get("finish_reason") or reason
    prompt, tokens = (
        value if isinstance(value := usage.get(name), int) and value >= 0 else -1
        for name in ("prompt_tokens", "completion_tokens")
    )
    if reason not in ("stop", "length"):
        raise not_measurable(site.endpoint, f"the finish_reason of {kind} is {str(reason)[:40]!r}: the text may be cut")
    if not text and tokens <= 0:
        raise not_measurable(site.endpoint, f"{kind} has no text and no token_ids")
    if tokens > _TOKENS:
        raise not_measurable(site.endpoint, f"{kind} of at most {_TOKENS} tokens counts {tokens} in its usage")
    return prompt, tokens


def _texts(choice: Mapping[str, Any]) -> Iterator[str]:
    """Give the texts of a choice or of its part in a stream, those of a reasoning channel first."""
    for part in (choice, choice.get("delta"), choice.get("message")):
        if isinstance(part, dict):
            for name in ("reasoning_content", "reasoning", "content", "text"):
                if isinstance(value := part.get(name), str):
                    yield value


def check_tokenizer(server: ServerRecord, model: ModelRecord) -> None:
    """Prove that a server which gives text alone may be that of `model`, whose tokenizer counts an answer as it does.

    Raises ServerUnsuitable, ServerUnreachable, and ModelError where the model has no tokenizer.
    """
    if server.dialect is None or server.dialect.prompts is Prompts.AUDIO:
        return
    tokenizer = read_tokenizer(model.tokenizer_file)
    site, dialect, path = sites_of(server)[0], server.dialect, server.api.path
    prompt = tokenizer.encode(_PROMPT_TEXT).ids if dialect.prompts is Prompts.IDS else _PROMPT_TEXT
    body = text_body(dialect, server.model_name, prompt, {**_DRAWN, "max_tokens": _SAMPLE_TOKENS}, streamed=False)
    document = decoded(site, path, request(site, "POST", path, body, LONG_S))
    text = "".join(part for choice in choices_of(document) for part in _texts(choice))
    count = len(tokenizer.encode(text, add_special_tokens=False).ids)
    counted = usage_of([document]).get("completion_tokens", count) if dialect.usage else count
    if not isinstance(counted, int) or abs(counted - count) > 1 + _SAMPLE_APART * counted:
        raise ServerUnsuitable(
            f"the server at {server.endpoint} does not serve {model.name}",
            cause=f"it counts {counted} tokens in an answer for which that model's tokenizer gives {count}",
            remedy="name the model it serves with --vllm_model_name (a hub id or a folder)",
        )


def require_division(server: ServerRecord, division: Division) -> None:
    """Raise ServerUnsuitable for a server whose results can only be of the open division, in another one."""
    reasons = server.open_only if division is not Division.OPEN else []
    if reasons:
        raise ServerUnsuitable(
            f"the {division} division is not possible with the server at {server.endpoint}",
            cause="\n".join(reasons),
            remedy="give --division=open, or use a server that returns token ids and serves the model itself",
        )


def counting(server: ServerRecord) -> list[str]:
    """Say in sentences how token ids and counts of a server's answers are obtained: for every page and for the run."""
    dialect = server.dialect
    if dialect is None:
        return ["Token ids are those that the server lists; it counts as many for each answer."]
    if dialect.prompts is Prompts.AUDIO:
        return ["The server gives transcripts, and its usage counts their tokens, the end token included."]
    if dialect.prompts is Prompts.PICTURE:
        return [
            "The server gives text, which is logged; its usage counts the tokens of answers, and of prompts with those "
            "of their pictures, which must be as many as the model's own chat template and picture size give."
        ]
    counts = (
        "its usage counts them"
        if dialect.usage
        else ("it does not count them either: the count is that of the same tokenizer")
    )
    sentences = [
        f"The server gives text and no token ids. Ids are what the model's own tokenizer makes of the text; {counts}."
    ]
    if dialect.prompts is Prompts.TEXT:
        sentences.append("Prompts were sent as text, because the server takes no token ids.")
    if dialect.prompts is Prompts.CHAT:
        sentences.append("Prompts were sent as messages, to which the server's chat template adds tokens.")
    refused = [name for name in dialect.left_out if name != "stream_options"]
    if refused:
        sentences.append(f"The server takes no {', '.join(refused)}: those were not asked for.")
    if dialect.open_only:
        sentences.append("Results are of the open division alone.")
    return sentences

"""Probe of an address: checks that a server answers there that can be measured, before anything depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cm4vllm.assets.records import ModelRecord
from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import ServerUnsuitable, nearest
from cm4vllm.common.host_addresses import is_loopback
from cm4vllm.serving.distinct_servers import require_distinct, require_one_system
from cm4vllm.serving.given_options import OptionValue
from cm4vllm.serving.media_apis import media_api_of
from cm4vllm.serving.records import Api, Dialect, ServerRecord, Simulation, host_of
from cm4vllm.serving.server_access import NO_ACCESS, Access
from cm4vllm.serving.server_identities import identity, reported_options, require_one_server
from cm4vllm.serving.server_requests import (
    LONG_S,
    NO_HTTP,
    Site,
    ask,
    base_urls,
    choices_of,
    decoded,
    events_of,
    not_measurable,
    request,
    sites_of,
    usage_of,
)
from cm4vllm.serving.text_servers import find_dialect

__all__ = ["check_answer", "check_completion", "check_vocabulary", "probe", "served_models"]

#: For an address that must answer at once.
_SHORT_S = 10.0
_PROMPT = [3, 4, 5]
#: About how many token ids a vocabulary is compared by.
_SPREAD = 64
_TOKENS = 4
#: The owner that a server states for its models, and the name of that server's software.
_NAMES = {"sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM", "llamacpp": "llama.cpp"}
#: The message about a server that does not name the model it was asked for.
_NOT_LISTED = "whether it serves that model: its /v1/models does not list it"


@dataclass(frozen=True)
class Model:
    """A model that a server lists. `max_model_len` is 0 where the server does not tell it.

    `owner` is whom the server names as its owner: most name themselves. `root` is what it was loaded from: a folder, or
    the name of a hub's model. An adapter (LoRA) has a `parent`, the model that it changes.
    """

    name: str
    max_model_len: int = 0
    parent: str = ""
    owner: str = ""
    root: str = ""


def probe(
    api_server: str,
    model_name: str = "",
    *,
    api: Api = Api.COMPLETIONS,
    ca_file: str = "",
    max_model_len: int = 0,
    access: Access = NO_ACCESS,
    text: bool = False,
) -> ServerRecord:
    """Return the record of running servers that can be measured: one address, or several separated by commas.

    All are asked with the same key and headers. `model_name` may be empty where they serve one model; `max_model_len`
    is needed of a server that does not tell its own. With `text` a server that gives text alone is taken too, and the
    record has its dialect. Raises ServerUnreachable when nothing answers, ServerUnsuitable when what answers does not
    speak the OpenAI format or `api`, does not serve that model, does not give exact token ids (or text), or reuses
    answers' prefixes, and when the servers differ.
    """
    records = [
        _probe(Site(url, ca_file, access), model_name, api, max_model_len, text=text) for url in base_urls(api_server)
    ]
    first = records[0]
    require_one_system(records)
    require_distinct(records, lambda site: check_answer(site, first.model_name, first.api))
    unchecked = list(dict.fromkeys(note for record in records for note in record.unchecked))
    return replace(
        first,
        replicas=[record.endpoint for record in records[1:]],
        unchecked=unchecked,
        identities={endpoint: content for record in records for endpoint, content in record.identities.items()},
    )


def _probe(site: Site, model_name: str, api: Api, max_model_len: int, *, text: bool) -> ServerRecord:
    """Return the record of one server."""
    unchecked = []
    version, simulated = _version(site)
    require_one_server(site)
    model, note = _model(site, model_name, text=text)
    length, media = _context(site, model, max_model_len), media_api_of(api)
    dialect = media.dialect if media else _dialect(site, model.name, api) if text else None
    if media is not None:
        media.check(site, model.name, LONG_S)
    elif dialect is None:
        for streamed in (True, False):
            check_completion(site, model.name, streamed=streamed, api=api)
    software = _software(version, model.owner, dialect)
    if software != "vLLM":
        unchecked.append(
            f"its vocabulary: it is {software or 'no vLLM'}, and cannot report what token ids mean"
            if version
            else "its software: it has no /version, so it is not vLLM, and its vocabulary cannot be compared"
        )
    options = reported_options(site)
    if not _prefix_caching_is_known(site, options):
        unchecked.append("whether it caches prompt prefixes: its /metrics do not state it")
    if model.parent:
        unchecked.append(
            f"the weights of the adapter {model.name} ({model.root or 'its root is not reported'}), which changes "
            f"{model.parent}: the digest and the folder in the records are those of a model without it"
        )
    return ServerRecord(
        endpoint=site.endpoint,
        adapter_of=model.parent,
        api=api,
        dialect=dialect,
        ca_file=site.ca_file,
        access=site.access,
        model_name=model.name,
        max_model_len=length,
        software=software,
        version=version,
        owned=False,
        options=options,
        model_folder=_folder(site, model),
        unchecked=[*unchecked, *note],
        identities={site.endpoint: identity(site, model.name)},
        simulated=simulated,
    )


def _context(site: Site, model: Model, given: int) -> int:
    """Return the tokens that a request may have with its answer, `given` where the server does not report them."""
    if length := model.max_model_len or given:
        return length
    raise ServerUnsuitable(
        f"the server at {site.endpoint} does not report how long a request may be",
        cause="its /v1/models has no max_model_len; an answer that was cut would count as complete",
        remedy="give it with --max_model_len=N",
    )


def _model(site: Site, name: str, *, text: bool) -> tuple[Model, list[str]]:
    """Return the requested model, and sentences on what is unknown about it. Raises ServerUnsuitable.

    Not every server that gives text lists its models: then the name is taken as it is, and its completions show whether
    it is right.
    """
    try:
        models = served_models(site)
    except ServerUnsuitable as error:
        if not text or not name:
            error.remedy += "" if name or not text else "; where it does not list its model, --vllm_model_name names it"
            raise
        return Model(name), [f"whether it serves that model: {error.cause}"]
    if text and name and all(model.name != name for model in models) and _answers(site, name):
        return Model(name), [_NOT_LISTED]
    return _chosen(site.endpoint, name, models), []


def _answers(site: Site, model: str) -> bool:
    """Tell whether a server answers for a model that it does not list."""
    try:
        return _lists_ids(site, model) or find_dialect(site, model, Api.COMPLETIONS) is not None
    except ServerUnsuitable:
        return False


def _dialect(site: Site, model: str, api: Api) -> Dialect | None:
    """Return the dialect of a server that gives text alone, None for one that lists token ids, or should."""
    if api is Api.GENERATE or (api is Api.COMPLETIONS and _lists_ids(site, model)):
        return None
    return find_dialect(site, model, api)


def _lists_ids(site: Site, model: str) -> bool:
    """Tell whether a server lists the ids of the tokens that it generates, as vLLM does when it is asked for them."""
    path, body = Api.COMPLETIONS.path, _completion(model, Api.COMPLETIONS, streamed=False)
    status, answer = ask(site, "POST", path, body, LONG_S)
    choices = choices_of(decoded(site, path, answer)) if status == 200 else []
    return any(isinstance(choice.get("token_ids"), list) for choice in choices)


def _software(version: str, owner: str, dialect: Dialect | None) -> str:
    """Return the name of the server's software; empty if it is not known.

    vLLM tells its version and names itself as its models' owner; others do the one, the other, both, or name somebody.
    """
    owner = owner.lower()
    if owner == "vllm" or (version and (not owner or dialect is None)):
        return "vLLM"
    return _NAMES.get(owner, "")


def served_models(site: Site) -> list[Model]:
    """Return the models that the server lists."""
    listed = _json(site, "/v1/models").get("data")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and entry.get("id") for entry in listed):
        raise not_measurable(site.endpoint, "its /v1/models lists no models")
    return [
        Model(
            str(entry["id"]),
            _length(entry),
            str(entry.get("parent") or ""),
            str(entry.get("owned_by") or ""),
            str(entry.get("root") or ""),
        )
        for entry in listed
    ]


def _folder(site: Site, model: Model) -> str:
    """Return the folder that a server on this machine reports as its model's; empty where it has no model's files."""
    folder = Path(model.root)
    here = site.endpoint.startswith("unix:") or is_loopback(host_of(site.endpoint))
    return str(folder) if here and folder.is_absolute() and (folder / "config.json").is_file() else ""


def _length(entry: Mapping[str, Any]) -> int:
    length = entry.get("max_model_len")
    return length if isinstance(length, int) and length > 0 else 0


def check_answer(site: Site, model: str, api: Api, timeout_s: float = LONG_S) -> None:
    """Prove that one of our servers answers: with a completion, or as it is asked for media."""
    if (media := media_api_of(api)) is not None:
        media.check(site, model, timeout_s)
    else:
        check_completion(site, model, streamed=True, timeout_s=timeout_s)


def check_completion(
    site: Site, model: str, *, streamed: bool, timeout_s: float = LONG_S, api: Api = Api.COMPLETIONS
) -> None:
    """Ask for a few tokens and prove that their ids come back, as many as the server says it made."""
    endpoint = site.endpoint
    try:
        answer = request(site, "POST", api.path, _completion(model, api, streamed=streamed), timeout_s)
    except ServerUnsuitable as error:
        if api is Api.GENERATE:
            error.remedy = f"vLLM offers {api.path} with --enable-scale-out; --api=completions needs no option"
        raise
    documents, done = events_of(site, api.path, answer) if streamed else ([decoded(site, api.path, answer)], True)
    if not done:
        raise not_measurable(endpoint, "its streamed completion does not end with data: [DONE]")
    usage = usage_of(documents)
    counted = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    choices = [choice for document in documents for choice in choices_of(document)]
    try:
        tokens = [token for choice in choices for token in choice.get("token_ids") or ()]
    except TypeError as error:
        raise not_measurable(endpoint, "its completion is not in the OpenAI format") from error
    kind = "a streamed completion" if streamed else "a completion"
    if not tokens:
        raise ServerUnsuitable(
            f"the server at {endpoint} does not return token ids",
            cause=f"{kind} with return_token_ids has none",
            remedy="serve with vLLM 0.10.2 or newer: without ids, tokens can only be estimated from text",
        )
    if len(tokens) != _TOKENS or counted != (len(_PROMPT), _TOKENS):
        raise ServerUnsuitable(
            f"the server at {endpoint} does not count tokens exactly",
            cause=f"{kind} of {_TOKENS} tokens to a prompt of {len(_PROMPT)} listed {len(tokens)} ids and reported "
            f"{counted[1]} tokens to a prompt of {counted[0]}",
            remedy="point --api_server at vLLM itself, not at a proxy that changes requests",
        )


def _completion(model: str, api: Api, *, streamed: bool) -> dict[str, Any]:
    """Return the request for a few tokens."""
    drawn = {"max_tokens": _TOKENS, "min_tokens": _TOKENS, "ignore_eos": True, "temperature": 0}
    body: dict[str, Any] = {"model": model}
    if api is Api.COMPLETIONS:
        body |= {"prompt": _PROMPT, **drawn, "return_token_ids": True}
    else:
        body |= {"token_ids": _PROMPT, "sampling_params": {**drawn, "detokenize": False}}
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def check_vocabulary(server: ServerRecord, model: ModelRecord) -> None:
    """Prove that the server reads token ids as the tokenizer of `model` does: that it can be that model at all.

    Ids from all over the vocabulary are turned into text by both; letters and digits are compared, because spaces and
    broken characters depend on options of the decoder. Raises ServerUnsuitable when they differ. A server that is no
    vLLM cannot be asked; its record says so (`unchecked`).
    """
    if server.software != "vLLM" or not server.version:
        return
    tokenizer = read_tokenizer(Path(model.path) / "tokenizer.json")
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    ids = list(range(0, size, max(1, size // _SPREAD)))
    ours = tokenizer.decode(ids, skip_special_tokens=False)
    body = {"model": server.model_name, "tokens": ids}
    site = sites_of(server)[0]
    try:
        answer = request(site, "POST", "/detokenize", body, _SHORT_S)
        theirs = str(decoded(site, "/detokenize", answer).get("prompt"))
    except ServerUnsuitable as error:
        theirs = error.cause
    if _letters(ours) != _letters(theirs):
        raise ServerUnsuitable(
            f"the server at {server.endpoint} does not serve {model.name}",
            cause=f"it decodes the token ids {ids[1]}, {ids[2]}, {ids[3]}, ... differently from that model's tokenizer",
            remedy=f"name the model it serves with --vllm_model_name (a hub id or a folder), and its dataset with "
            f"--dataset_path, or --dataset=tiny of run-mlperf,inference for the tiny model's; or serve {model.path}",
        )


def _letters(text: str) -> str:
    return "".join(character for character in text if character.isalnum())


def _version(site: Site) -> tuple[str, Simulation | None]:
    """Return the version of vLLM, empty where the server has none to tell, and what a simulated server stands for.

    Gateways answer a path that they do not know with any status, or with a page: what is wrong with the server itself
    shows in its /v1/models.
    """
    try:
        answer = _json(site, "/version")
    except ServerUnsuitable as error:
        if NO_HTTP in error.cause:
            raise
        return "", None
    version, simulated = answer.get("version"), answer.get("simulated")
    try:
        simulation = None if simulated is None else msgspec.convert(simulated, Simulation)
    except msgspec.ValidationError as error:
        raise not_measurable(
            site.endpoint, f"it says that it is simulated, and not what it stands for: {error}"
        ) from error
    return version if isinstance(version, str) else "", simulation


def _chosen(endpoint: str, name: str, models: list[Model]) -> Model:
    names = [model.name for model in models]
    for model in models:
        if model.name == name:
            return model
    if name:
        raise ServerUnsuitable(
            f"the server at {endpoint} does not serve {name}",
            cause=f"it serves {', '.join(names)}",
            remedy=nearest(name, names) + "\n--vllm_model_name sets which model is measured",
        )
    own = [model for model in models if not model.parent]
    if len(own) != 1:
        raise ServerUnsuitable(
            f"the server at {endpoint} serves {len(own)} models: {', '.join(names)}",
            remedy="choose one with --vllm_model_name",
        )
    return own[0]


def _prefix_caching_is_known(site: Site, options: Mapping[str, OptionValue]) -> bool:
    """Refuse a server that reports that it caches prefixes; tell whether another one reports anything about it."""
    if options.get("enable-prefix-caching") is True:
        raise ServerUnsuitable(
            f"the server at {site.endpoint} caches prompt prefixes",
            cause="MLPerf's rules forbid reuse of results between queries (inference_rules, Caching)",
            remedy="start it with --no-enable-prefix-caching",
        )
    return "enable-prefix-caching" in options


def _json(site: Site, path: str) -> Mapping[str, Any]:
    return decoded(site, path, request(site, "GET", path, None, _SHORT_S))

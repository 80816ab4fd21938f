"""Probe of an address: checks that a server answers there that can be measured, before anything depends on it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cm4vllm.assets.tiny.stand_ins import stand_in_named
from cm4vllm.common.errors import CmError, ServerUnsuitable, nearest
from cm4vllm.common.files import typed_path
from cm4vllm.common.host_addresses import host_of, is_loopback
from cm4vllm.records.access import NO_ACCESS, Access
from cm4vllm.records.server import Api, Dialect, ServerRecord, Simulation
from cm4vllm.serving.answers.event_stream import AnswerError, printable_beginning
from cm4vllm.serving.answers.id_answers import NoTokenIds, lists_ids
from cm4vllm.serving.answers.stated import AnswerLimits, Stated
from cm4vllm.serving.probing.media_apis import media_api_of
from cm4vllm.serving.probing.server_access import Unanswered, not_measurable
from cm4vllm.serving.probing.server_identities import (
    identity,
    optional_page,
    reported_options,
    require_distinct,
    require_one_server,
    require_one_system,
)
from cm4vllm.serving.probing.server_requests import (
    LONG_S,
    REFUSED,
    Site,
    ask,
    base_urls,
    error_words,
    json_object,
    read_ids,
    request,
    words_of,
)
from cm4vllm.serving.probing.text_servers import find_dialect

#: For an address that must answer at once.
_SHORT_S = 10.0
#: Long enough to fill a block of a server's cache, of 16 to 128 tokens: asked twice, it shows in `cached_tokens`.
_PROMPT = [3, 4, 5] * 48
_TOKENS = 4
_LIMITS = AnswerLimits(min_tokens=_TOKENS, max_tokens=_TOKENS, max_model_len=2**31)
#: The owner that a server states for its models, and the name of that server's software.
_NAMES = {"sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM", "llamacpp": "llama.cpp"}
#: The folder of a model in the hub's cache: models--OWNER--NAME/snapshots/COMMIT (huggingface_hub, manage-cache).
_SNAPSHOT = re.compile(r"(?:^|/)models--([^/]+)/snapshots/[^/]+/?$")


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
    not_known = require_distinct(records, lambda site: check_answer(site, first.model_name, first.api))
    return replace(
        first,
        replicas=[record.endpoint for record in records[1:]],
        unchecked=[*dict.fromkeys(note for record in records for note in record.unchecked), *not_known],
        identities={endpoint: content for record in records for endpoint, content in record.identities.items()},
    )


def require_length(api_server: str, model_name: str, max_model_len: int, *, ca_file: str, access: Access) -> None:
    """Raise ServerUnsuitable where `max_model_len` is 0 and a server that answers does not tell its own."""
    for site in (Site(url, ca_file, access) for url in base_urls(api_server)):
        try:
            model = _chosen_model(site.endpoint, model_name, served_models(site))
        except CmError:
            continue
        _known_length(site, model, max_model_len)


def _known_length(site: Site, model: Model, max_model_len: int) -> int:
    """Return the tokens that a request may have. Raises ServerUnsuitable where they are not known."""
    if length := model.max_model_len or max_model_len:
        return length
    raise ServerUnsuitable(
        f"the server at {site.endpoint} does not report how long a request may be",
        cause="its /v1/models has no max_model_len; an answer that was cut would count as complete",
        remedy="give it with --max_model_len=N",
    )


def _probe(site: Site, model_name: str, api: Api, max_model_len: int, *, text: bool) -> ServerRecord:
    """Return the record of one server."""
    model, unlisted = _model(site, model_name, text=text)
    version, simulated, no_version = _version(site)
    try:
        dialect, stated = _dialect_of(site, model.name, api, text=text)
    except ServerUnsuitable as error:
        if unlisted:
            error.cause = f"{unlisted}\n{error.cause}"
            error.remedy = f"check the path before /v1 in --api_server\n{error.remedy}"
        raise
    length = _known_length(site, model, max_model_len)
    names = list(dict.fromkeys(name for each in stated for name in map(printable_beginning, each.models)))
    if len(names) > 1:
        raise ServerUnsuitable(
            f"the answers of the server at {site.endpoint} name several models",
            cause=", ".join(names),
            remedy="point --api_server at one server; a result is of one model",
        )
    software = _software(version, model.owner, dialect)
    options, not_stated = reported_options(site)
    if options.get("enable-prefix-caching") is True:
        raise ServerUnsuitable(
            f"the server at {site.endpoint} caches prompt prefixes",
            cause="MLPerf's rules forbid reuse of results between queries (inference_rules, Caching)",
            remedy="start it with --no-enable-prefix-caching",
        )
    return ServerRecord(
        endpoint=site.endpoint,
        adapter_of=model.parent,
        api=api,
        dialect=dialect,
        ca_file=site.ca_file,
        access=site.access,
        model_name=model.name,
        answered_by=names[0] if names else "",
        max_model_len=length,
        software=software,
        version=version,
        owned=False,
        options=options,
        model_folder=_folder(site, model),
        unchecked=_unknown_facts(
            model,
            unlisted,
            software=software,
            version=version,
            no_version=no_version,
            no_caching="" if "enable-prefix-caching" in options else not_stated,
        ),
        identities={site.endpoint: identity(site, model.name)},
        simulated=simulated,
    )


def _unknown_facts(
    model: Model, unlisted: str, *, software: str, version: str, no_version: str, no_caching: str
) -> list[str]:
    """Return what is not known of a server, in words. The last two are why its version and its caching are not known,
    empty where they are; `unlisted` is why it is not known that it serves the model.
    """
    facts = []
    if not version:
        facts.append(f"its {'version' if software else 'software'}, and its vocabulary: {no_version}")
    elif software != "vLLM":
        facts.append(f"its vocabulary: it is {software or 'no vLLM'}, and cannot report what token ids mean")
    if no_caching:
        facts.append(f"whether it caches prompt prefixes: {no_caching}")
    if model.parent:
        root = model.root or "its root is not reported"
        facts.append(
            f"the weights of the adapter {model.name} ({root}), which changes {model.parent}: the digest and the "
            "folder in the records are those of a model without it"
        )
    if unlisted:
        facts.append(f"whether it serves that model: {unlisted}")
    return facts


def _model(site: Site, name: str, *, text: bool) -> tuple[Model, str]:
    """Return the requested model, and why it is not known that the server has it. Raises ServerUnsuitable.

    Not every server that gives text lists its models: then the name is taken as it is, and its completions show whether
    it is right.
    """
    try:
        models = served_models(site)
    except Unanswered:
        raise
    except ServerUnsuitable as error:
        if not text or not name:
            error.remedy += "" if name or not text else "; where it does not list its model, --vllm_model_name names it"
            raise
        return Model(name), error.cause
    require_one_server(site)
    listed = any(_is_called(model, name) or _same_root(model.root, name) for model in models)
    if text and name and not listed and _answers(site, name):
        return Model(name), "its /v1/models does not list it"
    return _chosen_model(site.endpoint, name, models), ""


def _answers(site: Site, model: str) -> bool:
    """Return True if a server answers for a model that it does not list. Raises Unanswered."""
    try:
        return _returns_token_ids(site, model) or find_dialect(site, model, Api.COMPLETIONS) is not None
    except Unanswered:
        raise
    except ServerUnsuitable:
        return False


def _dialect_of(site: Site, model: str, api: Api, *, text: bool) -> tuple[Dialect | None, list[Stated]]:
    """Return the dialect of a server, None for one that lists token ids, with its statements about its answers.

    With `text` one that gives text alone is taken too.
    """
    if (media := media_api_of(api)) is not None:
        return media.dialect, [media.check(site, model, LONG_S)]
    if text and api is not Api.GENERATE and not (api is Api.COMPLETIONS and _returns_token_ids(site, model)):
        dialect, stated = find_dialect(site, model, api)
        # A server that failed for a moment now takes everything, and may list ids after all.
        if api is not Api.COMPLETIONS or dialect.left_out or not _returns_token_ids(site, model):
            return dialect, [stated]
    return None, [check_completion(site, model, streamed=streamed, api=api) for streamed in (True, False)]


def _returns_token_ids(site: Site, model: str) -> bool:
    """Return True if a server lists the ids of the tokens that it generates, as vLLM does when it is asked for them."""
    path, body = Api.COMPLETIONS.path, _completion_request(model, Api.COMPLETIONS, streamed=False)
    status, answer = ask(site, "POST", path, body, LONG_S)
    if status not in (200, *REFUSED):
        raise not_measurable(site.endpoint, f"its {path} answers HTTP {status} {error_words(site, answer)}")
    try:
        return status == 200 and lists_ids(answer)
    except AnswerError as error:
        raise not_measurable(site.endpoint, f"its {path}: {words_of(site, error)}") from error


def _software(version: str, owner: str, dialect: Dialect | None) -> str:
    """Return the name of the server's software; empty if it is not known.

    vLLM tells its version and names itself as its models' owner; others do the one, the other, both, or name somebody.
    """
    own = owner.lower() == "vllm" or (version and (not owner or dialect is None))
    return "vLLM" if own else _NAMES.get(owner.lower(), "")


def served_models(site: Site) -> list[Model]:
    """Return the models that the server lists."""
    listed = json_object(site, "/v1/models", request(site, "GET", "/v1/models", None, _SHORT_S)).get("data")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and entry.get("id") for entry in listed):
        raise not_measurable(site.endpoint, "its /v1/models lists no models")
    return [
        Model(
            str(entry["id"]),
            length if isinstance(length := entry.get("max_model_len"), int) and length > 0 else 0,
            *(str(entry.get(name) or "") for name in ("parent", "owned_by", "root")),
        )
        for entry in listed
    ]


def _folder(site: Site, model: Model) -> str:
    """Return the folder that a server on this machine reports as its model's; empty where it has no model's files."""
    folder = Path(model.root)
    here = site.endpoint.startswith("unix:") or is_loopback(host_of(site.endpoint))
    return str(folder) if here and folder.is_absolute() and (folder / "config.json").is_file() else ""


def check_answer(site: Site, model: str, api: Api, timeout_s: float = LONG_S) -> None:
    """Prove that one of our servers answers: with a completion, or as it is asked for media."""
    if (media := media_api_of(api)) is not None:
        media.check(site, model, timeout_s)
    else:
        check_completion(site, model, streamed=True, timeout_s=timeout_s)


def check_completion(
    site: Site, model: str, *, streamed: bool, timeout_s: float = LONG_S, api: Api = Api.COMPLETIONS
) -> Stated:
    """Ask for a few tokens and prove that their ids come back, as many as the server says it made.

    Returns its statements about them.
    """
    try:
        answer = request(site, "POST", api.path, _completion_request(model, api, streamed=streamed), timeout_s)
    except ServerUnsuitable as error:
        if api is Api.GENERATE:
            error.remedy = f"vLLM offers {api.path} with --enable-scale-out; --api=completions needs no option"
        raise
    kind = "a streamed completion" if streamed else "a completion"
    try:
        return read_ids(site, answer, _LIMITS, len(_PROMPT), streamed=streamed).stated
    except NoTokenIds as error:
        raise ServerUnsuitable(
            f"the server at {site.endpoint} does not return token ids",
            cause=f"{kind} with return_token_ids has none",
            remedy="serve with vLLM 0.10.2 or newer: without ids, tokens can only be estimated from text",
        ) from error
    except AnswerError as error:
        raise ServerUnsuitable(
            f"the tokens of the server at {site.endpoint} cannot be counted exactly",
            cause=f"{kind} of {_TOKENS} tokens: {words_of(site, error)}",
            remedy="point --api_server at vLLM itself, not at a proxy that changes requests or answers",
        ) from error


def _completion_request(model: str, api: Api, *, streamed: bool) -> dict[str, Any]:
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


def _version(site: Site) -> tuple[str, Simulation | None, str]:
    """Return the version of vLLM, empty where it is not known, what a simulated server stands for, and why not known.

    Gateways answer a path that they do not know with any status, or with a page: what is wrong with the server itself
    shows in its /v1/models.
    """
    page = optional_page(site, "/version")
    answer = page.value if isinstance(page.value, dict) else {}
    version, simulated = answer.get("version"), answer.get("simulated")
    try:
        simulation = None if simulated is None else msgspec.convert(simulated, Simulation)
    except msgspec.ValidationError as error:
        raise not_measurable(
            site.endpoint, f"it says that it is simulated, and not what it stands for: {error}"
        ) from error
    return version if isinstance(version, str) else "", simulation, page.missing or "its /version states none"


def _chosen_model(endpoint: str, name: str, models: list[Model]) -> Model:
    names = [model.name for model in models]
    named = sorted((model for model in models if _is_called(model, name)), key=lambda model: model.name != name)
    loaded = [model for model in models if name and not model.parent and _same_root(model.root, name)]
    if named or loaded:
        return (named or loaded)[0]
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


def _is_called(model: Model, name: str) -> bool:
    """Return True if `name` names a model that a server lists: as the server does, or by another name of a stand-in."""
    variation = stand_in_named(name)
    called = (stand_in_named(Path(each).name) for each in (model.name, model.root))
    return model.name == name or (bool(variation) and variation in called)


def _same_root(root: str, name: str) -> bool:
    """Return True if a server loaded the model from what it is called by: a name of the hub, or a folder.

    The folder may be on another machine; one of the hub's cache has the hub's name in its path.
    """
    cached, folder = _SNAPSHOT.search(root), typed_path(name)
    hub_name = cached[1].replace("--", "/") if cached else ""
    own = name.rstrip("/") == root.rstrip("/") or (hub_name and hub_name == name)
    return bool(own or (root and folder.is_dir() and Path(root).resolve() == folder.resolve()))

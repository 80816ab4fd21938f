"""Reports of running servers about themselves, and their changes: another server, or a restarted one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.serving.given_options import OptionValue, typed_value
from cm4vllm.serving.options import stored_options
from cm4vllm.serving.records import ServerIdentity, ServerRecord
from cm4vllm.serving.server_requests import OPTIONAL_S, Site, ask, sites_of

__all__ = [
    "identities",
    "identity",
    "other_content",
    "process_start",
    "reported_options",
    "require_one_server",
    "restarts",
    "unlike",
]

_SHORT_S = 10.0
#: The number of times that a server is asked for its process's start and its models: an address may have several
#: processes behind it, and several servers.
_ASKED = 5
#: Fields that change from one answer to the next (`created` is the time of asking, `permission` has a random id), or
#: from one start to the next with the memory that is free.
_NO_CONTENT = (
    "created",
    "permission",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "kv_cache_size_tokens",
    "kv_cache_max_concurrency",
)
#: The number of an engine, which is another one in each server of a data-parallel group.
_ENGINE = re.compile(r"^cache of engine [^.]*\.")
_START = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)
_CACHE = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
#: The words of labels for values that are neither number nor text.
_OF_LABEL = {"True": True, "False": False, "None": None}
_SHOWN = 60
#: Levels of objects whose fields are compared one by one.
_DEEPEST = 20
#: The end of the last year that a date can have, 9999, in seconds since 1970; nothing later is a time.
_LAST_S = 253_402_300_800.0


def identities(server: ServerRecord) -> dict[str, ServerIdentity]:
    """Return the reported facts of each server at --api_server, by its endpoint; none of servers that the job started.

    Raises ServerUnreachable.
    """
    if server.owned:
        return {}
    return {site.endpoint: identity(site, server.model_name) for site in sites_of(server)}


def identity(site: Site, model: str) -> ServerIdentity:
    """Return the facts that a server reports of itself and of the model. Raises ServerUnreachable."""
    reported = dict(_leaves(_page(site, "/version"), "version"))
    listed = _page(site, "/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    for entry in models if isinstance(models, list) else []:
        if isinstance(entry, dict) and entry.get("id") == model:
            reported |= _leaves(entry, "model")
    metrics = _text(site, "/metrics")
    labels = [dict(_LABEL.findall(text)) for text in _CACHE.findall(metrics)]
    for label in labels:
        reported |= _leaves(label, f"cache of engine {label.get('engine', 0)}")
    starts = {process_start(metrics), *(process_start(_text(site, "/metrics")) for _ in range(_ASKED - 1) if metrics)}
    return ServerIdentity(reported=reported, process_started_s=starts.pop() if len(starts) == 1 else None)


def require_one_server(site: Site) -> None:
    """Raise ServerUnsuitable for an address at which several servers answer in turn, of other models or versions.

    Raises ServerUnreachable.
    """
    for path, name in (("/version", "version"), ("/v1/models", "model")):
        pages = [dict(_leaves(_by_model(_page(site, path)), name)) for _ in range(_ASKED)]
        answered = [page for page in pages if page]
        if other := next((page for page in answered if page != answered[0]), None):
            raise ServerUnsuitable(
                f"several servers answer in turn at {site.endpoint}, and they differ",
                cause="\n".join(
                    f"{fact}: {before}, then {after}" for fact, before, after in _apart(answered[0], other)
                ),
                remedy="give the address of each server, separated by commas: all of one model and version; a gateway "
                "that chooses among several models cannot be measured",
            )


def _by_model(page: Any) -> Any:
    """Return a list of models as an object, by their names; another page as it is."""
    models = page.get("data") if isinstance(page, dict) else None
    if not isinstance(models, list):
        return page
    return {str(entry.get("id")): {"served": "yes", **entry} for entry in models if isinstance(entry, dict)}


def reported_options(site: Site) -> dict[str, OptionValue]:
    """Return the options that a running server reports, by vLLM's full names; empty if it reports none.

    With VLLM_SERVER_DEV_MODE=1 vLLM has its whole configuration at /server_info; of others /metrics has the part of the
    KV cache. Raises ServerUnreachable.
    """
    labels: dict[str, Any] = {}
    for sample in _CACHE.findall(_text(site, "/metrics")):
        labels |= {
            name: _OF_LABEL[text] if text in _OF_LABEL else typed_value(text) for name, text in _LABEL.findall(sample)
        }
    page = _page(site, "/server_info?config_format=json")
    config = page.get("vllm_config") if isinstance(page, dict) else None
    parts = [part for part in config.values() if isinstance(part, dict)] if isinstance(config, dict) else []
    names = {option.full_name for option in stored_options().values()}
    return {
        option: value
        for part in [labels, *parts]
        for name, value in part.items()
        if (option := name.replace("_", "-")) in names and isinstance(value, bool | int | float | str)
    }


def process_start(metrics: str) -> float | None:
    """Return when the process of this /metrics page started, in seconds since 1970; None where it is not reported."""
    start = _START.search(metrics)
    with suppress(ValueError):
        return seconds if start and 0 <= (seconds := float(start[1])) < _LAST_S else None
    return None


def other_content(before: Mapping[str, ServerIdentity], now: Mapping[str, ServerIdentity]) -> list[str]:
    """Return in words what servers report otherwise than before; nothing where no server was asked before."""
    return [
        f"the server at {endpoint} is another one: {name} was {earlier}, now {later}"
        for endpoint in before
        for name, earlier, later in _apart(before[endpoint].reported, now[endpoint].reported if endpoint in now else {})
    ]


def unlike(ours: Mapping[str, ServerIdentity], theirs: Mapping[str, ServerIdentity]) -> list[str]:
    """Return in words what one server reports otherwise than another; each is given by its endpoint."""
    ((endpoint, first),), ((other_endpoint, other),) = ours.items(), theirs.items()
    return [
        f"{name}: {own} at {endpoint}, {others} at {other_endpoint}"
        for name, own, others in _apart(_without_engines(first.reported), _without_engines(other.reported))
    ]


def _without_engines(reported: Mapping[str, str]) -> dict[str, str]:
    named = {_ENGINE.sub("cache.", name): value for name, value in reported.items()}
    return {name: value for name, value in named.items() if name != "cache.engine"}


def restarts(before: Mapping[str, ServerIdentity], now: Mapping[str, ServerIdentity]) -> list[str]:
    """Return in words which servers were started again, as far as they report their process's start."""
    return [
        f"the server at {endpoint} was started again: its process began at {_time(earlier)}, now {_time(later)}"
        for endpoint in before
        if endpoint in now
        for earlier, later in [(before[endpoint].process_started_s, now[endpoint].process_started_s)]
        if earlier is not None and later is not None and earlier != later
    ]


def _apart(first: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the names of what differs in two reports, each with both values as they are shown."""
    return [
        (name, _short(first.get(name)), _short(other.get(name)))
        for name in {**first, **other}
        if first.get(name) != other.get(name)
    ]


def _short(value: str | None) -> str:
    return "not reported" if value is None else value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _text(site: Site, path: str) -> str:
    """Return the answer of a server at a path; empty where it has no such page, or wants a key that it has not got."""
    with suppress(ServerUnsuitable):
        status, answer = ask(site._replace(patience_s=OPTIONAL_S), "GET", path, None, _SHORT_S)
        return answer.decode(errors="replace") if status == 200 else ""
    return ""


def _page(site: Site, path: str) -> Any:
    with suppress(ValueError):
        return json_of(_text(site, path))
    return None


def _leaves(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the fields of nested objects with their names, as text; a list is one value, and so is what is too deep."""
    if isinstance(value, dict) and depth < _DEEPEST:
        for key, part in value.items():
            if key not in _NO_CONTENT:
                yield from _leaves(part, f"{name}.{key}", depth + 1)
    elif value is not None:
        text = value if isinstance(value, str) else "nested too deep"
        with suppress(RecursionError):
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        yield name, text

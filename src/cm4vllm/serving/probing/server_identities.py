"""Reports of running servers about themselves, and their changes: another server, or a restarted one.

And the proof by them that servers at several addresses are several servers of one system.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import combinations, takewhile
from typing import Any, NamedTuple

from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable, UsageError
from cm4vllm.records.server import ServerIdentity, ServerRecord
from cm4vllm.records.vllm.given_options import OptionValue, typed_value
from cm4vllm.records.vllm.options import neutral_name, stored_options
from cm4vllm.serving.probing.server_requests import ONCE, OPTIONAL_S, Site, ask, require_distinct_addresses, sites_of

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
#: The pages that a server reports itself by, each with the first word of the names of its facts.
_PAGES = {"/version": "version", "/v1/models": "model", "/metrics": "cache"}
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


class Page(NamedTuple):
    """A page that a server need not have. Without its text, `missing` says in words why.

    `answered` says that the server answered: by another status where it has no such page.
    """

    text: str = ""
    missing: str = ""
    answered: bool = True

    @property
    def value(self) -> Any:
        """The value of a page that is JSON; None of another one."""
        with suppress(ValueError):
            return json_of(self.text)
        return None


def optional_page(site: Site, path: str) -> Page:
    """Return a page of a server at a path. No answer, and none that can be read, is no error: the page says it."""
    try:
        status, answer = ask(site._replace(patience_s=OPTIONAL_S), "GET", path, None, _SHORT_S)
    except (ServerUnreachable, ServerUnsuitable) as error:
        return Page(missing=f"its {path} cannot be read ({error.what}: {error.cause})", answered=False)
    answered = status == HTTPStatus.OK
    return Page(answer.decode(errors="replace")) if answered else Page(missing=f"its {path} answers HTTP {status}")


def identities(server: ServerRecord) -> dict[str, ServerIdentity]:
    """Return the reported facts of each server at --api_server, by its endpoint; none of servers that the job started.

    A server that does not answer has none, and the pages in `unanswered`.
    """
    return {site.endpoint: identity(site, server.model_name) for site in ([] if server.owned else sites_of(server))}


def identity(site: Site, model: str) -> ServerIdentity:
    """Return the facts that a server reports of itself and of the model."""
    pages = {path: optional_page(site, path) for path in _PAGES}
    reported = dict(_leaves(pages["/version"].value, "version"))
    metrics = pages["/metrics"].text
    for entry in _models(pages["/v1/models"].value):
        if entry.get("id") == model:
            reported |= _leaves(entry, "model")
    for label in [dict(_LABEL.findall(text)) for text in _CACHE.findall(metrics)]:
        reported |= _leaves(label, f"cache of engine {label.get('engine', 0)}")
    again = (optional_page(site, "/metrics").text for _ in range(_ASKED - 1) if metrics)
    starts = {process_start(metrics), *map(process_start, again)}
    return ServerIdentity(
        reported=reported,
        process_started_s=starts.pop() if len(starts) == 1 else None,
        unanswered={path: page.missing for path, page in pages.items() if not page.answered},
    )


def require_one_server(site: Site) -> None:
    """Raise ServerUnsuitable for an address at which several servers answer in turn, of other models or versions."""
    for path in ("/version", "/v1/models"):
        pages = takewhile(lambda page: page.answered, (optional_page(site, path) for _ in range(_ASKED)))
        reports = (dict(_leaves(_by_model(page.value), _PAGES[path])) for page in pages)
        answered = list(filter(None, reports))
        if other := next((page for page in answered if page != answered[0]), None):
            raise ServerUnsuitable(
                f"several servers answer in turn at {site.endpoint}, and they differ",
                cause="\n".join(
                    f"{fact}: {before}, then {after}" for fact, before, after in _differences(answered[0], other)
                ),
                remedy="give the address of each server, separated by commas: all of one model and version; a gateway "
                "that chooses among several models cannot be measured",
            )


def _by_model(page: Any) -> Any:
    """Return a list of models as an object, by their names; another page as it is."""
    return {str(entry.get("id")): {"served": "yes", **entry} for entry in _models(page)} or page


def _models(page: Any) -> list[dict[str, Any]]:
    """Return the models that a page lists; none of another page."""
    models = page.get("data") if isinstance(page, dict) else None
    return [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []


def reported_options(site: Site) -> tuple[dict[str, OptionValue], str]:
    """Return the options that a running server reports, by vLLM's full names, and in words why others are not known.

    With VLLM_SERVER_DEV_MODE=1 vLLM has its whole configuration at /server_info; of others /metrics has the part of the
    KV cache.
    """
    metrics = optional_page(site, "/metrics")
    texts = (label for sample in _CACHE.findall(metrics.text) for label in _LABEL.findall(sample))
    labels = {name: _OF_LABEL[text] if text in _OF_LABEL else typed_value(text) for name, text in texts}
    page = optional_page(site, "/server_info?config_format=json").value
    config = page.get("vllm_config") if isinstance(page, dict) else None
    parts = [part for part in config.values() if isinstance(part, dict)] if isinstance(config, dict) else []
    names = {option.full_name for option in stored_options().values()}
    options: dict[str, OptionValue] = {
        option: value
        for part in [labels, *parts]
        for name, value in part.items()
        if (option := neutral_name(name.replace("_", "-"))) in names and isinstance(value, bool | int | float | str)
    }
    return options, metrics.missing or "its /metrics do not state it"


def process_start(metrics: str) -> float | None:
    """Return when the process of this /metrics page started, in seconds since 1970; None where it is not reported."""
    start = _START.search(metrics)
    with suppress(ValueError):
        return seconds if start and 0 <= (seconds := float(start[1])) < _LAST_S else None
    return None


def other_content(before: Mapping[str, ServerIdentity], now: Mapping[str, ServerIdentity]) -> list[str]:
    """Return in words what servers report otherwise than before; nothing where no server was asked before.

    What a page states is compared where the server answered it both times.
    """
    return [
        f"the server at {endpoint} is another one: {name} was {earlier}, now {later}"
        for endpoint in before
        for name, earlier, later in _differences(*_comparable(before[endpoint], now.get(endpoint, ServerIdentity())))
    ]


def unknown_content(before: Mapping[str, ServerIdentity], now: Mapping[str, ServerIdentity]) -> dict[str, list[str]]:
    """Return in words, by page, what servers reported before and do not state now: a page, the start of the process."""
    words: dict[str, list[str]] = {}
    for endpoint, identity in now.items():
        earlier, missing = before.get(endpoint, ServerIdentity()), dict(identity.unanswered)
        if earlier.process_started_s is not None and identity.process_started_s is None:
            missing.setdefault("/metrics", "its /metrics no longer state one start of its process")
        for path, why in missing.items():
            stated = any(name.startswith(_PAGES[path]) for name in earlier.reported)
            if stated or (path == "/metrics" and earlier.process_started_s is not None):
                words.setdefault(path, []).append(f"the server at {endpoint}: {why}")
    return words


def _comparable(first: ServerIdentity, other: ServerIdentity) -> tuple[dict[str, str], dict[str, str]]:
    """Return the facts of two reports that are of pages which were answered in both."""
    unread = tuple(_PAGES[path] for path in {**first.unanswered, **other.unanswered})
    ours, theirs = (
        {name: value for name, value in each.reported.items() if not name.startswith(unread)} for each in (first, other)
    )
    return ours, theirs


def unlike(ours: Mapping[str, ServerIdentity], theirs: Mapping[str, ServerIdentity]) -> list[str]:
    """Return in words what one server reports otherwise than another; each is given by its endpoint."""
    ((endpoint, first),), ((other_endpoint, other),) = ours.items(), theirs.items()
    return [
        f"{name}: {own} at {endpoint}, {others} at {other_endpoint}"
        for name, own, others in _differences(*map(_without_engines, _comparable(first, other)))
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


def _differences(first: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the names of what differs in two reports, each with both values as they are shown."""
    return [
        (name, _shorten(first.get(name)), _shorten(other.get(name)))
        for name in {**first, **other}
        if first.get(name) != other.get(name)
    ]


def _shorten(value: str | None) -> str:
    return "not reported" if value is None else value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


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


#: Seconds until a server has counted the answer that it gave, and how often it is compared.
_COUNTED_S, _TIMES = 0.2, 2
#: A metric of tokens with its value, whatever software names it: vLLM's, SGLang's, llama.cpp's and others have some.
_TOKENS = re.compile(r"^[a-z_:][\w:]*token[\w:]*(?:\{[^}\n]*\})? \S+", re.MULTILINE | re.IGNORECASE | re.ASCII)
#: The facts of a probe by which servers are compared, besides those that they report of themselves.
_COMPARED = ("model_name", "answered_by", "max_model_len", "software", "version", "dialect")


def require_one_system(records: Sequence[ServerRecord]) -> None:
    """Raise ServerUnsuitable where servers differ: by the probe, or by what they report of themselves."""
    first = records[0]
    for other in records[1:]:
        apart = [
            f"{field}: {ours} at {first.endpoint}, {theirs} at {other.endpoint}"
            for field in _COMPARED
            if (ours := getattr(first, field)) != (theirs := getattr(other, field))
        ] or unlike(first.identities, other.identities)
        if apart:
            raise ServerUnsuitable(
                "the servers differ",
                cause="\n".join(apart),
                remedy="start them with the same vLLM, model and options; a result is of one system",
            )


def require_distinct(records: Sequence[ServerRecord], ask: Callable[[Site], object]) -> list[str]:
    """Return in words of which of the servers of these records, one each, it is not known whether they are two.

    `ask` has one answer a few tokens. Two addresses of one machine, or ports that lead to one container, show in the
    server's own reports: none has another start of its process, and an answer at one address is counted at the other.
    Raises UsageError where two servers are one.
    """
    if len(records) < 2:
        return []
    require_distinct_addresses([record.endpoint for record in records], resolved=True)
    unknown = []
    for first, second in combinations(records, 2):
        starts = [record.identities[record.endpoint].process_started_s for record in (first, second)]
        if None not in starts and starts[0] != starts[1]:
            continue
        counted = _counted_at(sites_of(first)[0], sites_of(second)[0], ask)
        if counted is None:
            unknown.append(
                f"whether {first.endpoint} and {second.endpoint} are two servers: neither the start of their processes "
                "nor the tokens that they count show it"
            )
        elif counted:
            raise UsageError(
                f"{first.endpoint} and {second.endpoint} are one server, given twice",
                cause=f"tokens that were generated at {first.endpoint} are counted at {second.endpoint}"
                + (", and both report the same start of their process" if starts[0] is not None else ""),
                remedy=ONCE,
            )
    return unknown


def _counted_at(asked: Site, other: Site, ask: Callable[[Site], object]) -> bool | None:
    """Return whether the tokens of one address are counted at another, each time and only then.

    None where it is not known: a server counts none, or has other work.
    """
    for _ in range(_TIMES):
        own, before = _tokens(asked), _tokens(other)
        time.sleep(_COUNTED_S)
        quiet = _tokens(other) == before
        with suppress(ServerUnsuitable):
            ask(asked)
        time.sleep(_COUNTED_S)
        if not before or not quiet or _tokens(asked) == own:
            return None
        if _tokens(other) == before:
            return False
    return True


def _tokens(site: Site) -> list[str]:
    """Return the metrics of tokens that a server reports, with their values."""
    return _TOKENS.findall(optional_page(site, "/metrics").text)

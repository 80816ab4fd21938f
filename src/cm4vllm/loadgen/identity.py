"""Identity of runs: by content (digests, versions, settings), not by the places of files or the time of the start."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cm4vllm.common.files import sha256_of
from cm4vllm.records.access import NO_ACCESS
from cm4vllm.records.run import RunRecord, RunSettings
from cm4vllm.records.server import NodeRecord, ServerRecord
from cm4vllm.serving.clusters.placement import ADDRESS_OPTIONS

#: The flags of a server that the job starts, for its address.
_ADDRESS = ("--port", "--host", *ADDRESS_OPTIONS)
#: A file that a server is given counts by its content up to this size; a larger one by its name.
_MOST_BYTES = 2**26
#: Values that differ are quoted up to this length.
_SHOWN = 40


def settings_sha256(settings: RunSettings) -> str:
    """Return the digest of all that a run's result depends on.

    Where files lie, when and where our server was started, which variables hold a key, and the words that tell
    where things come from do not count; model and dataset count by their digests, files in the server's command line
    and environment by their content. A server that the job did not start counts by its address and by what it reports
    of itself, except when its process started.
    """
    return hashlib.sha256(msgspec.json.encode(_settings_that_count(settings), order="deterministic")).hexdigest()


def _settings_that_count(settings: RunSettings) -> RunSettings:
    """Return the settings without what may differ between runs that count as the same."""
    model = settings.model
    return replace(
        settings,
        target_qps_source="",
        shortened="",
        server=server_content(settings.server, model.path),
        # Of a model without files here nothing else is known than what was said of it.
        model=replace(model, path="", source="", recipe={}) if model.sha256 else model,
        dataset=replace(settings.dataset, name="", path="", source="", recipe={}),
    )


def differences(before: RunSettings, now: RunSettings) -> list[str]:
    """Return in words where the settings of two runs differ, as far as it counts."""
    earlier, later = (dict(_leaves(msgspec.to_builtins(_settings_that_count(settings)))) for settings in (before, now))
    apart = [name for name in {**earlier, **later} if earlier.get(name) != later.get(name)]
    if any(name.startswith("server.options.") for name in apart):
        apart = [name for name in apart if name != "server.argv"]  # it differs in these options
    both = [(name, str(earlier.get(name)), str(later.get(name))) for name in apart]
    return [
        f"{name} differs" if max(len(old), len(new)) > _SHOWN else f"{name}: {old}, now {new}"
        for name, old, new in both
    ]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the fields of nested objects, each with its name from the outermost one on; a list is one value."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, part in value.items():
        yield from _leaves(part, f"{name}.{key}" if name else str(key))


def serves_alike(planned: ServerRecord, record: ServerRecord, model_path: str) -> bool:
    """Return True if a server that would be started as `planned` is the same as one that was started, by content.

    What only a server that answers can tell is not compared.
    """
    return _as_planned(planned, model_path) == _as_planned(record, model_path)


def _as_planned(record: ServerRecord, model_path: str) -> ServerRecord:
    """Return the server's record without what only a probe finds out, as a plan knows it."""
    known = server_content(record, model_path)
    return replace(
        known,
        members=[_as_planned(member, model_path) for member in known.members],
        dialect=None,
        answered_by="",
        unchecked=[],
        max_model_len=0,
        version="",
        software="",
        packages=record.packages,
    )


def at_present_places(record: RunRecord, settings: RunSettings) -> RunRecord:
    """Return the record of a kept run with the places that the same settings have now: those noted may be gone."""
    server = _at_present(record.settings.server, settings.server)
    return replace(
        record, settings=replace(record.settings, model=settings.model, dataset=settings.dataset, server=server)
    )


def _at_present(kept: ServerRecord, now: ServerRecord) -> ServerRecord:
    """Return `kept` with the files of `now`; the address stays that of the server that was measured."""
    members = [_at_present(before, other) for before, other in zip(kept.members, now.members, strict=True)]
    present = iter(_without_address(now.argv))
    argv = [word if of_address else next(present) for word, of_address in _by_part(kept.argv)]
    return replace(kept, argv=argv, env=now.env, container=now.container, ca_file=now.ca_file, members=members)


def server_content(server: ServerRecord, model_path: str) -> ServerRecord:
    """Return the record of a server without what no result depends on: see settings_sha256."""
    known = replace(server, access=NO_ACCESS, ca_file="", model_folder="")
    if not server.owned:
        reported = known.identities.items()
        return replace(
            known, identities={at: replace(each, process_started_s=None, unanswered={}) for at, each in reported}
        )
    program, *words = server.argv or [""]
    return replace(
        known,
        endpoint="",
        replicas=[],
        members=[server_content(member, model_path) for member in server.members],
        nodes=[NodeRecord(name=node.name, launcher="") for node in server.nodes],
        log="",
        supervisor_pid=None,
        started_at="",
        ready_after_s=None,
        argv=[Path(program).name, *(_content(word, model_path) for word in _without_address(words))],
        env={
            key: os.pathsep.join(_content(part, model_path) for part in value.split(os.pathsep))
            for key, value in server.env.items()
        },
        container=replace(server.container, mounts=[], passed=[]) if server.container else None,
    )


def _without_address(words: Iterable[str]) -> Iterator[str]:
    return (word for word, of_address in _by_part(words) if not of_address)


def _by_part(words: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield each word of a server's command line, with True if it states the server's host or port."""
    before = ""
    for word in words:
        yield word, before in _ADDRESS or word.partition("=")[0] in _ADDRESS
        before = word


def _content(word: str, model_path: str) -> str:
    """Return a word with the path in it, after an option's `=` or alone, replaced by what lies there."""
    option, equals, path = word.partition("=") if word.startswith("-") else ("", "", word)
    if not path.startswith("/"):
        return word
    if model_path and Path(path) == Path(model_path):
        return f"{option}{equals}(model)"
    place = Path(path)
    try:
        if place.is_file() and place.stat().st_size <= _MOST_BYTES:
            return f"{option}{equals}sha256:{sha256_of(place)}"
    except OSError:
        pass
    return f"{option}{equals}{place.name}"

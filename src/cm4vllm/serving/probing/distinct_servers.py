"""Proof that servers at several addresses are several servers of one system."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations

from cm4vllm.common.errors import ServerUnsuitable, UsageError
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.probing.server_identities import optional_page, unlike
from cm4vllm.serving.probing.server_requests import ONCE, Site, require_distinct_addresses, sites_of

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

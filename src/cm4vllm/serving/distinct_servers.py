"""Proof that servers at several addresses are several servers of one system."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations

from cm4vllm.common.errors import ServerUnsuitable, UsageError
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.server_identities import unlike
from cm4vllm.serving.server_metrics import look
from cm4vllm.serving.server_places import ONCE, require_distinct_addresses
from cm4vllm.serving.server_requests import Site, sites_of

__all__ = ["require_distinct", "require_one_system"]

#: Seconds until a server has counted the answer that it gave.
_COUNTED_S = 0.2
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


def require_distinct(records: Sequence[ServerRecord], ask: Callable[[Site], object]) -> None:
    """Raise UsageError where two of the servers of these records, one each, are one. `ask` has one answer a few tokens.

    Two addresses of one machine, or ports that lead to one container, show in the server's own reports: both have the
    same start of the process, and an answer at one address is counted at the other.
    """
    if len(records) < 2:
        return
    require_distinct_addresses([record.endpoint for record in records], resolved=True)
    for first, second in combinations(records, 2):
        starts = [record.identities[record.endpoint].process_started_s for record in (first, second)]
        if starts[0] is None or starts[0] != starts[1]:
            continue
        asked, other = sites_of(first)[0], sites_of(second)[0]
        before = look(other)
        with suppress(ServerUnsuitable):
            ask(asked)
        time.sleep(_COUNTED_S)
        after = look(other)
        if before and after and after.generation_tokens > before.generation_tokens:
            raise UsageError(
                f"{first.endpoint} and {second.endpoint} are one server, given twice",
                cause="both report the same start of their process, and tokens that were generated at "
                f"{first.endpoint} are counted at {second.endpoint}",
                remedy=ONCE,
            )

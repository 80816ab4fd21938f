"""The rounds of MLPerf Inference and what ties a log to one of them."""

from __future__ import annotations

from dataclasses import dataclass

from cm4vllm.common.errors import UsageError, nearest

__all__ = ["ROUNDS", "Round", "round_named"]


@dataclass(frozen=True)
class Round:
    """One round.

    `seeds` are qsl, sample_index and schedule, compared exactly by the checker
    (tools/submission/submission_checker/constants.py). They are compiled into LoadGen, so a round can only be run
    with one of the wheels `loadgen_first` to `loadgen_last` of mlcommons-loadgen; `loadgen` is the one we install.
    """

    name: str
    seeds: tuple[int, int, int]
    loadgen_first: str
    loadgen_last: str
    loadgen: str
    supported: bool = False


ROUNDS = {
    round_.name: round_
    for round_ in (
        Round("v4.1", (3066443479025735752, 10688027786191513374, 14962580496156340209), "4.1.30", "5.0.0", "5.0.0"),
        Round("v5.0", (6023615788873153749, 15036839855038426416, 9933818062894767841), "5.0.9", "5.0.21", "5.0.21"),
        Round("v5.1", (1780908523862526354, 14771362308971278857, 18209322760996052031), "5.0.22", "6.0.4", "6.0.4"),
        Round("v6.0", (2465351861681999779, 14276810075590677512, 3936089224930324775), "6.0.5", "6.0.15", "6.0.15"),
        Round("v6.1", (2085463073848966840, 2747215439041700203, 16159082839903944936), "6.0.16", "6.0.17", "6.0.17",
              supported=True),
    )
}  # fmt: skip


def round_named(name: str) -> Round:
    """Return the round called `name` (v6.1, r6.1 or 6.1). Raises UsageError when it is unknown or not there yet."""
    key = "v" + name.strip().lower().lstrip("vr")
    if key not in ROUNDS:
        raise UsageError(f"unknown round {name!r}", remedy=nearest(key, ROUNDS))
    found = ROUNDS[key]
    if not found.supported:
        there = ", ".join(r.name for r in ROUNDS.values() if r.supported)
        raise UsageError(
            f"round {found.name} is not there yet",
            cause=f"its logs need the seeds of mlcommons-loadgen {found.loadgen_first} to {found.loadgen_last} and its "
            "own submission tree, which are not built yet",
            remedy=f"run round {there} instead: --tags=run-mlperf,inference,_r{there.removeprefix('v')} and a model of "
            "that round",
        )
    return found

"""Options of vLLM that single points of a curve have beside those of the job: --point_args, understood."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from cm4vllm.common.errors import UsageError

__all__ = ["point_options"]

_FORM = "CONCURRENCY[,CONCURRENCY...]: OPTIONS[; ...], for example '23,40: --max-num-seqs=64'"


def point_options(text: str, points: Collection[int], *, served: bool) -> dict[int, str]:
    """Return the options of each point that has any, by its concurrency.

    `points` are those of --points; `served` says that the server is not started by the job. Raises UsageError.
    """
    if not text.strip():
        return {}
    if served:
        raise UsageError(
            "--point_args has no effect with --api_server", cause="the job does not start that server, nor restart it"
        )
    if not points:
        raise UsageError(
            "--point_args needs --points", cause="points are placed by the rates of the server that they are run on"
        )
    options: dict[int, str] = {}
    for part in filter(str.strip, text.split(";")):
        named, colon, words = part.partition(":")
        if not colon or not words.strip():
            raise UsageError(f"--point_args: {part.strip()!r} names no options", remedy=f"give {_FORM}")
        for word in named.split(","):
            if not word.strip().isdecimal() or int(word) not in points:
                raise UsageError(
                    f"--point_args names {word.strip()!r}, which is none of --points={','.join(map(str, points))}",
                    remedy=f"give {_FORM}",
                )
            try:
                options[int(word)] = shlex.join(shlex.split(words))
            except ValueError as error:
                raise UsageError(f"--point_args: {words.strip()!r} cannot be read", cause=str(error)) from error
    return options

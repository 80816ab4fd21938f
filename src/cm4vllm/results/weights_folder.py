"""Weights that are at hand for results of a tree: what their files state, and which results they are said to be of."""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.records.weights.checkpoint import read_weights
from cm4vllm.results.model import Result, ServedWeights, Submission
from cm4vllm.rules import CatalogueModel, catalogue, published_digests


def with_weights(submissions: Sequence[Submission], folder: Path, pattern: str = "") -> tuple[Submission, ...]:
    """Return the submissions with the weights in `folder` at hand for the results that `pattern` names.

    `pattern` is that of <system>/<model> or of <model>, with * and ?; empty for all results, which then are of one
    model. Raises UsageError where it names none, and where the results are of several models.
    """
    named = {
        id(submission): [result for result in submission.results if _is_named(result, pattern)]
        for submission in submissions
    }
    results = [result for group in named.values() for result in group]
    models = sorted({result.model for result in results})
    if not results:
        raise UsageError(
            f"no result is named by {pattern!r}" if pattern else "the tree has no results",
            remedy="name a model's folder of the tree: --tags=check,mlperf,results --weights_of=MODEL",
        )
    if len({re.sub(r"-99(?:\.9)?$", "", name) for name in models}) > 1 and not pattern:
        raise UsageError(
            "one folder of weights cannot be that of several models",
            cause=", ".join(models),
            remedy="name its results: --tags=check,mlperf,results --weights_of=SYSTEM/MODEL",
        )
    try:
        served = ServedWeights(folder, (), read_weights(folder))
    except CmError as error:
        served = ServedWeights(folder, (), None, error.what, error.cause)
    return tuple(
        replace(submission, weights=(replace(served, results=tuple(named[id(submission)])),))
        if named[id(submission)]
        else submission
        for submission in submissions
    )


def published_model(result: Result) -> tuple[CatalogueModel, dict[str, str]] | None:
    """Return the reference model of a result's benchmark, and the digests published for its files; None for none."""
    assets = catalogue().benchmarks.get(result.benchmark)
    if assets is None or result.mapped:
        return None
    return catalogue().model(assets.model), published_digests(assets.model)


def _is_named(result: Result, pattern: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern or "*") for name in (result.model, f"{result.system}/{result.model}"))

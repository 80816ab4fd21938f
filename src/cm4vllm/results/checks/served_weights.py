"""Weights that are at hand: for which results they are, and whether they are what a tree claims of them."""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.files import digest_of, sha256_of_tree
from cm4vllm.common.progress import step
from cm4vllm.records.weights.checkpoint import Weights, read_weights
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.results.checks.subjects import is_strict
from cm4vllm.results.model import Result, ServedWeights, Submission
from cm4vllm.rules import CatalogueModel, catalogue, published_digests

_MODEL = "inference_policies/inference_rules.adoc, Model"
_GIVE = "give the folder of the weights that were served, or correct what the tree claims"
#: The names of weight types in measurements.json, by their names in the headers and config.json of a model.
_WORDS = {
    "fp64": r"fp64|float64",
    "fp32": r"fp32|float32",
    "fp16": r"(?<!b)fp16|(?<!b)float16|\bhalf\b",
    "bf16": r"bf16|bfloat16",
    "fp8": r"fp8|float8|e4m3|e5m2",
    "int8": r"int8|w8a8|w8a16",
    "int4": r"int4|w4a16|w4a8|gptq|awq",
    "fp4": r"fp4|float4|nf4",
    "int3": r"int3",
    "int2": r"int2",
}
_NOT_QUANTISED = ("fp64", "fp32", "fp16", "bf16")
_SIZE = re.compile(r"(?<![\d.x])(\d+(?:\.\d+)?)b(?![a-z\d])", re.IGNORECASE)
#: By which part the parameters of a benchmark's own model may differ: scales, and layers that predict
#: several tokens, are added (2 % of DeepSeek-R1).
_OWN_TOLERANCE = 0.05
#: The same of a size in a name: Llama-2-7b has 6.74 billions.
_NAMED_TOLERANCE = 0.15
_NONE = ("", "none", "no", "n/a", "na", "-")


def _at_hand(submission: Submission) -> Iterator[tuple[ServedWeights, Weights, Result]]:
    """Yield each result whose weights are at hand and can be read: one of each model of a system."""
    for served in submission.weights:
        seen = set()
        for result in served.results:
            key = result.file("measurements")
            if served.weights is not None and key not in seen:
                seen.add(key)
                yield served, served.weights, result


@check(
    "SERVED-UNREADABLE",
    source="the format of safetensors",
    remedy="copy or download the model again",
    stage=Stage.TREE,
    each=whole,
)
def readable(submission: Submission) -> Iterator[Fault]:
    """The weights at hand are whole safetensors files, all that their index names."""
    return (
        Fault(served.problem, str(served.folder), "", served.cause, "weights")
        for served in submission.weights
        if served.weights is None
    )


@check(
    "SERVED-TYPE",
    source="tools/submission/submission_checker/constants.py, SYSTEM_IMP_REQUIRED_FILES",
    remedy=_GIVE,
    stage=Stage.TREE,
    each=_at_hand,
)
def data_type(_: ServedWeights, weights: Weights, result: Result) -> Iterator[Fault]:
    """The type of the weights is the one that measurements.json states."""
    said = str(result.measurements.get("weight_data_types", ""))
    stated = [name for name, words in _WORDS.items() if re.search(words, said, re.IGNORECASE)]
    if not stated or not weights.data_type or weights.data_type in stated:
        return
    hidden = weights.data_type not in _NOT_QUANTISED and all(name in _NOT_QUANTISED for name in stated)
    yield Fault(
        "the weights are quantised, and stated as not quantised"
        if hidden
        else "the weights at hand have another type than is stated",
        result.file("measurements"),
        "weight_data_types",
        said,
        f"{weights.data_type}, as the files of the weights state",
        # A server can quantise what it loads, and a checkpoint in fp16 is served in bf16.
        severity=None if hidden else Severity.WARNING,
    )


@check("SERVED-PARAMETERS", source=_MODEL, remedy=_GIVE, stage=Stage.TREE, each=_at_hand)
def parameters(_: ServedWeights, weights: Weights, result: Result) -> Iterator[Fault]:
    """The weights have as many parameters as the model that the result is of."""
    claimed = _claimed_size(result)
    if weights.parameters is None or claimed is None:
        return
    number, tolerance, whose = claimed
    if abs(weights.parameters / number - 1) > tolerance:
        yield Fault(
            "the weights at hand are of a model of another size",
            result.file("measurements"),
            "parameters",
            f"{weights.parameters:,}",
            f"about {number:,}, as {whose} has",
        )


def _claimed_size(result: Result) -> tuple[int, float, str] | None:
    """Return the claimed number of parameters, the part by which it may differ, and the source of the claim."""
    published = published_model(result)
    if published is not None and published[0].config:
        try:
            return read_architecture(published[0].config).parameters, _OWN_TOLERANCE, result.benchmark
        except CmError:
            return None
    sizes = {float(size) for size in _SIZE.findall(result.model)}
    return (round(sizes.pop() * 1e9), _NAMED_TOLERANCE, result.model) if len(sizes) == 1 else None


@check(
    "SERVED-DIGESTS",
    source="src/cm4vllm/rules/digests, as MLCommons publishes them; measurements.json, model_sha256",
    remedy=_GIVE,
    stage=Stage.TREE,
    each=whole,
)
def digests(submission: Submission) -> Iterator[Fault]:
    """Weights that are stated as published or with their digest have these digests."""
    of_folder, of_file = cache(_of_folder), cache(digest_of)  # the results of a model share its files
    for served, weights, result in _at_hand(submission):
        where, stated = result.file("measurements"), result.measurements
        if sha256 := str(stated.get("model_sha256", "")):
            yield _same_files(where, of_folder(served.folder), sha256)
            continue
        published = published_model(result)
        transformed = str(stated.get("weight_transformations", "")).strip().lower() not in _NONE
        known = {Path(name).name: digest for name, digest in published[1].items()} if published else {}
        if not known or transformed:
            continue  # no digests are published of weights that were transformed
        unknown = [path.name for path in weights.files if path.name not in known]
        others = [
            path.name
            for path in weights.files
            if not unknown and of_file(path, known[path.name].partition(":")[0]) != known[path.name]
        ]
        yield _digest_fault(where, len(weights.files), unknown, others, strict=is_strict(submission))


def _of_folder(folder: Path) -> str:
    with step(f"SHA-256 of {folder}"):
        return sha256_of_tree(folder)


def _same_files(where: str, digest: str, stated: str) -> Fault:
    if digest == stated:
        return Fault(
            "the weights at hand are those that were served, by their digest",
            where,
            "model_sha256",
            digest,
            severity=Severity.NOTE,
            remedy="",
        )
    return Fault("the weights at hand are not those that were served", where, "model_sha256", stated, digest)


def _digest_fault(where: str, count: int, unknown: list[str], others: list[str], *, strict: bool) -> Fault:
    if not unknown and not others:
        return Fault(
            "the weights at hand are the published ones, by their digests",
            where,
            "",
            f"{count} files",
            severity=Severity.NOTE,
            remedy="",
        )
    return Fault(
        "the weights are stated as the reference's, and are not the published files",
        where,
        "weight_transformations",
        ", ".join((unknown or others)[:3]),
        "files with the MD5 that MLCommons publishes",
        # The same weights can be saved in other files, and the open division may serve any.
        severity=None if others and strict else Severity.WARNING,
    )


def with_weights(submissions: Sequence[Submission], folder: Path, pattern: str = "") -> tuple[Submission, ...]:
    """Return the submissions with the weights in `folder` at hand for the results that `pattern` names.

    `pattern` is that of <system>/<model> or of <model>, with * and ?; empty for all results, which then are of one
    model. Raises UsageError where it names none, and where the results are of several models.
    """
    named = {
        id(submission): [
            result
            for result in submission.results
            if any(fnmatch.fnmatch(name, pattern or "*") for name in (result.model, f"{result.system}/{result.model}"))
        ]
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

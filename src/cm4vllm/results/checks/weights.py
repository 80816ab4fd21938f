"""What a tree states of the weights that were served: against the model's name, the system's and calibration.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cm4vllm.results.checks.check import Fault, Stage, check
from cm4vllm.results.findings import Severity
from cm4vllm.results.model import Result, Submission

__all__: list[str] = []

_CONSTANTS = "tools/submission/submission_checker/constants.py, SYSTEM_IMP_REQUIRED_FILES"
_KEYS = ("input_data_types", "retraining", "starting_weights_filename", "weight_data_types", "weight_transformations")
_STATE = "state in measurements.json the weights that were served, their types and how they were made"
_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)b(?![a-z\d])", re.IGNORECASE)
_METHOD = re.compile(r"(?<![A-Za-z])(GPTQ|AWQ|FP8|INT8|INT4|MXFP4|NVFP4|FP4|W4A16|W8A8)(?![A-Za-z])", re.IGNORECASE)
_NOT_QUANTISED = re.compile(r"fp32|float32|fp16|float16|bf16|bfloat16", re.IGNORECASE)
_NONE = frozenset({"none", "no", "n/a", "na", "-"})


@check("WEIGHTS-KEYS", "what is stated of the weights is complete", source=_CONSTANTS, remedy=_STATE, stage=Stage.TREE)
def keys(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        stated = result.measurements
        missing = [key for key in _KEYS if not stated.get(key)]
        if stated and missing:
            yield Fault(
                "facts on the weights are missing",
                result.files.get("measurements", ""),
                ", ".join(missing),
                "nothing",
                "a value",
            )


@check(
    "WEIGHTS-MODEL",
    "the starting weights are those of the model that the result is of",
    source=_CONSTANTS,
    remedy=_STATE,
    stage=Stage.TREE,
)
def of_the_model(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        weights = str(result.measurements.get("starting_weights_filename", ""))
        stated, named = set(_SIZE.findall(weights.lower())), set(_SIZE.findall(result.model.lower()))
        if stated and named and not stated & named:
            yield Fault(
                "the starting weights are of a model of another size",
                result.files.get("measurements", ""),
                "starting_weights_filename",
                weights,
                f"weights of {result.model}",
            )


@check(
    "WEIGHTS-TYPES",
    "the stated types of the weights are those that the names and calibration.md state",
    source=_CONSTANTS,
    remedy=_STATE,
    severity=Severity.WARNING,
    stage=Stage.TREE,
)
def types(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        said = " ".join(
            str(result.measurements.get(key, "")) for key in ("weight_data_types", "weight_transformations")
        )
        transformed = str(result.measurements.get("weight_transformations", "")).strip().lower()
        if not result.measurements or _METHOD.search(said) or not _NOT_QUANTISED.search(said):
            continue
        named = _METHOD.search(f"{result.system} {result.model}")
        if named and transformed in _NONE:
            yield Fault(
                "the names state quantised weights, the facts do not",
                result.files.get("measurements", ""),
                "weight_data_types, weight_transformations",
                said,
                named[0].lower(),
                severity=Severity.ERROR,
            )
        elif transformed in _NONE and (found := _calibrated(submission.home, result)):
            yield Fault(
                "calibration.md states quantised weights, the facts do not",
                result.files.get("measurements", ""),
                "weight_data_types, weight_transformations",
                said,
                found,
            )


def _calibrated(home: Path, result: Result) -> str:
    """Return the one method that calibration.md names, where it states no choice between several."""
    found = _methods(home)
    return next(iter(found)) if len(found) == 1 and result.measurements else ""


@cache
def _methods(home: Path) -> frozenset[str]:
    pages = [home / "calibration.md", home / "documentation" / "calibration.md"]
    text = " ".join(path.read_text(errors="replace", encoding="utf-8") for path in pages if path.is_file())
    return frozenset(one.lower() for one in _METHOD.findall(text))


@check(
    "MODEL-NOT-VERIFIABLE",
    "the model that was served is the one that is claimed",
    source="inference_policies/inference_rules.adoc, Model",
    remedy="publish revision and SHA-256 of the weights",
    severity=Severity.NOTE,
    stage=Stage.TREE,
)
def verifiable(submission: Submission) -> Iterator[Fault]:
    at_hand = {one.folder for served in submission.weights for one in served.results}
    left = [] if submission.campaign else [one for one in submission.results if one.folder not in at_hand]
    stated = {one.model for one in left if one.measurements.get("model_sha256")}
    for models, what, remedy in (
        (
            {one.model for one in left} - stated,
            "the tree holds no weights and no digests of them: which model was served cannot be verified",
            None,
        ),
        (
            stated,
            "the tree states digests of the weights, which are not at hand: which model was served is not verified",
            "compare them: --tags=check,mlperf,results --input=TREE --weights=FOLDER",
        ),
    ):
        if models:
            place = f"{submission.division}/{submission.submitter}"
            yield Fault(what, place, "", ", ".join(sorted(models)), remedy=remedy)


@check(
    "MODEL-MAPPED",
    "a model under another name counts as the benchmark that model_mapping.json states; in the closed "
    "division there is no such model",
    source="tools/submission/submission_checker/checks",
    severity=Severity.NOTE,
    remedy="submit it to the open division",
    stage=Stage.TREE,
)
def mapped(submission: Submission) -> Iterator[Fault]:
    for name, benchmark in submission.mapping.items():
        used = [one for one in submission.results if one.model == name]
        sizes = set(_SIZE.findall(name.lower())), set(_SIZE.findall(benchmark.lower()))
        other = bool(sizes[0] and sizes[1] and not sizes[0] & sizes[1])
        severity = Severity.ERROR if submission.division != "open" else Severity.WARNING if other else None
        what = "a model of another size counts as the benchmark" if other else "a model counts as the benchmark"
        if used:
            yield Fault(
                f"{what}: {len(used)} results",
                f"{submission.division}/{submission.submitter}/model_mapping.json",
                name,
                benchmark,
                "" if not other else f"a page that says that {name} was served",
                severity=severity,
            )

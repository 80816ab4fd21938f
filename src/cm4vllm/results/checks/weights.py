"""Compares the weights that a tree states with the model's name, the system's name and calibration.md."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.subjects import results, strict_results, with_submission
from cm4vllm.results.log_folders import text_at
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.submitted_names import models_served
from cm4vllm.rules import Division

_CONSTANTS = "tools/submission/submission_checker/constants.py, SYSTEM_IMP_REQUIRED_FILES"
_KEYS = ("input_data_types", "retraining", "starting_weights_filename", "weight_data_types", "weight_transformations")
_STATE = "state in measurements.json the weights that were served, their types and how they were made"
_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)b(?![a-z\d])", re.IGNORECASE)
#: The letters of a name before its first number, words of them joined by a hyphen.
_FAMILY = re.compile(r"[a-z]+(?:-[a-z]+(?![a-z\d]))*")
#: The version behind a family's name: 2 of llama-2-70b, 3.1 of llama3_1-8b; a size is none.
_VERSION = r"[-_ ]?v?(\d+(?:[._]\d+)?)(?![\dbx.])"
#: A family of fewer letters would be found in other words.
_LEAST_LETTERS = 4
_METHOD = re.compile(r"(?<![A-Za-z])(GPTQ|AWQ|FP8|INT8|INT4|MXFP4|NVFP4|FP4|W4A16|W8A8)(?![A-Za-z])", re.IGNORECASE)
#: The types of the weights that methods of quantisation make, where the method is not called by its type.
_TYPES = {
    "gptq": ("int4", "int8"),
    "awq": ("int4",),
    "w4a16": ("int4",),
    "w8a8": ("int8", "fp8"),
    "mxfp4": ("fp4",),
    "nvfp4": ("fp4",),
}
_NOT_QUANTISED = re.compile(r"fp32|float32|fp16|float16|bf16|bfloat16", re.IGNORECASE)
_NONE = frozenset({"none", "no", "n/a", "na", "-"})


@check("WEIGHTS-KEYS", source=_CONSTANTS, remedy=_STATE, stage=Stage.TREE, each=results)
def keys(result: Result) -> Iterator[Fault]:
    """The statement of the weights is complete."""
    stated = result.measurements
    missing = [key for key in _KEYS if not stated.get(key)]
    if stated and missing:
        yield Fault(
            "facts on the weights are missing", result.file("measurements"), ", ".join(missing), "nothing", "a value"
        )


@check("WEIGHTS-MODEL", source=_CONSTANTS, remedy=_STATE, stage=Stage.TREE, each=results)
def of_the_model(result: Result) -> Iterator[Fault]:
    """The starting weights are those of the model that the result is of."""
    weights = str(result.measurements.get("starting_weights_filename", ""))
    stated, named = set(_SIZE.findall(weights.lower())), set(_SIZE.findall(result.model.lower()))
    fault = ""
    if stated and named and not stated & named:
        fault = "the starting weights are of a model of another size"
    elif other := _other_model(weights.lower(), result):
        fault = f"the starting weights are those of {other}"
    if fault:
        yield Fault(
            fault, result.file("measurements"), "starting_weights_filename", weights, f"weights of {result.model}"
        )


def _other_model(weights: str, result: Result) -> str:
    """Return the model of the rules that the text names instead of the result's; empty where it names none of them."""
    known = rules.if_known(rules.benchmark_terms, result.round, result.benchmark)
    model = result.model if result.mapped else known.model if known else ""
    family = _family(model.lower())
    if family not in _families().values():
        return ""  # not a model of the rules, or one that its submitter made from others
    if not re.search(_word(family), weights):
        named = [family for family, other in _families().items() if re.search(_word(other), weights)]
        return named[0] if named else ""
    stated, expected = (
        {version.replace("_", ".") for version in re.findall(_word(family) + _VERSION, text)}
        for text in (weights, model.lower())
    )
    return f"{family} {min(stated)}" if stated and expected and not stated & expected else ""


@cache
def _families() -> dict[str, str]:
    """Return the models of all rounds, and of which family each is: llama of Llama-2-70b-chat-hf."""
    models = {
        rules.benchmark_terms(name, benchmark).model
        for name in rules.round_names()
        for benchmark in rules.benchmark_names(name)
    }
    return {model: family for model in sorted(models) if len(family := _family(model.lower())) >= _LEAST_LETTERS}


def _family(name: str) -> str:
    """Return the letters that a model's name begins with: gpt-oss of gpt-oss-120b, llama of llama3.1-8b."""
    match = _FAMILY.match(name.rpartition("/")[2])
    return match[0] if match else ""


def _word(family: str) -> str:
    return rf"(?<![a-z]){re.escape(family).replace('-', '-?')}"


@check(
    "WEIGHTS-TYPES",
    source=_CONSTANTS,
    remedy=_STATE,
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=with_submission(results),
)
def types(submission: Submission, result: Result) -> Iterator[Fault]:
    """The stated types of the weights are those that the names and calibration.md state."""
    said = " ".join(str(result.measurements.get(key, "")) for key in ("weight_data_types", "weight_transformations"))
    transformed = str(result.measurements.get("weight_transformations", "")).strip().lower()
    where, fields = result.file("measurements"), "weight_data_types, weight_transformations"
    if _METHOD.search(said):
        yield from _other_types(submission.home, result, said, where, fields)
        return
    if not result.measurements or not _NOT_QUANTISED.search(said):
        return
    named = next(filter(None, map(_METHOD.search, _names(result))), None)
    if named and (transformed in _NONE or named.string == result.measurements.get("starting_weights_filename")):
        yield Fault(
            "the names state quantised weights, the facts do not"
            if transformed in _NONE
            else "the weights that were quantised before are stated with a type that is not quantised",
            where,
            fields,
            said,
            f"{named[0].lower()}, as in {named.string}",
            severity=Severity.ERROR if transformed in _NONE else None,
        )
    elif transformed in _NONE and len(methods := _methods(submission.home, result.division)) == 1:
        yield Fault("calibration.md states quantised weights, the facts do not", where, fields, said, "".join(methods))


def _other_types(home: Path, result: Result, said: str, where: str, fields: str) -> Iterator[Fault]:
    """Yield the types that the names of a result, or the one that calibration.md, states instead of the stated ones."""
    stated = _types_of(_METHOD.findall(said))
    named = {name: _types_of(methods) for name in _names(result) if (methods := _METHOD.findall(name))}
    page = _types_of(_methods(home, result.division))
    if len(page) == 1:
        named["calibration.md"] = page
    for name, types in named.items():
        if not stated & types:
            yield Fault("the weights are stated with another type", where, fields, said, f"{min(types)}, as in {name}")
            return


def _types_of(methods: Iterable[str]) -> set[str]:
    return {data_type for method in methods for data_type in _TYPES.get(method.lower(), (method.lower(),))}


def _names(result: Result) -> Iterator[str]:
    """Yield the names of a result that may say how its weights were quantised, where its commands serve one model."""
    yield from (result.system, result.model, str(result.measurements.get("starting_weights_filename", "")))
    served = models_served(result.readme)
    yield from served if len(served) == 1 else ()


@cache
def _methods(home: Path, division: str) -> frozenset[str]:
    text = "\n".join(map(text_at, [home / "calibration.md", home / "documentation" / "calibration.md"]))
    return frozenset(method.lower() for method in _METHOD.findall(_of_division(text, division)))


def _of_division(page: str, division: str) -> str:
    """Return a page without the sections whose heading names another division, up to the next heading of that level."""
    others = [str(other) for other in Division if other != division]
    kept, left_out = [], 0  # the level of the heading that is left out, 0 for none
    for line in page.splitlines():
        if heading := re.match(r"(#+)\s", line):
            level, title = len(heading[1]), line.lower()
            if not left_out or level <= left_out:
                of_another = any(re.search(rf"\b{name} division", title) for name in others)
                left_out = level if of_another and f"{division} division" not in title else 0
        if not left_out:
            kept.append(line)
    return "\n".join(kept)


@check(
    "WEIGHTS-RETRAINED",
    source="inference_policies/inference_rules.adoc, Model",
    remedy="submit it to the open division",
    stage=Stage.TREE,
    each=strict_results,
)
def retrained(result: Result) -> Iterator[Fault]:
    """A closed result is of weights that were not trained again."""
    said = str(result.measurements.get("retraining", ""))
    if said.strip().lower() in ("yes", "true"):
        yield Fault("the weights were trained again", result.file("measurements"), "retraining", said, "no")


@check(
    "MODEL-NOT-VERIFIABLE",
    source="inference_policies/inference_rules.adoc, Model",
    remedy="publish revision and SHA-256 of the weights",
    severity=Severity.NOTE,
    stage=Stage.TREE,
    each=whole,
)
def verifiable(submission: Submission) -> Iterator[Fault]:
    """The model that was served is the one that is claimed."""
    at_hand = {result.folder for served in submission.weights for result in served.results}
    left = [] if submission.campaign else [result for result in submission.results if result.folder not in at_hand]
    stated = {result.model for result in left if result.measurements.get("model_sha256")}
    yield from (
        Fault(fault, submission.place, "", ", ".join(sorted(models)), remedy=remedy)
        for models, fault, remedy in (
            (
                {result.model for result in left} - stated,
                "the tree holds no weights and no digests of them: which model was served cannot be verified",
                None,
            ),
            (
                stated,
                "the tree states digests of the weights, which are not at hand: which model was served is not verified",
                "compare them: --tags=check,mlperf,results --input=TREE --weights=FOLDER",
            ),
        )
        if models
    )


@check(
    "MODEL-MAPPED",
    source="tools/submission/submission_checker/checks",
    severity=Severity.NOTE,
    remedy="submit it to the open division",
    stage=Stage.TREE,
    each=whole,
)
def mapped(submission: Submission) -> Iterator[Fault]:
    """A model under another name counts as the benchmark that model_mapping.json states; in the closed division there
    is no such model.
    """
    for name, benchmark in submission.mapping.items():
        used = [result for result in submission.results if result.model == name and result.mapped]
        sizes = set(_SIZE.findall(name.lower())), set(_SIZE.findall(benchmark.lower()))
        other = bool(sizes[0] and sizes[1] and not sizes[0] & sizes[1])
        severity = Severity.ERROR if submission.division != "open" else Severity.WARNING if other else None
        fault = "a model of another size counts as the benchmark" if other else "a model counts as the benchmark"
        if used:
            yield Fault(
                f"{fault}: {len(used)} results",
                f"{submission.place}/model_mapping.json",
                name,
                benchmark,
                "" if not other else f"a page that says that {name} was served",
                severity=severity,
            )

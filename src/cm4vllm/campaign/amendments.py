"""The changes that `--adr` asks for: settings of the whole job, inputs of its steps, and what only the engine applies.

--adr.ml-model.tags=_hf.ORG/NAME       the job's model, as the variation _hf.ORG/NAME of the job
--adr.vllm-server.max_num_seqs=64      a flag that the job has, too: the same as that flag of the job
--adr.vllm-server.seed=7               a flag of the recipe alone: an input of the steps that run it
--adr.loadgen.version=6.0.1            versions and other tags: applied by the engine, to steps as to dependencies
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cm4vllm.campaign.planning.steps import RECIPES, Step, StepInput, given_values
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.serving.installation.vllm_choice import DEVICES

#: The tags of the recipe whose flags are the settings of the whole job.
JOB = "run-mlperf,inference"

#: Returns for {"tags": ...} of a recipe the environment key of each flag (`inputs`) and the names below it (`names`).
AdrTargets = Callable[[dict[str, Any]], Mapping[str, Any]]

#: The setting for the source of the model, as a variation, and the settings for files, by the name of their step.
_MODEL = "CM_ML_MODEL_SOURCE"
_FILES = {
    "dataset": "CM_DATASET_FILE",
    "performance-dataset": "CM_PERFORMANCE_DATASET_FILE",
    "compliance-dataset": "CM_COMPLIANCE_DATASET_FILE",
    "calibration": "CM_CALIBRATION_DATASET_FILE",
}
_MODEL_SOURCES = ("_tiny", "_smollm2", "_dummy", "_hf", "_path", "_served", "_catalogue", "_mlcommons")
_DATASETS = {"_tiny": "tiny", "_articles": "articles", "_mlcommons": "benchmark"}
#: The name of vLLM's installation, whose tags are checked before the first step.
_VLLM = "vllm"
_LOADGEN, _ROUND = ("loadgen", "mlperf-inference-loadgen"), re.compile(r"_r\d+\.\d+")
#: Names of published command lines for what this project has no recipe of.
_REPLACED = {
    "compiler": "nothing is compiled: pip installs LoadGen",
    "mlperf-implementation": "the built-in client replaces the old fork of the reference client",
}


@dataclass(frozen=True)
class Amendments:
    """`settings` are environment keys of the job, `inputs` those of single steps; `rest` is left to the engine.

    `names` are all names that were given; without any there is no `adr_targets`.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[StepInput, ...] = ()
    rest: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    adr_targets: AdrTargets | None = None

    def without_effect(self, steps: Iterable[Step]) -> list[str]:
        """Return a sentence for each name that neither a step nor a dependency of a step has."""
        if self.adr_targets is None:
            return []
        listed = tuple(steps)
        known = {name for step in listed for name in step.names}
        for tags in dict.fromkeys(step.tags for step in listed):
            known |= set(self.adr_targets({"tags": tags})["names"])
        return [
            f"--adr.{name} has no effect: "
            + (_REPLACED.get(name) or f"no step of this job has that name, nor a dependency; {nearest(name, known)}")
            for name in self.names
            if name not in known
        ]


def amendments(adr: Mapping[str, Any] | None, adr_targets: AdrTargets, job: str = JOB) -> Amendments:
    """Sort the changes of `--adr`. `job` are the tags of the recipe whose flags count as settings.

    Raises UsageError for a model or a dataset that is named twice, and for a LoadGen of another round.
    """
    if not adr:
        return Amendments()
    own = set(adr_targets({"tags": job})["inputs"].values())
    settings: dict[str, str] = {}
    inputs: list[StepInput] = []
    rest: dict[str, Any] = {}
    for name, change in adr.items():
        left: dict[str, Any] = {}
        if name == _VLLM and isinstance(change, Mapping):
            settings |= _vllm(change.get("tags", ""))
        if name not in RECIPES or not isinstance(change, Mapping):
            rest[name] = change
            continue
        for flag, key, value in _entries(change, adr_targets({"tags": RECIPES[name]})["inputs"]):
            if flag == "tags":
                taken, tags = _sources(name, value)
                settings |= taken
                left |= {"tags": ",".join(tags)} if tags else {}
            elif not key:
                left[flag] = value
            elif key in own:
                settings[key] = _text(value)
            else:
                inputs.append(StepInput(name, flag, key, _text(value)))
        if left:
            rest[name] = left
    return Amendments(settings, tuple(inputs), rest, tuple(adr), adr_targets)


def _entries(change: Mapping[str, Any], keys: Mapping[str, str]) -> Iterable[tuple[str, str, Any]]:
    """Yield the settings of a change: name as typed, environment key (empty where it has none), value."""
    for flag, value in change.items():
        if flag == "env" and isinstance(value, Mapping):
            yield from ((f"env.{key}", key, setting) for key, setting in value.items())
        else:
            yield flag, keys.get(flag, ""), value


def _text(value: Any) -> str:
    """Return a value as the environment has it: a flag without a value says yes, a list is separated by commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _vllm(value: Any) -> dict[str, str]:
    """Return the settings that the tags for vLLM stand for, which the engine applies, too."""
    settings = {}
    for tag in (word.strip() for word in _text(value).split(",")):
        if tag.startswith("_version."):
            settings["CM_VLLM_WANTED_VERSION"] = tag.removeprefix("_version.")
        elif tag.removeprefix("_") in (*DEVICES, "system"):
            settings["CM_VLLM_VARIANT"] = tag.removeprefix("_")
    return settings


def _sources(name: str, value: Any) -> tuple[dict[str, str], list[str]]:
    """Return the settings that the tags for a step stand for, and the tags that are left."""
    tags = [word for word in _text(value).split(",") if word]
    if name in _LOADGEN and (rounds := [tag for tag in tags if _ROUND.fullmatch(tag)]):
        raise UsageError(
            f"--adr.{name}.tags={rounds[0]} cannot be given",
            cause="each round has seeds of its own, which are compiled into its LoadGen",
            remedy=f"give {rounds[0]} among the tags of the command itself",
        )
    if name == "ml-model":
        chosen = [tag for tag in tags if tag.partition(".")[0] in _MODEL_SOURCES]
    else:
        chosen = [tag for tag in tags if name in _FILES and (tag in _DATASETS or tag.startswith("_path."))]
    if len(chosen) > 1:
        raise UsageError(
            f"--adr.{name}.tags={_text(value)} names {len(chosen)} sources",
            cause=f"{' and '.join(chosen)} exclude each other",
            remedy="name one of them",
        )
    settings: dict[str, str] = {}
    for tag in chosen:
        if name == "ml-model":
            settings[_MODEL] = tag
        elif tag.startswith("_path."):
            settings[_FILES[name]] = tag.removeprefix("_path.")
        else:
            settings["CM_DATASET_SOURCE"] = _DATASETS[tag]
    return settings, [tag for tag in tags if tag not in chosen]


def added_inputs(step: Step, inputs: Iterable[StepInput]) -> tuple[StepInput, ...]:
    """Return the inputs that `--adr` adds to a step. Raises UsageError for an input that the job itself gives."""
    added = {amendment.key: amendment for amendment in inputs if amendment.name in step.names}
    for key, amendment in added.items():
        if key in given_values(step.inputs):
            raise UsageError(
                f"--adr.{amendment.name}.{amendment.flag} cannot be given",
                cause=f"the job itself gives it to the step {step.name}",
                remedy="leave it out, or use the flag of the job for it (--help lists them)",
            )
    return tuple(added.values())

"""The capsules of a place, compared with those of others.

A place is a file, a results folder, a submission tree, a part of either, or a curve.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError
from cm4vllm.common.progress import say
from cm4vllm.common.settings import Key, Settings
from cm4vllm.records.campaign import CAMPAIGN_FILE
from cm4vllm.results.capsule import RUN_RECORDS, Capsule
from cm4vllm.results.comparing.comparison import Comparison, compare
from cm4vllm.results.endpoints.curves import curves_at
from cm4vllm.results.run_folders import chosen_folder, open_results
from cm4vllm.submission.capsule.from_curve import capsule_of_curve
from cm4vllm.submission.capsule.from_records import capsule_of_runs
from cm4vllm.submission.capsule.from_tree import capsule_of_part
from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE, read_capsule, write_capsule


class CapsuleInputs(Settings, frozen=True, kw_only=True):
    """The place whose capsules are written, and the folder that they are written to."""

    source: Annotated[str, Key("CM_MLPERF_CAPSULE_SOURCE")]
    folder: Annotated[str, Key("CM_MLPERF_CAPSULES_DIR")] = ""


class CapsuleExports(Settings, frozen=True, kw_only=True):
    """The capsule that was written, the last one of several."""

    path: input_types.CapsuleFile


def write_capsules(inputs: CapsuleInputs) -> CapsuleExports:
    """Write and print the capsules of a place: that of a job into its folder, those of a tree into the present one."""
    source = Path(inputs.source).absolute()
    capsules = capsules_at(source)
    own = len(capsules) == 1 and capsules[0].made_from == RUN_RECORDS
    folder = Path(inputs.folder or (source if own else ".")).absolute()
    for capsule in capsules:
        path = folder / (CAPSULE_FILE if own else f"rerun-{capsule.system}-{capsule.model['name']}.yaml")
        write_capsule(path, capsule)
        runs = sum(len(result.parts) for result in capsule.results)
        unknown = (f"\n  not known: {field}" for field in capsule.unknown)
        say(f"capsule: {path}, {runs} runs, {len(capsule.unknown)} fields unknown{''.join(unknown)}")
    return CapsuleExports(path=str(path))


def capsules_at(place: Path) -> list[Capsule]:
    """Return the capsules of a place: that of a file, or one for each model on each system that was measured.

    Raises UsageError where there is no such place or capsule, SubmissionError where it holds no results.
    """
    if place.is_file():
        return [read_capsule(place)]
    if not place.exists():
        raise UsageError(
            f"{place} does not exist",
            remedy=f"give the file of a capsule ({CAPSULE_FILE} of a result), or a folder with results: a job's output "
            "folder or a submission tree",
        )
    if curves := curves_at(place):
        return [capsule_of_curve(place, curve) for curve in curves]
    if (place / CAPSULE_FILE).is_file() and not (place / "runs").is_dir():
        return [read_capsule(place / CAPSULE_FILE)]
    return [
        (capsule_of_runs if results[0].runs else capsule_of_part)(submission, results)
        for submission in open_results(place)
        for _, part in groupby(submission.results, key=lambda result: (result.system, result.model))
        if (results := list(part))
    ]


def capsule_at(place: Path, chosen: str = "") -> Capsule:
    """Return the capsule of a place; of a job's results that of its campaign.

    `chosen` is SYSTEM/MODEL where a tree has several. Raises UsageError where it is not clear which is meant.
    """
    if (place / CAMPAIGN_FILE).is_file() and not chosen:
        return capsule_of_results(place)
    capsules = capsules_at(place)
    meant = [capsule for capsule in capsules if not chosen or f"{capsule.system}/{capsule.model['name']}" == chosen]
    if len(meant) == 1:
        return meant[0]
    raise UsageError(
        f"{place} holds {'several capsules' if not chosen else f'no capsule {chosen}'}",
        cause=", ".join(f"{capsule.system}/{capsule.model['name']}" for capsule in capsules),
        remedy="choose one: --capsule_of=SYSTEM/MODEL of verify,mlperf",
    )


def capsule_of_results(out: Path) -> Capsule:
    """Return the capsule of the campaign whose results are in `out`. Raises SubmissionError where they hold no run."""
    (capsule,) = capsules_at(out if curves_at(out) else chosen_folder(out))
    return capsule


#: Results side by side at most: a page and a terminal have so much room.
MOST = 6


def compare_paths(paths: Sequence[Path]) -> Comparison:
    """Compare the results below these folders, each a campaign's, a tree's, that of a system or model, or a capsule.

    Raises UsageError where there are fewer than two or more than MOST, or nothing that two of them have; and what
    capsules_at raises.
    """
    capsules = [(path, capsule) for path in paths for capsule in capsules_at(path)]
    if len(capsules) < 2:
        raise UsageError(
            "there is one result alone, and nothing to compare it with",
            cause=", ".join(map(str, paths)),
            remedy="give a second folder or capsule with --input=A,B",
        )
    if len(capsules) > MOST:
        raise UsageError(
            f"{len(capsules)} results side by side are too many to read",
            cause=", ".join(capsule.title for _, capsule in capsules[:MOST]) + ", ...",
            remedy=f"give the folders of at most {MOST} systems or models, as TREE/open/NAME/results/SYSTEM",
        )
    comparison = compare(capsules)
    if not comparison.blocks:
        raise UsageError(
            "there is nothing to compare",
            cause="; ".join(
                f"{side.path} has {', '.join(' '.join(key) for key in side.results)}" for side in comparison.sides
            ),
            remedy="give results of the same benchmark in the same scenario",
        )
    return comparison

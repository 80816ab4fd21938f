"""Names of systems, and files that a script collected, against their descriptions: hardware and software."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.records.known_hardware import products_named
from cm4vllm.results.checks.of_systems.system_files import accelerator_count
from cm4vllm.results.checks.subjects import described_systems, results, with_submission
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.model import Result, Submission, System
from cm4vllm.results.submitted_names import accelerators_named, is_no_framework, serving_software

_SOURCE = "inference_policies/submission_rules.adoc, system description"
#: The prefixes that public automation gives to its keys.
_PREFIXES = ("CM_HOST_", "MLC_HOST_")
#: Counts of processors and cores that are collected, and the keys of the description that state them.
_COUNTS = {"CPU_SOCKETS": "host_processors_per_node", "CPU_PHYSICAL_CORES_PER_SOCKET": "host_processor_core_count"}
_NAME = "CPU_MODEL_NAME"
_SERVED = re.compile(r"vllm[ _-]v?(\d+(?:\.\d+)+)", re.IGNORECASE)


@check(
    "SYSTEM-ACCELERATORS",
    source=_SOURCE,
    remedy="state what the machine has in systems/<system>.json",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=described_systems,
)
def accelerators(system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """The accelerators that are described are those that the system's names say, its folder's and system_name: the
    product and how many.
    """
    total = accelerator_count(stated)
    per_node = str(stated.get("accelerators_per_node")).strip()
    model = str(stated.get("accelerator_model_name", ""))
    for name in dict.fromkeys((system.name, str(stated.get("system_name", "")))):
        said, described_as = products_named(name), products_named(model)
        if total and said and described_as and not said & described_as:
            yield Fault(
                "a name and the description differ in the accelerator",
                system.file,
                "accelerator_model_name",
                model,
                f"{' or '.join(sorted(said))}, as {name!r} says",
            )
        named = accelerators_named(name)
        if total and named and not {str(total), per_node} & {str(count) for count in named}:
            yield Fault(
                "a name and the description differ in the number of accelerators",
                system.file,
                "accelerators_per_node",
                f"{per_node} in each of {total // int(per_node)} nodes",
                f"{' or '.join(str(count) for count in sorted(named))}, as {name!r} says",
            )


@check(
    "SYSTEM-SOFTWARE",
    source=_SOURCE,
    remedy="state framework, its version, driver and CUDA or ROCm in systems/<system>.json",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=with_submission(described_systems),
)
def software(submission: Submission, system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """The names and the description of a system state the software that served, with the versions of what drives the
    accelerators.
    """
    if not accelerator_count(stated):
        return
    framework = str(stated.get("framework", ""))
    stack = f"{framework} {stated.get('other_software_stack', '')} {stated.get('sw_notes', '')}"
    yield from _used_software_faults(submission, system, framework, stack)
    if not is_no_framework(framework):
        yield from _named_software_faults(system, stated, framework, stack)
    else:
        yield Fault(
            "the framework is not named, only what lies below it",
            system.file,
            "framework",
            framework,
            "the software that served, with its version",
        )
    vendor = str(stated.get("accelerator_model_name", ""))
    if "NVIDIA" in vendor.upper() and not re.search(r"cuda|driver|tensorrt", stack, re.IGNORECASE):
        yield Fault(
            "no version of CUDA and of the driver is stated",
            system.file,
            "other_software_stack",
            str(stated.get("other_software_stack", "")),
            "CUDA and driver",
            severity=Severity.NOTE,
        )


def _named_software_faults(system: System, stated: Mapping[str, Any], framework: str, stack: str) -> Iterator[Fault]:
    """Yield the software that a name states and the description does not."""
    names = f"{system.name} {stated.get('system_name', '')}"
    on_cpu = re.search(r"reference-cpu-([a-z]+)(?:-v([\d.]+))?", system.name)
    if on_cpu and on_cpu[1].lower() not in framework.lower():
        yield Fault(
            "the name says that a CPU served with other software than the description says",
            system.file,
            "framework",
            framework,
            on_cpu[0],
        )
    yield from (
        Fault(
            "a name states software that the description does not",
            system.file,
            "framework",
            framework,
            f"{software.name}, or another name",
        )
        for software in serving_software()
        if software.is_named_in(names) and not software.is_named_in(stack)
    )


def _used_software_faults(submission: Submission, system: System, framework: str, stack: str) -> Iterator[Fault]:
    """Yield the software that the command of a README starts or asks, and the description does not name."""
    for software in serving_software():
        used = (
            result.files["readme"]
            for result in submission.results
            if result.system == system.name and "readme" in result.files and software.is_used_in(result.readme)
        )
        if not software.is_named_in(stack) and (readme := next(used, "")):
            yield Fault(
                "the description names other software than the commands that were run",
                system.file,
                "framework",
                framework,
                f"{software.name}, as in {readme}",
            )


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

"""Private words and addresses in the files of a bundle, and in those of run folders that a bundle is built of."""

import os
from collections.abc import Iterator
from pathlib import Path

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.checking.private_text import DOCUMENT_FORMS, FORMS, Private, found_in
from cm4vllm.common.host_addresses import host_of, is_address, is_loopback
from cm4vllm.results.checks.of_texts.private_text import TextFiles
from cm4vllm.results.endpoints.curves import Curve, Point
from cm4vllm.results.endpoints.endpoints_harness import part
from cm4vllm.results.submitted_names import is_a_person, is_a_placeholder

#: The parts of a run folder that the official builder takes.
_OF_RUN = (
    "point.yaml",
    "system_desc.json",
    "system_power.json",
    "config.yaml",
    "result_summary.json",
    "accuracy_results.json",
    "performance",
    "accuracy",
    "src",
    "documentation",
    "server_configs",
)
#: Folders of programs, in which addresses and names are mostly examples.
_PROGRAMS = frozenset({"src"})
_OF_PROGRAMS = tuple(form for form in FORMS if form.in_programs)


@check(
    "POINT-PRIVATE",
    source="docs/machine.md; config.yaml is published as the client wrote it",
    remedy="measure with relative paths and a loopback address, take names out of what you wrote, and withdraw a "
    "credential that was published",
    severity=Severity.WARNING,
    stage=Stage.CURVE,
    each=whole,
)
def no_private_text(curve: Curve) -> Iterator[Fault]:
    """Nothing published names a person, a machine or an address, and nothing is a credential."""
    submitters = {str(point.system.get("submitter_org_names", "")) for point in curve.points}
    home = _bundle(curve)
    for folder in [home] if home else [point.folder / name for point in curve.points for name in _OF_RUN]:
        for path, content in _texts(folder):
            place = _place(curve, path)
            is_program = not _PROGRAMS.isdisjoint(place.split("/"))
            yield from _private(content, place, _OF_PROGRAMS if is_program else DOCUMENT_FORMS, submitters)
    for point in curve.points:
        yield from _servers(point)


def _bundle(curve: Curve) -> Path | None:
    """Return the folder of the submission that a curve is part of; None for run folders, or above what is checked."""
    below = Path(curve.name)  # ID/results/SYSTEM/MODEL, from what is checked on
    inside = not below.is_absolute() and len(below.parts) >= 3 and below.parts[-3] == "results"
    return curve.folder.parents[2] if inside else None


def _texts(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the texts below a folder, or the text at a path, with their paths; binary files are left out."""
    if path.is_dir():
        yield from ((file.path, file.content) for file in TextFiles(path))
    elif path.is_file() and (content := TextFiles(path.parent).text_at(str(path))) is not None:
        yield str(path), content


def _place(curve: Curve, path: str) -> str:
    """Return the path of a file below what is checked."""
    return os.path.normpath(Path(curve.name) / os.path.relpath(path, curve.folder))


def _private(content: bytes, place: str, forms: tuple[Private, ...], submitters: set[str]) -> Iterator[Fault]:
    for form, word in found_in(content.decode(errors="replace"), forms):
        if form.is_secret and not is_a_placeholder(word):
            yield Fault(form.kind, place, "", f"{len(word)} characters, not shown", "nothing", severity=form.severity)
        elif not form.is_secret and is_a_person(word, *submitters):
            yield Fault(form.kind, place, "", word, "nothing", severity=form.severity)


def _servers(point: Point) -> Iterator[Fault]:
    """Find the names of servers that the client asked; their addresses are found as text."""
    listed = part(point.config, "endpoint_config").get("endpoints")
    for endpoint in listed if isinstance(listed, list) else []:
        host = _host(endpoint)
        if host and not is_address(host) and not is_loopback(host):
            yield Fault(
                "the name of a machine", f"{point.name}/config.yaml", "endpoint_config.endpoints", host, "nothing"
            )


def _host(endpoint: object) -> str:
    try:
        return host_of(endpoint) if isinstance(endpoint, str) else ""
    except ValueError:  # brackets that hold no address
        return ""

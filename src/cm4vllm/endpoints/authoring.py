"""The authored files of all points of a curve, and the bundle that the official builder makes of the run folders."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast

import yaml

from cm4vllm.common import input_types
from cm4vllm.common.bounded_documents import read_json
from cm4vllm.common.checking.private_words import private_words
from cm4vllm.common.clock import present
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import altered_files, json_text, text_of, typed_path, write_text
from cm4vllm.common.folders.owned_folders import forget, write_noted, write_result_file
from cm4vllm.common.folders.ownership_notes import require_replaceable
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.host_addresses import host_of
from cm4vllm.common.progress import say
from cm4vllm.common.records import OtherSchema, read_record
from cm4vllm.common.secrets.command_lines import published_words, shell_line
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.endpoints.bundle import BUNDLE, CheckerInstallation, build_bundle, write_payloads
from cm4vllm.endpoints.disclosure import (
    SUBMITTER_TEMPLATE,
    SubmitterFile,
    initialization_steps,
    point_document,
    read_submitter_file,
    system_document,
)
from cm4vllm.endpoints.records import PointRecord
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.results.endpoints.curves import POINT_FILE, POWER_FILE
from cm4vllm.rules import Regions, RulesInputs
from cm4vllm.serving.probing.server_identities import other_content

_TEMPLATE_FILE = "submitter.template.yaml"
#: The checker's keys of the sizes of a server's groups, and vLLM's options.
_PARALLEL = {
    "tensor_parallel": "tensor-parallel-size",
    "pipeline_parallel": "pipeline-parallel-size",
    "data_parallel": "data-parallel-size",
}
_SHORT_NAME = 20


class BundleInputs(Settings, frozen=True, kw_only=True):
    """The inputs of the bundle's recipe: folders and records of other recipes."""

    points: Annotated[str, Key("CM_MLPERF_ENDPOINTS_POINTS")] = ""
    output_dir: Annotated[str, Key("CM_MLPERF_ENDPOINTS_BUNDLE_DIR")] = ""
    cohort: input_types.EndpointsCohort = ""
    description: Annotated[str, Key("CM_SUT_DESCRIPTION")] = ""
    model_record: input_types.ModelRecordPath = ""
    dataset_record: input_types.DatasetRecordPath = ""
    submitter_file: input_types.SubmitterFile = ""
    checker: input_types.EndpointsChecker = ""
    rules: RulesInputs = RulesInputs()


def require_target(inputs: BundleInputs) -> None:
    """Refuse a folder that is not replaced by a bundle. Raises UsageError."""
    require_replaceable(_target(inputs), BUNDLE)


def _target(inputs: BundleInputs) -> Path:
    given = typed_path(inputs.output_dir or inputs.points).absolute()
    return given if inputs.output_dir else given.parent / "bundle"


def author_and_build(inputs: BundleInputs) -> Path:
    """Write the authored files of each point and build the bundle; return its folder. Raises CmError."""
    folder = typed_path(inputs.points).absolute()
    points = read_points(folder)
    stated = read_submitter_file(typed_path(inputs.submitter_file).absolute() if inputs.submitter_file else None)
    forget(folder / _TEMPLATE_FILE)
    if not (folder / _TEMPLATE_FILE).exists():  # one that its user has filled in stays
        write_noted(folder / _TEMPLATE_FILE, SUBMITTER_TEMPLATE)
    description = read_json(Path(inputs.description))
    model = read_record(Path(inputs.model_record), ModelRecord)
    dataset = read_record(Path(inputs.dataset_record), DatasetRecord) if inputs.dataset_record else None
    runs = _runs(folder)
    for path, record in points:
        _author(
            path,
            record,
            stated,
            description,
            _disclosure(inputs, stated, model, dataset),
            _no_warm_up_note(record, runs),
        )
    if stated.power is None:
        say(f"no power is stated: {folder / _TEMPLATE_FILE} asks for it, and --submitter_file gives it")
    checker, folders = read_record(Path(inputs.checker), CheckerInstallation), {path.name: path for path, _ in points}
    with scratch_folder() as shared:
        _write_sources(shared, points, model)
        bundle = build_bundle(
            checker,
            folders,
            _target(inputs),
            division=stated.division.lower(),
            availability=str(stated.system.get("system_availability_status", "RDI")).lower(),
            source=shared / "src",
            documentation=shared / "docs",
            power=shared / POWER_FILE,
            private=private_words(
                servers={host_of(endpoint) for _, record in points for endpoint in record.server.endpoints},
                folders=[str(folder.parent), os.environ.get("CM_REPOS", "")],
            ),
        )
        write_noted(folder / POWER_FILE, text_of(shared / POWER_FILE))
    payloads = write_payloads(checker, folders, _target(inputs).with_name(f"{_target(inputs).name}-payloads"))
    say(f"the official program takes each run folder; what a registration would send is in {payloads}")
    return bundle


def read_points(folder: Path) -> list[tuple[Path, PointRecord]]:
    """Return the run folders of the points below `folder` with their records, in the order of their concurrency.

    Raises SubmissionError where there is none, where they are not all of one curve, and where files of the client were
    changed or removed since the run.
    """
    records = ((path.parent, read_record(path, PointRecord)) for path in sorted(folder.glob(f"*/{POINT_FILE}")))
    points = [(path, record) for path, record in records if record.curve is not None]
    if not points:
        raise SubmissionError(
            f"{folder} has no point of a curve",
            remedy="measure its points with run-mlperf,endpoints, or name a folder that has points",
        )
    points.sort(key=lambda item: (item[1].offline == "dedicated", item[1].terms.concurrency))
    (begin, first), *others = points
    for path, record in others:
        apart = [
            f"{path.name} has another {name.replace('_', ' ')} than {begin.name}"
            for name in ("curve", "benchmark", "model_sha256", "dataset_sha256", "client_commit")
            if getattr(record, name) != getattr(first, name)
        ]
        if apart := apart or other_content(first.server.identities, record.server.identities):
            raise SubmissionError(
                f"the points below {folder} are not of one curve",
                cause="\n".join(apart),
                remedy="remove the run folders that are of another curve",
            )
    for path, record in points:
        if changed := altered_files(path, record.files):
            raise SubmissionError(
                f"{path} is not as it was measured",
                cause=f"files of it have been changed or removed: {', '.join(changed)}",
                remedy="run the job again: it measures this point again",
            )
    return points


def _author(
    path: Path,
    record: PointRecord,
    stated: SubmitterFile,
    description: Mapping[str, str],
    disclosure: Mapping[str, str],
    warmed: str,
) -> None:
    """Write point.yaml, system_desc.json and system_power.json of a point; `warmed` is its warm-up in words."""
    curve = cast(Regions, record.curve)  # read_points leaves out those of none
    nodes = description.get("number_of_nodes", "1")
    document = point_document(
        record,
        curve,
        disclosure,
        warmed,
        steps=stated.initialization_steps or initialization_steps(record.server),
        more=stated.of_point(record.terms.concurrency, whole_number(nodes) or 1),
    )
    write_result_file(path, "point.yaml", yaml.safe_dump(document, sort_keys=False))
    derived = {
        "shortened_system_name": description["system_name"][:_SHORT_NAME].strip(),
        "system_size": f"{nodes} node{'s' * (nodes != '1')}",
    }
    system = system_document(
        description,
        {**derived, **stated.system, "node": stated.node},
        curve=curve,
        division=stated.division,
        framework=record.server.named,
        parallel=_parallel(record) if description.get("accelerators_per_node", "0") not in ("0", "") else {},
        detected=record.node,
    )
    write_result_file(path, "system_desc.json", json_text(system))
    power = stated.power_document(str(system["system_name"]), int(system.get("system_node_ensemble_total") or 1))
    if power is not None:
        write_result_file(path, "system_power.json", json_text(power))


def _runs(folder: Path) -> list[PointRecord]:
    """Return all runs of the client that are kept: the points below `folder`, and the probes beside it."""
    files = [*folder.glob(f"*/{POINT_FILE}"), *folder.parent.glob(f"curve/*/{POINT_FILE}")]
    runs = []
    for file in files:
        with contextlib.suppress(OtherSchema):  # a probe that an earlier version made, of another server then
            runs.append(read_record(file, PointRecord))
    return runs


def _no_warm_up_note(record: PointRecord, runs: Sequence[PointRecord]) -> str:
    """Return in words that a point has no warm-up, and the requests that its server has answered before the point."""
    if not record.server.started_at:
        return "none: no requests before the run; what the server answered earlier is not known"
    earlier = [
        run for run in runs if run.server.started_at == record.server.started_at and run.started_at < record.started_at
    ]
    answered = sum(run.run.samples + run.run.accuracy * run.benchmark.accuracy_samples for run in earlier)
    return (
        f"none: no requests before the run; since its start the server had answered {answered:,} requests of "
        f"{len(earlier)} probes and points"
    )


def _parallel(record: PointRecord) -> dict[str, int]:
    options = record.server.options
    return {key: value for key, name in _PARALLEL.items() if isinstance(value := options.get(name), int)}


def _disclosure(
    inputs: BundleInputs, stated: SubmitterFile, model: ModelRecord, dataset: DatasetRecord | None
) -> dict[str, str]:
    """Return what point.yaml says of the curve: what is stated, else what the records of model and dataset say."""
    known = {
        "division": stated.division,
        "target_cohort": inputs.rules.chosen().target(inputs.cohort, present().date()).cohort,
        "model_precision": model.weight_data_types,
        "link_to_model": model.source,
        "model_notes": f"{model.name}, SHA-256 of its files {model.sha256}",
        "dataset_name": dataset.name if dataset else "",
        "dataset_link": dataset.source if dataset else "",
    }
    known.update([*stated.model.items(), *stated.dataset.items()])
    return known


def _starts(records: Sequence[PointRecord], model: ModelRecord) -> Iterator[str]:
    """Yield lines on how the server was started, for each command the concurrencies of the points that it served."""
    names = {model.path: "MODEL_DIR"} if model.path else {}
    served: dict[str, list[str]] = {}
    for record in records:
        hosts = {host_of(endpoint) for endpoint in record.server.endpoints}
        line = shell_line(published_words(_without_port(record.server.argv), names, hosts))
        served.setdefault(line, []).append(f"{record.terms.concurrency:,}")
    for line, concurrencies in served.items():
        of = "" if len(served) == 1 else f" for the points at concurrency {', '.join(concurrencies)}"
        if line:
            yield from (f"The server{of} was started by", "", f"    {line}", "")
        else:
            yield from (f"The server{of} was not started by cm4vllm.", "")


def _without_port(argv: Sequence[str]) -> list[str]:
    """Return a command line without the port, which is another one at each start."""
    words = zip(argv, ["", *argv], strict=False)
    return [word for word, before in words if "--port" not in (word.partition("=")[0], before)]


def _write_sources(folder: Path, points: Sequence[tuple[Path, PointRecord]], model: ModelRecord) -> None:
    """Write src/vllm/README.md and docs/README.md of the bundle below a folder: how the server was started and points
    measured.
    """
    record = points[0][1]
    lines = [
        f"# {record.server.named}",
        "",
        *_starts([record for _, record in points], model),
        f"Each point was measured by the reference client (mlcommons/endpoints at {record.client_commit}),",
        "from a folder with the dataset and the model's tokenizer in `tokenizer`, by",
        "",
        "    inference-endpoint benchmark from-config -c config.yaml --mode perf",
        "",
        "in mode `both` for a point with accuracy results. config.yaml is that of the point.",
    ]
    write_text(folder / "src" / "vllm" / "README.md", "\n".join(lines) + "\n")
    packages = "".join(f"- {name} {version}\n" for name, version in sorted(record.server.packages.items()))
    write_text(folder / "docs" / "README.md", f"# Software\n\n- {record.server.named}\n{packages}")

"""One point of a curve: a run of the reference client against a server, its steady state, and its record."""

import hashlib
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import psutil

from cm4vllm.accuracy.sentences import UNTRAINED
from cm4vllm.assets.samples.bounded_tables import parquet_rows
from cm4vllm.assets.samples.published_formats import require_file
from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common import input_types
from cm4vllm.common.bounded_documents import read_object
from cm4vllm.common.clock import now, present
from cm4vllm.common.errors import CmError, DatasetError, RunFailed, UsageError
from cm4vllm.common.files import altered_files, digests_of, given_path, sha256_of, typed_path
from cm4vllm.common.folders.ownership_notes import Kind, note_finished, require_replaceable
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.units import four_digits
from cm4vllm.endpoints.client import EVENTS, ClientInstallation, run_client
from cm4vllm.endpoints.client_config import ClientRun
from cm4vllm.endpoints.client_folder import client_environment, datasets_of_ours, prepare_folder
from cm4vllm.endpoints.client_steady_state import steady_state_of
from cm4vllm.endpoints.events import read_events
from cm4vllm.endpoints.records import CurveRecord, PointPlan, PointRecord, curve_status, run_change
from cm4vllm.endpoints.steady_state import SteadyState, steady_state
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.loadgen.identity import server_content
from cm4vllm.loadgen.process.machine_load import MachineMeter
from cm4vllm.loadgen.process.run_servers import RunServers
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.results.endpoints.endpoints_harness import SUMMARY, impossible_in_summary, number, part
from cm4vllm.rules import EndpointsBenchmark, ExecutionMode, PointTerms, RulesInputs, RulesUsed, WindowRules
from cm4vllm.serving.supervision.death_reasons import death_reason

#: From this number of processors on the client chooses its own number of processes.
_MANY_PROCESSORS = 16
_PROCESSORS_PER_WORKER = 4
_NS = 1e9
#: The folder of a point, as an earlier version left it: with the record of a point, or of the client alone.
POINT = Kind("a point of a curve", "--output_dir", recognised=lambda folder: (folder / POINT_FILE).is_file())


class PointInputs(Settings, frozen=True, kw_only=True):
    """The inputs of a point's recipe. Paths are those of records that other recipes wrote.

    `pass_samples` are those of one pass over a stored dataset, 0 for all of it; `samples` is what a probe issues in
    place of whole passes. `c_min` and `c_max` are the ends of the curve, 0 for a run that is of no curve.
    With `curve`, the record of a planned curve, all of this is that of its point `number`, counted from 1.
    """

    concurrency: Annotated[int, Key("CM_MLPERF_ENDPOINTS_CONCURRENCY")] = 0
    passes: Annotated[int, Key("CM_MLPERF_ENDPOINTS_PASSES")] = 1
    pass_samples: input_types.PassSamples = 0
    samples: Annotated[int, Key("CM_MLPERF_ENDPOINTS_SAMPLES")] = 0
    accuracy: Annotated[bool, Key("CM_MLPERF_ENDPOINTS_ACCURACY")] = False
    offline: Annotated[Literal["none", "elected", "dedicated"], Key("CM_MLPERF_ENDPOINTS_OFFLINE")] = "none"
    c_min: input_types.CurveMin = 0
    c_max: input_types.CurveMax = 0
    execution_mode: input_types.ExecutionMode = "test"
    cohort: input_types.EndpointsCohort = ""
    benchmark: input_types.EndpointsModel = "llama3_1-8b"
    curve: input_types.EndpointsCurve = ""
    number: Annotated[int, Key("CM_MLPERF_ENDPOINTS_POINT_NUMBER")] = 0
    client: Annotated[str, Key("CM_MLPERF_ENDPOINTS_CLIENT")] = ""
    model_record: input_types.ModelRecordPath = ""
    dataset_record: input_types.DatasetRecordPath = ""
    dataset_file: input_types.DatasetFile = ""
    server_record: input_types.ServerRecordPath = ""
    output_dir: input_types.OutputDir = ""
    rules: RulesInputs = RulesInputs()


class PointSetup(PointPlan, frozen=True, kw_only=True):
    """All that a point is made from, read from its inputs; `dataset` is the stored dataset of the stand-in."""

    model: ModelRecord
    dataset: DatasetRecord | None
    client: ClientInstallation
    rules: RulesUsed
    window: WindowRules

    @property
    def identity(self) -> str:
        """The digest of all that the result of the point depends on, by content as that of a LoadGen run."""
        parts = (
            msgspec.structs.replace(self.run, endpoints=(), key_variable=""),
            self.terms,
            self.model.sha256,
            (self.dataset_sha256, self.dataset_rows),
            server_content(self.server, self.model.path),
            self.client.commit,
            self.rules.measuring_sha256,
        )
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def measure_point(inputs: PointInputs) -> tuple[PointRecord, Path]:
    """Make the run of a point; return its record and the record's path.

    An earlier point in its folder is replaced. Raises CmError: ServerUnsuitable where a server is another one than when
    it was probed, RunFailed where it becomes one during the run or where the client's figures are those of no run, and
    the errors of the client.
    """
    planned, target = point_setup(inputs), Path(inputs.output_dir).absolute()
    require_replaceable(target, POINT)
    folder = target.parent
    prepare_folder(
        folder,
        planned.model,
        planned.dataset,
        samples=planned.terms.samples_of_a_pass,
        files=_given_file(inputs, planned),
    )
    environment = client_environment(hub=planned.dataset is None or planned.dataset.sentences != UNTRAINED)
    started, began = now(), time.monotonic()
    curve = read_record(Path(inputs.curve), CurveRecord) if inputs.curve else None
    facts = curve_status(curve, inputs.number, folder).after if curve else None
    servers = RunServers(planned.server, target.name)
    alive, meter = partial(death_reason, planned.server), MachineMeter(planned.server)
    run_client(planned.client, planned.run, folder, environment, alive=alive, facts=facts)
    servers.require_same(None)
    wall_s, summary = round(time.monotonic() - began, 3), read_object(target / SUMMARY)
    if impossible := [str(value) for value in impossible_in_summary(summary)]:
        raise RunFailed(
            f"the client's figures in {target} are those of no run",
            cause="\n".join(impossible[:5]),
            remedy="see the client's log and the server's; the next command makes the run again",
        )
    load = meter.load()
    record = _point_record(planned, target, started, wall_s, summary, others=load.others if load else None)
    write_record(target / POINT_FILE, record)
    note_finished(target)
    _print_result(record, summary)
    return record, target / POINT_FILE


def _point_record(
    planned: PointSetup, target: Path, started: str, wall_s: float, summary: Mapping[str, Any], *, others: float | None
) -> PointRecord:
    """Return the record of a run in `target`; `summary` is the client's."""
    duration_s = summary["duration_ns"] / _NS
    return PointRecord(
        **{name: getattr(planned, name) for name in PointPlan.__struct_fields__}
        | _dataset_read(planned, target.parent),
        model=planned.model.name,
        model_sha256=planned.model.sha256,
        client_commit=planned.client.commit,
        identity=planned.identity,
        files=digests_of(target, without=POINT_FILE),
        started_at=started,
        wall_s=wall_s,
        duration_s=duration_s,
        samples_per_second=planned.run.samples / duration_s,
        steady_state=_steady_state(target, planned, summary),
        in_flight=_in_flight(summary, duration_s),
        node=_node(planned),
        rules=planned.rules,
        others=others,
    )


def earlier_point(inputs: PointInputs) -> tuple[PointRecord | None, str]:
    """Return the record of a whole run with the same inputs in the point's folder, else None and the reason.

    Files of the client that were changed or removed since are such a reason.
    """
    planned, target = point_setup(inputs), Path(inputs.output_dir).absolute()
    if not target.exists():
        return None, ""
    try:
        record = read_record(target / POINT_FILE, PointRecord)
    except CmError as error:
        return None, error.what
    if record.identity != planned.identity:
        change = run_change(record, planned.client.commit, planned.rules, planned.run.seeds)
        return None, change or "its inputs have changed"
    if changed := altered_files(target, record.files):
        return None, f"files of it have been changed or removed: {', '.join(changed)}"
    return record, ""


def point_setup(inputs: PointInputs) -> PointSetup:
    """Return what a point is made from. Raises UsageError for what is not allowed, CmError for a missing record."""
    inputs = _of_curve(inputs)
    if inputs.concurrency < 1 or inputs.passes < 1:
        raise UsageError(
            f"a point at concurrency {inputs.concurrency} with {inputs.passes} passes cannot be measured",
            cause="both are whole numbers of at least 1",
        )
    model = read_record(Path(inputs.model_record), ModelRecord)
    server = read_record(Path(inputs.server_record), ServerRecord)
    rules = inputs.rules.chosen()
    benchmark, dataset = _benchmark(rules.benchmark(inputs.benchmark), inputs, model)
    performance, *scored = datasets_of_ours(dataset) if dataset else (benchmark.performance, *benchmark.scored)
    given = given_path(inputs.dataset_file) if inputs.dataset_file and dataset is None else None
    curve = rules.regions(c_min=inputs.c_min, c_max=inputs.c_max) if inputs.c_max else None
    dedicated = inputs.offline == "dedicated"
    # A run of no curve has the terms of one that ends with it.
    bounds = curve or rules.regions(c_min=1, c_max=max(inputs.concurrency, rules.curve.lowest_c_max))
    terms = rules.point_terms(benchmark, inputs.concurrency, bounds, offline=dedicated)
    client = read_record(Path(inputs.client), ClientInstallation)
    if not performance.path:
        _require_dataset_of(client, performance.name)
    return PointSetup(
        benchmark=benchmark,
        terms=terms,
        curve=curve,
        run=ClientRun(
            folder=Path(inputs.output_dir).name,
            endpoints=tuple(server.endpoints),
            api="openai_completions" if dataset else benchmark.api,
            model=server.model_name,
            dataset=performance,
            parameters=benchmark.parameters,
            scored=tuple(scored) if inputs.accuracy else (),
            accuracy_samples=benchmark.accuracy_samples if inputs.accuracy else 0,
            samples=inputs.samples or inputs.passes * terms.samples_of_a_pass,
            concurrency=None if dedicated else inputs.concurrency,
            seeds=rules.target(inputs.cohort, present().date()).seeds,
            max_tokens=benchmark.max_tokens,
            temperature=benchmark.temperature,
            top_p=benchmark.top_p,
            key_variable=server.access.key_env,
            workers=_workers(),
            steady_state=client.abilities.steady_state and not dedicated,
            min_duration_ms=_min_duration_ms(inputs, terms),
        ),
        model=model,
        dataset=dataset,
        dataset_sha256=dataset.sha256 if dataset else sha256_of(given) if given else "",
        dataset_rows=dataset.samples if dataset else parquet_rows(given) if given else 0,
        server=server,
        client=client,
        offline=inputs.offline,
        rules=RulesUsed.of(rules),
        window=rules.window,
    )


def _min_duration_ms(inputs: PointInputs, terms: PointTerms) -> int:
    """Return what the client is given: the seconds of the rules in a valid run, 0 in a rehearsal and in a probe."""
    is_valid = ExecutionMode.parse(inputs.execution_mode) is ExecutionMode.VALID
    return round(1000 * terms.least_seconds) if is_valid and not inputs.samples else 0


def _require_dataset_of(client: ClientInstallation, name: str) -> None:
    """Raise UsageError for a dataset that the client is to fetch itself and has no name for."""
    known = client.abilities.datasets
    if known and name.partition("::")[0] not in known:
        raise UsageError(
            f"the reference client at {client.commit[:12]} has no dataset {name}",
            cause=f"it has {', '.join(known)}",
            remedy="choose a commit of the client that has it with --endpoints_commit",
        )


def _of_curve(inputs: PointInputs) -> PointInputs:
    """Return the inputs with what the planned curve says of the point, where they name one. Raises UsageError."""
    if not inputs.curve:
        return inputs
    plan = read_record(Path(inputs.curve), CurveRecord).plan
    if not 1 <= inputs.number <= len(plan.points):
        raise UsageError(f"the curve has no point {inputs.number}", cause=f"it has {len(plan.points)} points")
    point = plan.points[inputs.number - 1]
    elected = plan.elected_offline and point.concurrency == plan.regions.c_max
    return msgspec.structs.replace(
        inputs,
        concurrency=point.concurrency,
        passes=point.passes,
        accuracy=point.accuracy,
        offline="dedicated" if point.terms.offline else "elected" if elected else "none",
        c_min=plan.regions.c_min,
        c_max=plan.regions.c_max,
    )


def _benchmark(
    benchmark: EndpointsBenchmark, inputs: PointInputs, model: ModelRecord
) -> tuple[EndpointsBenchmark, DatasetRecord | None]:
    """Return the benchmark of the run, and the stored dataset that it uses (the stand-in's), if any."""
    if not model.is_stand_in:
        return benchmark, None
    dataset = read_record(Path(inputs.dataset_record), DatasetRecord)
    samples = inputs.pass_samples or dataset.samples
    facts = {"name": model.name, "dataset": dataset.name, "samples": samples, "accuracy_samples": samples}
    return msgspec.structs.replace(benchmark, **facts, parameters={}), dataset


def _given_file(inputs: PointInputs, planned: PointSetup) -> dict[str, Path | None]:
    """Return the given dataset, None without one, by its place in the client's folder.

    Raises UsageError, DatasetError.
    """
    dataset = planned.benchmark.performance
    if planned.dataset is not None or not (place := dataset.path or dataset.cached):
        return {}
    require_dataset_file(planned.benchmark, inputs.dataset_file)
    return {place: given_path(inputs.dataset_file) if inputs.dataset_file else None}


def require_dataset_file(benchmark: EndpointsBenchmark, given: str) -> None:
    """Refuse a given dataset that is not that of the benchmark by its rows, and none where the client cannot fetch it.

    Raises UsageError, DatasetError.
    """
    if benchmark.file_needed and not given:
        raise UsageError(
            f"the dataset of {benchmark.name} is needed as a file",
            cause=benchmark.file_needed,
            remedy="give it, in the format that the reference client reads (parquet), with --dataset_path=FILE",
        )
    if not given:
        return
    require_file(typed_path(given))
    if (rows := parquet_rows(typed_path(given))) != benchmark.samples:
        raise DatasetError(
            f"{given} has {rows:,} rows",
            cause=f"a pass over the dataset of {benchmark.name} has {benchmark.samples:,} samples, one of each row",
            remedy="give the whole dataset with --dataset_path=FILE",
        )


def _workers() -> int | None:
    processors = usable_processors()
    return None if processors >= _MANY_PROCESSORS else max(1, processors // _PROCESSORS_PER_WORKER)


def _dataset_read(planned: PointSetup, folder: Path) -> dict[str, str | int]:
    """Return digest and rows of the dataset that the client fetched itself; nothing of a stored or given one."""
    place = folder / planned.benchmark.performance.cached
    if planned.dataset_sha256 or not place.is_file():
        if not planned.dataset_sha256:
            say(f"the digest of the dataset is not known: the client has left no file at {place}")
        return {}
    return {"dataset_sha256": sha256_of(place), "dataset_rows": parquet_rows(place)}


def _in_flight(summary: Mapping[str, Any], duration_s: float) -> float | None:
    """Return the requests in flight on average, by Little's law; None where the summary has no latency."""
    latency, samples = number(part(summary, "latency"), "avg"), number(summary, "n_samples_completed")
    return latency * samples / _NS / duration_s if latency and samples else None


def _steady_state(folder: Path, planned: PointSetup, summary: Mapping[str, Any]) -> SteadyState | None:
    """Return the steady state of a point at fixed concurrency; a run of all samples at once has none.

    It is that of the client where it was to compute it and has.
    """
    if planned.terms.offline:
        return None
    if planned.run.steady_state:
        if (computed := steady_state_of(summary, planned.terms, planned.window)) is not None:
            return computed
        say("the client's summary has no steady state: it is computed from the client's events")
    tokenizer = read_tokenizer(Path(planned.model.path) / "tokenizer.json")

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids) if text else 0

    return steady_state(read_events(folder / EVENTS, tokens), planned.terms, planned.window)


def _node(planned: PointSetup) -> dict[str, int | str]:
    """Return processors, accelerators' driver and the file system of the model's files, where the server is ours."""
    if not planned.server.owned:
        return {}
    folder = Path(planned.model.path).resolve()
    mounted = [disk for disk in psutil.disk_partitions(all=True) if folder.is_relative_to(disk.mountpoint)]
    nearest = max(mounted, key=lambda disk: len(disk.mountpoint), default=None)
    return {
        "host_processor_vcpu_count": psutil.cpu_count() or 0,
        "driver": ", ".join(sorted({gpu.driver for gpu in detect_gpus() if gpu.driver}))
        or "none: the system has no accelerator",
        **({"filesystem": nearest.fstype} if nearest else {}),
    }


def _print_result(record: PointRecord, summary: dict[str, object]) -> None:
    state = record.steady_state
    window = f"steady state: {state.words}" if state else "no steady state is computed for Offline"
    window = window if record.curve else "a probe"
    rate = f"{record.samples_per_second:,.2f} samples/s, {float(str(summary['tps'])):,.0f} tokens/s"
    reached = "" if record.in_flight is None else f"{four_digits(record.in_flight)} in flight on average; "
    say(f"concurrency {record.terms.concurrency}: {rate}; {reached}{window}")

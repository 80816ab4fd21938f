"""An index of published results: one row a result, read once from a repository of results and kept.

Each submitter's folder is read by itself, with all checks, and its rows are kept with the state of its files
(results/file_listing.py): what has not changed is not read again.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

import cm4vllm
from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.checking.findings import Finding, Severity
from cm4vllm.common.errors import CmError, SubmissionError, UsageError
from cm4vllm.common.files import bytes_of
from cm4vllm.common.kept_values import KeptValues
from cm4vllm.common.records import Record, read_record
from cm4vllm.common.terminal_text import spelled_out
from cm4vllm.records.known_hardware import accelerator
from cm4vllm.results.checks import findings
from cm4vllm.results.checks.of_systems.system_files import accelerator_count
from cm4vllm.results.figures import Figure, Source
from cm4vllm.results.file_listing import list_files
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.recorded_power import recorded_power
from cm4vllm.results.submission_trees import each_submission, read_submission
from cm4vllm.rules import Division

#: Times that a figure is above or below the median of its like, from which on it is an outlier; of so many at least.
OUTLIER, OF_AT_LEAST = 2.0, 4


class IndexRow(Record, frozen=True, kw_only=True):
    """One published result. `value` is the figure by which results of the scenario are compared, None where it is lost.

    None also where the log is that of another scenario, `inferred_from`: the official figure is computed from it.

    `accelerators` counts those of all nodes; `accelerator` is one name for what is the same product. `power_w` is the
    mean of the run where an analyzer recorded it, read from `power_field` of `power_file`; `energy_mj` is the energy of
    a query, which is published in its place where results are compared by a latency. `codes` counts the findings of the
    result by `severity CODE`. `folder` is the system's folder in results/, `system` its name as the description states
    it, which other systems may have, too. `samples_per_second` and `tokens_per_sample` stand beside a figure in
    tokens/s: two engines may count other tokens of the same answers.
    """

    round: str
    division: str
    submitter: str
    availability: str
    system: str
    accelerator: str
    accelerators: int
    processor: str
    framework: str
    model: str
    benchmark: str
    scenario: str
    metric: str
    unit: str
    value: float | None
    valid: bool | None
    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    weights: str
    power_w: float | None
    file: str
    field: str
    codes: dict[str, int]
    power_file: str = ""
    power_field: str = ""
    energy_mj: float | None = None
    folder: str = ""
    samples_per_second: float | None = None
    tokens_per_sample: float | None = None
    inferred_from: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """The unique name of the result: its folder. `system` is the name in the description, which others may share.

        An index of an earlier version names no folder: there the file of a row stands for its folder.
        """
        of = self.folder or f"{self.system} {self.file}"
        return self.round, self.division, self.submitter, of, self.model, self.scenario

    @property
    def per_accelerator(self) -> float | None:
        """The rate divided by the number of accelerators; None for a latency, and without accelerators."""
        return self._rate_for_each(self.accelerators)

    @property
    def per_watt(self) -> float | None:
        """The rate divided by the mean power of the run."""
        return self._rate_for_each(self.power_w)

    def _rate_for_each(self, count: float | None) -> float | None:
        return self.value / count if count and self.value is not None and self.unit.endswith("/s") else None

    @property
    def power_source(self) -> str:
        """File and field of the power; empty where it is not stated, and in an index that names none."""
        return str(Source(self.power_file, self.power_field)) if self.power_file else ""

    @property
    def errors(self) -> int:
        return sum(count for code, count in self.codes.items() if code.startswith(Severity.ERROR))


class IndexPart(Record, frozen=True, kw_only=True):
    """The rows of one submitter's folder, or those of an index in a file."""

    rows: tuple[IndexRow, ...]


_KEPT = tuple[str, str, IndexPart]


@dataclass(frozen=True)
class Index:
    """Published results, and how many submitters' folders were read now and had been kept."""

    rows: tuple[IndexRow, ...]
    read: int
    kept: int

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], list[IndexRow]]:
        groups: dict[tuple[str, ...], list[IndexRow]] = {}
        for row in self.rows:
            groups.setdefault(_like(row), []).append(row)
        return groups

    def like(self, row: IndexRow) -> list[IndexRow]:
        """Return the valid results of the same model, benchmark and scenario on the same accelerator."""
        return [
            other for other in self._groups.get(_like(row), []) if other.valid and other.per_accelerator is not None
        ]

    def outlier(self, row: IndexRow) -> str:
        """Return how far a result lies from the median of its like; empty where it is near, or where these are few."""
        rates = [other.per_accelerator or 0.0 for other in self.like(row)]
        if row.per_accelerator is None or len(rates) < OF_AT_LEAST:
            return ""
        ratio = row.per_accelerator / (median(rates) or 1)
        if 1 / OUTLIER < ratio < OUTLIER:
            return ""
        return f"{ratio:.2g} times the median of {len(rates)} on {row.accelerator}"


def _like(row: IndexRow) -> tuple[str, ...]:
    return row.benchmark, row.model, row.scenario, row.accelerator, row.unit


def cell_of(figure: Figure | None) -> tuple[str, str, float | None, str, str]:
    """Return name, unit, value, file and field of a figure."""
    if figure is None:
        return "", "", None, "", ""
    return figure.name, figure.unit, float(figure.value), figure.source.file, figure.source.field


def read_indexes(roots: Sequence[Path], kept: Path, say: Callable[[str], None] = lambda text: None) -> Index:
    """Return the results of several repositories or index files, each result once. Raises what read_index raises."""
    parts = [read_index(root, kept, say) for root in roots]
    rows = {row.identity: row for part in parts for row in part.rows}
    return Index(tuple(rows.values()), sum(part.read for part in parts), sum(part.kept for part in parts))


def require_published(roots: Sequence[Path]) -> None:
    """Refuse folders without published results, and files that are no index, before they are read.

    Raises SubmissionError, UsageError.
    """
    for root in roots:
        if root.is_file():
            _rows_of(root)
        else:
            _homes(root)


def _rows_of(index: Path) -> tuple[IndexRow, ...]:
    try:
        return read_record(index, IndexPart).rows
    except CmError as error:
        raise UsageError(
            f"{index} is not an index of published results",
            cause=error.cause,
            remedy="give the index that explore,mlperf,results of this version wrote beside its page, or the folder of "
            "a results repository",
        ) from error


def _homes(root: Path) -> list[Path]:
    """Return the submitters' folders below `root`. Raises SubmissionError if there are none."""
    homes = {
        home
        for division in Division
        for pattern in (f"{division}/*", f"*/{division}/*")
        for home in root.glob(pattern)
        if (home / "results").is_dir()
    }
    if not homes:
        raise SubmissionError(
            f"{root} holds no published results",
            cause=f"no <division>/<submitter>/results in it; divisions: {', '.join(Division)}"
            if root.exists()
            else "it does not exist",
            remedy="give the folder of a results repository, one that holds several, or the index that "
            "explore,mlperf,results wrote beside its page",
        )
    return sorted(homes)


def read_index(root: Path, kept: Path, say: Callable[[str], None] = lambda text: None) -> Index:
    """Return the results of all submissions below `root`: a repository of one round, a folder of several, an index.

    `kept` is the folder of what was read before. Raises SubmissionError where there is no submission, UsageError
    where `root` is a file and no index.
    """
    if root.is_file():
        kept_rows = _rows_of(root)
        return Index(kept_rows, 0, len({(row.round, row.division, row.submitter) for row in kept_rows}))
    homes = _homes(root)
    store = KeptValues(str(kept), msgspec.json.encode, lambda data: msgspec.json.decode(data, type=_KEPT))
    states = {home: _state(home) for home in homes}
    parts = {home: part for home in homes if (part := store.get(str(home), states[home])) is not None}
    new = [home for home in homes if home not in parts]
    for done, (home, part) in enumerate(each_submission(_read, new), 1):
        say(f"{done} of {len(new)} submitters, {home.name}: {len(part.rows)} results")
        parts[home] = part
        if states[home]:
            store.put(str(home), states[home], part)
    return Index(
        tuple(row for home in homes for row in _rows_from_root(parts[home], home, root)),
        len(new),
        len(homes) - len(new),
    )


def _rows_from_root(part: IndexPart, home: Path, root: Path) -> Iterator[IndexRow]:
    """Yield the rows with files named from `root`."""
    above = home.parents[1].relative_to(root).as_posix()
    for row in part.rows:
        files = {name: path for name in ("file", "power_file") if (path := getattr(row, name))}
        yield row if above == "." else replace(row, **{name: f"{above}/{path}" for name, path in files.items()})


def _state(home: Path) -> str:
    """Return the state of a submitter's folder and of the code that reads it; empty if the folder may be changing."""
    state = list_files(home.parents[1], home).state
    return f"{_package_digest()} {state}" if state else ""


@cache
def _package_digest() -> str:
    """Return the digest of this package: other rules find other things."""
    files = sorted(
        path for path in Path(cm4vllm.__file__).parent.rglob("*") if path.is_file() and path.suffix != ".pyc"
    )
    return hashlib.sha256(b"".join(bytes_of(path) for path in files)).hexdigest()


def _read(home: Path) -> IndexPart:
    submission = read_submission(home.parents[1], home)
    own_findings = findings(submission, Stage.TREE)
    return IndexPart(rows=tuple(row_of(submission, result, own_findings) for result in submission.results))


def _code_counts(result: Result, findings: Iterable[Finding]) -> dict[str, int]:
    """Return the number of findings of a result and of its system, by severity and code."""
    own = (  # as findings name them
        spelled_out(f"/{result.system}/{result.model}/{Path(result.folder).name}/"),
        spelled_out(f"/systems/{result.system}.json"),
    )
    codes = Counter(
        f"{finding.severity} {finding.code}"
        for finding in findings
        if any(place in f"/{finding.file}/" or f"/{finding.file}".endswith(place) for place in own)
    )
    return dict(sorted(codes.items()))


def row_of(submission: Submission, result: Result, findings: Iterable[Finding] = ()) -> IndexRow:
    """Return the row of a result; `findings` are the findings of its submission, of which its own are counted."""
    described = submission.system(result.system)
    description: Mapping[str, Any] = described.description if described else {}
    part = None if result.inferred_from else result.performance
    metric, unit, value, file, field = cell_of(part.metric if part else None)
    power = recorded_power(part) if part else None
    _, _, power_w, power_file, power_field = cell_of(power.mean if power else None)
    row = IndexRow(
        round=result.round,
        division=result.division,
        submitter=result.submitter,
        availability=str(description.get("status", "")),
        system=str(description.get("system_name") or result.system),
        accelerator=_product(description),
        accelerators=accelerator_count(description),
        processor=str(description.get("host_processor_model_name", "")),
        framework=str(description.get("framework", "")),
        model=result.model,
        benchmark=result.benchmark,
        scenario=result.scenario,
        metric=metric,
        unit=unit,
        value=value,
        valid=result.performance.valid if result.performance else None,
        inferred_from=result.inferred_from,
        ttft_p99_ms=cell_of(part.figures.get("ttft_p99") if part else None)[2],
        tpot_p99_ms=cell_of(part.figures.get("tpot_p99") if part else None)[2],
        weights=str(result.measurements.get("weight_data_types", "")),
        power_w=power_w,
        power_file=power_file,
        power_field=power_field,
        energy_mj=power.metric.value if power and power.metric.unit == "mJ/query" else None,
        file=file,
        field=field,
        codes=_code_counts(result, findings),
        folder=result.system,
        samples_per_second=cell_of(part.figures.get("samples_per_second") if part else None)[2],
        tokens_per_sample=cell_of(part.figures.get("tokens_per_sample") if part else None)[2],
    )
    texts = {name: value for name in row.__struct_fields__ if isinstance(value := getattr(row, name), str)}
    return replace(row, **{name: spelled_out(value) for name, value in texts.items()})


def _product(description: Mapping[str, Any]) -> str:
    """Return one name for the accelerator: the table's, where it knows what the description calls it."""
    said = " ".join(str(description.get("accelerator_model_name", "")).split())
    if not accelerator_count(description):
        return ""
    known = accelerator(said)
    return known.names[0] if known else said

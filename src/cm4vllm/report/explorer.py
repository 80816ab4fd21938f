"""A page of published results: one table that its own small script sorts and filters, and that is whole without it."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from markupsafe import Markup

from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.files import typed_paths, user_cache
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.progress import say
from cm4vllm.common.records import write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.report.page_templates import page_template
from cm4vllm.results import result_index
from cm4vllm.results.figure_texts import metric_name
from cm4vllm.results.judgement.published_rank import Place, places_of
from cm4vllm.results.result_index import Index, IndexPart, IndexRow, read_indexes
from cm4vllm.results.run_folders import open_results

#: The columns of the table and their parts of its width, in percent, so that all are seen on a screen of 1280 pixels;
#: that of watts is left out where no result has a power meter's log.
_COLUMNS = (
    ("benchmark", 8),
    ("scenario", 8.6),
    ("round", 4),
    ("division", 5),
    ("submitter", 8.7),
    ("system", 12.5),
    ("accelerator", 8),
    ("count", 4),
    ("result", 7.5),
    ("per", 7.5),
    ("watt", 5),
    ("valid", 5),
    ("errors", 7),
    ("ttft", 5),
    ("tpot", 5),
    ("weights", 6),
)
#: The end of the name of the index beside a page.
INDEX_SUFFIX = ".index.json"


class ExplorerInputs(Settings, frozen=True, kw_only=True):
    """The folders or index files that are read, separated by commas; the page that is written; own results."""

    published: Annotated[str, Key("CM_MLPERF_EXPLORED_RESULTS")]
    page: Annotated[str, Key("CM_MLPERF_EXPLORER_PAGE")] = "results.html"
    own: Annotated[str, Key("CM_MLPERF_OWN_RESULTS")] = ""


def report_published(given: str, page: Path, own: Path | None = None) -> dict[str, Any]:
    """Read the published results in these folders or index files, write the page and the index beside it.

    `given` separates them by commas; `own` is a folder of results whose places among them are given, too. Returns how
    many there are. Raises SubmissionError where there are none.
    """
    index = published_index(given)
    stand = [place for submission in (open_results(own) if own else ()) for place in places_of(submission, index)]
    write_noted(page, explorer_page(index, stand))
    kept = page.with_suffix(INDEX_SUFFIX)
    write_record(kept, IndexPart(rows=index.rows))
    for place in stand:
        say(place.words)
    say(
        f"results: {len(index.rows)}; submitters: {len({row.submitter for row in index.rows})}; folders of submitters "
        f"read now: {index.read}, kept from an earlier run: {index.kept}"
    )
    say(f"page: {page}; index: {kept}")
    return {
        "page": str(page),
        "index": str(kept),
        "results": len(index.rows),
        "read": index.read,
        "kept": index.kept,
        "places": [place.words for place in stand],
    }


def published_index(given: str) -> Index:
    """Return the published results in folders or index files, separated by commas. Raises what read_indexes raises."""
    return read_indexes(typed_paths(given), user_cache("published"), say)


def explorer_page(index: Index, stand: Sequence[Place] = ()) -> str:
    """Return the page of an index: it loads nothing, and its script is the only one that may run.

    `stand` are results to show among the others, each marked, with their places.
    """
    script = files("cm4vllm.report").joinpath("templates/explorer.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = [place.own for place in stand]
    rows = sorted(
        [*index.rows, *own],
        key=lambda row: (
            row.benchmark,
            row.scenario,
            row.unit,
            -(row.per_accelerator or 0.0),
            row.submitter,
            row.system,
        ),
    )
    rounds = Counter(row.round or "round unknown" for row in index.rows)
    powered = any(row.power_w for row in rows)
    return page_template("explorer.html.j2").render(
        rows=rows,
        own=own,
        namesakes=_rows_of_equal_name(rows),
        columns=[(name, share) for name, share in _COLUMNS if powered or name != "watt"],
        stand=stand,
        script=Markup(script),  # noqa: S704 - our own script, read from the package
        script_hash=f"sha256-{digest}",
        rounds=", ".join(f"{name}: {count:,}" for name, count in sorted(rounds.items())),
        submitters=len({row.submitter for row in index.rows}),
        powered=powered,
        outlier=index.outlier,
        errors=_errors,
        units=_units,
        factor=f"{result_index.OUTLIER:g}",
        least=result_index.OF_AT_LEAST,
    )


def _rows_of_equal_name(rows: Sequence[IndexRow]) -> set[tuple[str, ...]]:
    """Return the rows of systems that have the name of another system of the same submitter."""
    folders: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        folders.setdefault((row.round, row.division, row.submitter, row.system), set()).add(row.folder)
    return {row.identity for row in rows if len(folders[row.round, row.division, row.submitter, row.system]) > 1}


def _units(row: IndexRow) -> str:
    return row.unit if row.unit.endswith("/s") or not row.metric else f"{row.unit} ({metric_name(row.metric)})"


def _errors(row: IndexRow) -> str:
    """Return the error codes of a result with their counts, in words."""
    return ", ".join(
        f"{code.partition(' ')[2]}{f' x{count}' if count > 1 else ''}"
        for code, count in row.codes.items()
        if code.startswith(Severity.ERROR)
    )

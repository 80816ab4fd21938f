"""The figures in READMEs: those of the logs and scores beside them, with their units."""

import re
from collections.abc import Iterable, Iterator

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.of_texts.readmes import BOUND, POLICY, WRITE, close, targets_of
from cm4vllm.results.checks.subjects import measured_results
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.model import Performance, Result, Submission

_VALUE = re.compile(
    r"(?<![\w-])`?((?:Scheduled |Completed )?(?:Samples?|Tokens?|Quer(?:y|ies))(?: per second|/s)|QPS)`?\s*[:=|]\s*"
    r"`?([\d][\d,]*\.?\d*(?:e[+-]?\d+)?)",
    re.IGNORECASE,
)
#: A rate of tokens in a sentence: rates of queries and samples may be those of other runs.
_RATE = re.compile(r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?)\s*(tokens(?: per second|/s(?:ec)?\b))", re.IGNORECASE)
#: The head of a column of a table, and the labels of lines that begin with a figure of the run, as our pages have them.
_LABEL = re.compile(r"(?:(?:Scheduled|Completed) )?(?:Samples|Tokens|Queries)(?: per second|/s)|QPS", re.IGNORECASE)
_OF_THE_RUN = re.compile(
    r"(?:Throughput|Latency), the official metric|Throughput in samples|Load that LoadGen scheduled|Duration|Samples|"
    r"(?:TTFT|TPOT), (?:99th percentile|mean)"
)
_VERDICT, _CELL, _METRIC = "LoadGen's verdict", "value", "metric"
_PLAIN = re.compile(r"\d[\d,]*(?:\.\d+)?")
#: The folders with a page for each system, in which public automation lists its results, and the columns of rates.
_OVERVIEWS = ("measurements", "results")
_RATES = ("QPS", "Throughput")


@check("README-UNIT", source=POLICY, remedy=WRITE, stage=Stage.TREE, each=measured_results)
def units(result: Result, part: Performance) -> Iterator[Fault]:
    """A README states a figure with the unit that it has in the log."""
    rates = {"token": part.tokens_per_second, "sample": part.samples_per_second}
    for label, text in _VALUE.findall(result.readme):
        value = _number(text)
        said, meant = ("token", "sample") if "oken" in label else ("sample", "token")
        if rates[said] and rates[meant] and not close(value, rates[said]) and close(value, rates[meant]):
            yield Fault(
                f"{label} is the number of {meant}s",
                result.file("readme"),
                label,
                text,
                f"{rates[said]}, or {rates[meant]}",
            )


@check("README-METRIC", source=POLICY, remedy=WRITE, severity=Severity.WARNING, stage=Stage.TREE, each=measured_results)
def metric(result: Result, part: Performance) -> Iterator[Fault]:
    """A README states the figure by which results of its scenario are compared."""
    labelled = [(label, _number(text)) for label, text in _VALUE.findall(result.readme)]
    if part.metric is None or not labelled or any(close(value, part.metric.value) for _, value in labelled):
        return
    rates = [value for value in (part.samples_per_second, part.scheduled_samples_per_second) if value]
    if label := next((label for label, value in labelled if any(close(value, rate) for rate in rates)), ""):
        yield Fault(
            "the README states another figure than the official one",
            result.file("readme"),
            label,
            f"{dict(labelled)[label]:g}",
            str(part.metric),
        )


@check("README-FIGURE", source=POLICY, remedy=WRITE, stage=Stage.TREE, each=whole)
def figures(submission: Submission) -> Iterator[Fault]:
    """A README states the figures of the logs and scores beside it."""
    for result, part in measured_results(submission):
        known = list(_known_figures(part))
        yield from (
            Fault("the log has no such figure", result.file("readme"), label, text, str(part.metric or "none"))
            for label, text in dict.fromkeys((*_VALUE.findall(result.readme), *_elsewhere(result.readme)))
            if not _is_among(text, known)
        )
        yield from _scores(result)
        yield from _verdict(result, part)
    for system in submission.systems:
        yield from _overview(submission, system.name)


def _known_figures(part: Performance) -> Iterator[float]:
    """Yield the figures and the settings of a run, and the rates that its latencies make."""
    at_once = part.settings.get("samples_per_query")
    for figure in part.figures.values():
        yield figure.value
        if figure.unit == "ms" and figure.value and isinstance(at_once, int):
            yield at_once * 1e3 / figure.value
    yield from (float(value) for value in part.settings.values() if isinstance(value, int | float))


def _elsewhere(page: str) -> Iterator[tuple[str, str]]:
    """Yield the rates that a page states in sentences and in columns of tables, by label."""
    yield from ((label, text) for text, label in _RATE.findall(page))
    for row in _rows(page):
        yield from ((label, cell) for label, cell in row.items() if _LABEL.fullmatch(label) and _PLAIN.fullmatch(cell))
        if _OF_THE_RUN.fullmatch(label := row.get("", "")) and (match := _PLAIN.match(row.get(_CELL, ""))):
            yield label, match[0]


def _rows(page: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the tables in a page in Markdown: each cell by the head of its column."""
    head: list[str] = []
    before: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip(" `*") for cell in line.strip().strip("|").split("|")] if "|" in line else []
        if cells and all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            head = before
        elif cells and len(cells) == len(head):
            yield dict(zip(head, cells, strict=True))
        elif not cells:
            head = []
        before = cells


def _overview(submission: Submission, system: str) -> Iterator[Fault]:
    """Compare the page that lists the results of a system with their logs and scores."""
    results = {
        (result.model, result.scenario.lower()): result for result in submission.results if result.system == system
    }
    reader = Reader(submission.root)
    for path in (submission.home / folder / system / "README.md" for folder in _OVERVIEWS):
        for row in _rows(reader.text(path)) if path.is_file() else ():
            result = results.get((row.get("Model", ""), row.get("Scenario", "").lower()))
            if result is None or result.performance is None:
                continue
            scores = [score.value for score in result.accuracy.stated] if result.accuracy else []
            for head, known in (
                *((name, list(_known_figures(result.performance))) for name in _RATES),
                ("Accuracy", scores),
            ):
                yield from (
                    Fault(
                        f"{result.model}, {result.scenario}: the run has no such figure",
                        reader.name(path),
                        head,
                        text,
                        f"a figure of {result.folder}",
                    )
                    for text in (_PLAIN.findall(row.get(head, "")) if known else ())
                    if not _is_among(text, known)
                )


def _scores(result: Result) -> Iterator[Fault]:
    """Compare the scores in a README with those of accuracy.txt, which has more digits."""
    scores = result.accuracy.figures if result.accuracy else {}
    labels = {
        target.metric.upper(): target.label for target in targets_of(result.round, result.benchmark, result.scenario)
    }
    lines = [(name, text) for name, text, _, _ in BOUND.findall(result.readme)]
    lines += [(row.get(_METRIC, ""), row.get(_CELL, "")) for row in _rows(result.readme)]
    for name, text in lines:
        figure = scores.get(labels.get(name, ""))
        if figure is not None and _PLAIN.fullmatch(text) and not _is_among(text, [figure.value]):
            yield Fault(f"{name} is not the score of the run", result.file("readme"), name, text, f"{figure.value:g}")


def _verdict(result: Result, part: Performance) -> Iterator[Fault]:
    """Compare the verdict that a page as we write it states with that of the log."""
    wanted = "VALID" if part.loadgen_valid else "INVALID"
    yield from (
        Fault("the log has another verdict", result.file("readme"), _VERDICT, row.get(_CELL), wanted)
        for row in _rows(result.readme)
        if row.get("") == _VERDICT and row.get(_CELL) != wanted
    )


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _is_among(text: str, known: Iterable[float]) -> bool:
    """Return True if a number is one of these, as it is printed: with so many digits."""
    digit = 0.51 * 10.0 ** -len(text.partition(".")[2])
    value = _number(text)
    return any(close(value, figure) or abs(value - figure) <= digit for figure in known)

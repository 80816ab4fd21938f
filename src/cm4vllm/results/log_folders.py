"""Folders with LoadGen's logs, read into the model; what cannot be read becomes a finding."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cm4vllm import rules
from cm4vllm.common.bounded_documents import read_object, read_yaml
from cm4vllm.common.checking.checks import NOT_CHECKED
from cm4vllm.common.checking.findings import Finding, Rule, Severity
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.files import beginning_of, open_file
from cm4vllm.records.accuracy import ACCURACY_TEXT, AccuracyRecord
from cm4vllm.records.logs.detail_log import DETAIL_LOG, DetailLog, read_detail_log
from cm4vllm.records.logs.figures import figures
from cm4vllm.records.logs.run_logs import verdict
from cm4vllm.records.run import RunRecord
from cm4vllm.records.weights.checkpoint import FETCH, is_pointer
from cm4vllm.results.figures import Figure, Figures, Source
from cm4vllm.results.model import Accuracy, Performance

#: An accuracy.txt holds a scorer's whole output; the scores are its last lines.
_MAX_TEXT = 4 * 2**20
#: A longer YAML file is no configuration: it names a model, datasets and servers.
_MAX_YAML = 2**20

_LAYOUT = "tools/submission/submission_checker/constants.py, the paths of each round"
#: The kinds of files that cannot be read, by code.
PROBLEMS = {
    "FILE-MISSING": Rule("every file that the round's layout asks for is in its place", _LAYOUT),
    "FILE-UNREADABLE": Rule("each file can be read in its format", _LAYOUT),
    "LOG-UNREADABLE": Rule("a detail log is LoadGen's, whole, and that of one run", "loadgen/logging.cc"),
    "RECORD-UNREADABLE": Rule("a record is of this version of cm4vllm", "cm4vllm.records.run"),
    NOT_CHECKED.code: NOT_CHECKED.rule,
    "SCENARIO-UNKNOWN": Rule("a scenario's folder has the name of a scenario of the rules", _LAYOUT),
}

#: Scores as the reference scripts print them: first those of a dictionary, then each on a line of its own.
_IN_DICTIONARY = re.compile(r"""["']([A-Za-z][\w-]*)["']:\s*["']?(?:np\.\w+\()?(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b""")
_ON_A_LINE = re.compile(
    r"(?:^|, )\s*(accuracy|AUC|mAP|BLEU|F1|DICE|Accuracy)\s*[=:]\s*(?:mean\s*=\s*)?(\d+\.?\d*|\.\d+)%?"
)
#: Scores in a line of a log: `INFO:main:metric/lifetime_ne/rating: 0.87`.
_IN_A_LOG = re.compile(r"\b(metric/\w+/\w+): (\d+\.\d+)\s*$")
_HASH = re.compile(r"^hash=(\w+)\s*$")
#: The lengths that accuracy.txt states, with their units; scores have none.
SCORE_UNITS = {
    "gen_len": "characters",
    "gen_num": "samples",
    "gen_tok_len": "tokens",
    "tokens_per_sample": "tokens/sample",
}


@cache
def terms_of(round_name: str, benchmark: str, scenario: str, mode: rules.Mode) -> rules.Terms | None:
    """Return the terms of a run; None where the rules do not know its round, benchmark or scenario."""
    return rules.if_known(lambda: rules.terms(round_name, benchmark, rules.Scenario.parse(scenario), mode))


def reason_without_rules(round_name: str, benchmark: str, scenario: str) -> str:
    """Return the reason why no rules are applied to a result; empty where they are."""
    if not round_name:
        return "its round is unknown"
    try:
        rules.terms(round_name, benchmark, rules.Scenario.parse(scenario), rules.Mode.PERFORMANCE)
    except UsageError as error:
        return error.what
    return ""


class Reader:
    """Reads files below `root`, by whose paths sources and findings name them, and collects what is wrong."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[Finding] = []

    def name(self, path: Path) -> str:
        """Return the path of a file below the root."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def problem(
        self,
        code: str,
        fault: str,
        path: Path,
        *,
        value: str = "",
        severity: Severity = Severity.ERROR,
        remedy: str = "",
    ) -> None:
        """Note something that could not be read."""
        self.problems.append(
            Finding(
                code=code,
                severity=severity,
                what=fault,
                file=self.name(path),
                field="",
                value=value,
                expected="",
                rule=PROBLEMS[code],
                remedy=remedy,
            )
        )

    def performance(self, folder: Path, terms: rules.Terms | None, run: RunRecord | None = None) -> Performance | None:
        """Read the performance run whose logs are in `folder`; None, and a problem, where its log cannot be read."""
        try:
            log = read_detail_log(folder / DETAIL_LOG)
            valid, reasons = verdict(log)
            read = figures(log)
            scenario, version = log.text("effective_scenario"), log.text("loadgen_version")
        except CmError as error:
            self._unreadable(folder, error)
            return None
        name = self.name(folder / DETAIL_LOG)
        return Performance(
            folder=folder,
            log=name,
            loadgen_scenario=scenario,
            loadgen_version=version,
            loadgen_valid=valid,
            loadgen_reasons=reasons,
            errors=log.errors,
            figures=Figures(
                Figure(value.name, value.value, value.value.unit, Source(name, value.key)) for value in read.values()
            ),
            settings=_settings(log),
            terms=terms,
            run=run,
            detail=log,
        )

    def accuracy(
        self,
        folder: Path,
        terms: rules.Terms | None,
        run: RunRecord | None = None,
        record: AccuracyRecord | None = None,
    ) -> Accuracy | None:
        """Read the accuracy run whose logs are in `folder`; a problem where its log cannot be read.

        The scores in a tree are then read alone; None where there are none, and where `run` is given.
        """
        text, log = folder / ACCURACY_TEXT, None
        try:
            log = read_detail_log(folder / DETAIL_LOG)
        except CmError as error:
            self._unreadable(folder, error)
            if run is not None or not text.is_file():
                return None
        lines = self.text(text).splitlines() if text.is_file() else []
        stated = tuple(_scores(lines, self.name(text)))
        return Accuracy(
            folder=folder,
            log=self.name(folder / DETAIL_LOG),
            figures=Figures(stated),
            hash=next((match[1] for line in reversed(lines) if (match := _HASH.match(line))), ""),
            errors=log.errors if log else (),
            settings=_settings(log) if log else {},
            loadgen_version=str(log.values.get("loadgen_version", "")) if log else "",
            terms=terms,
            run=run,
            record=record,
            stated=stated,
            detail=log,
        )

    def text(self, path: Path, most: int = _MAX_TEXT) -> str:
        """Return the end of a text file, whatever its encoding; empty, and a problem, where it cannot be read."""
        try:
            with open_file(path) as file:
                file.seek(max(0, path.stat().st_size - most))
                return file.read(most).decode(errors="replace")
        except OSError as error:
            self.problem("FILE-UNREADABLE", f"{path.name} cannot be read: {error.strerror}", path)
            return ""

    def json(self, path: Path) -> Mapping[str, Any]:
        """Return the object in a JSON file; empty, and a problem, where it is missing or holds no object."""
        return MappingProxyType(self._content(path, "a JSON object", lambda: read_object(path)))

    def yaml(self, path: Path) -> Mapping[str, Any]:
        """Return the mapping in a YAML file; empty, and a problem where it is missing or is no YAML."""
        content = self._content(path, "YAML", lambda: read_yaml(path, _MAX_YAML))
        return content if isinstance(content, dict) else {}

    def _content(self, path: Path, form: str, read: Callable[[], Any]) -> Any:
        """Return what `read` makes of a file; {}, and a problem, where the file cannot be read, or has another form."""
        try:
            return read()
        except FileNotFoundError:
            self.problem("FILE-MISSING", f"{path.name} is missing", path)
        except OSError as error:
            self.problem("FILE-UNREADABLE", f"{path.name} cannot be read: {error.strerror}", path)
        except ValueError as error:
            self.problem("FILE-UNREADABLE", f"{path.name} is not {form}: {error}", path)
        return {}

    def _unreadable(self, folder: Path, error: CmError) -> None:
        path = folder / DETAIL_LOG
        if path.exists():
            remedy = FETCH if is_pointer(path) else error.remedy
            failure = error.what.replace(str(path), path.name)
            self.problem("LOG-UNREADABLE", failure, path, value=error.cause, remedy=remedy)
        else:
            self.problem("FILE-MISSING", f"{path.name} is missing", path)


def text_at(path: Path, most: int = _MAX_TEXT) -> str:
    """Return the first `most` bytes of a text file as text; empty if it cannot be read."""
    try:
        return beginning_of(path, most).decode(errors="replace")
    except OSError:
        return ""


def head_and_tail(path: Path, most: int = _MAX_TEXT) -> bytes:
    """Return the first and the last `most` bytes of a file on two lines, all of a shorter one; nothing of no file."""
    try:
        with open_file(path) as file:
            head = file.read(most)
            size = path.stat().st_size
            if size > len(head):
                file.seek(max(len(head), size - most))
                head += b"\n" + file.read(most)
            return head
    except OSError:
        return b""


def scores_of(path: Path) -> dict[str, float]:
    """Return the scores in a file that a scorer wrote, by their labels; none where it cannot be read."""
    return {score.name: float(score.value) for score in _scores(text_at(path, _MAX_TEXT).splitlines(), path.name)}


def _settings(log: DetailLog) -> Mapping[str, Any]:
    """Return the settings that LoadGen used and those requested, and what it asked the sample library."""
    return MappingProxyType(
        {
            key.removeprefix("effective_"): value
            for key, value in log.values.items()
            if key.startswith(("effective_", "requested_", "qsl_reported_", "test_datetime", "power_", "sut_name"))
        }
    )


def _scores(lines: list[str], file: str) -> Iterator[Figure]:
    return (
        Figure(label, float(number), SCORE_UNITS.get(label, ""), Source(file, label))
        for line in lines
        for label, number in _IN_DICTIONARY.findall(line)
        or [match.groups() for pattern in (_ON_A_LINE, _IN_A_LOG) for match in pattern.finditer(line)]
    )

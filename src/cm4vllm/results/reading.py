"""Folders with LoadGen's logs, read into the model; what cannot be read becomes a finding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from cm4vllm import rules
from cm4vllm.accuracy.records import ACCURACY_TEXT, AccuracyRecord
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.files import opened
from cm4vllm.loadgen.detail_log import DETAIL_LOG, DetailLog, read_detail_log
from cm4vllm.loadgen.figures import figures
from cm4vllm.loadgen.logs import verdict
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.results.findings import Finding, Rule, Severity
from cm4vllm.results.model import Accuracy, Figure, Figures, Performance, Source

__all__ = ["PROBLEMS", "SCORE_UNITS", "Reader", "terms_of"]

#: An accuracy.txt holds a scorer's whole output; the scores are its last lines.
_MAX_TEXT = 4 * 2**20

_LAYOUT = "tools/submission/submission_checker/constants.py, the paths of each round"
#: What cannot be read, by code.
PROBLEMS = {
    "FILE-MISSING": Rule("every file that the round's layout asks for is in its place", _LAYOUT),
    "FILE-UNREADABLE": Rule("a file is in its format", _LAYOUT),
    "LOG-UNREADABLE": Rule("a detail log is LoadGen's, whole, and that of one run", "loadgen/logging.cc"),
    "RECORD-UNREADABLE": Rule("a record is of this version of cm4vllm", "cm4vllm.loadgen.records"),
    "SCENARIO-UNKNOWN": Rule("a scenario's folder has the name of a scenario of the rules", _LAYOUT),
}

#: Scores as the reference scripts print them: first those of a dictionary, then each on a line of its own.
_IN_DICTIONARY = re.compile(r"""["']([A-Za-z][\w-]*)["']:\s*["']?(?:np\.\w+\()?(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b""")
_ON_A_LINE = re.compile(r"(?:^|, )\s*(accuracy|AUC|mAP|BLEU|F1|DICE|Accuracy)\s*[=:]\s*(?:mean\s*=\s*)?([\d.]+)%?")
_HASH = re.compile(r"^hash=(\w+)\s*$")
#: What accuracy.txt states of lengths, and their units; scores have none.
SCORE_UNITS = {
    "gen_len": "characters",
    "gen_num": "samples",
    "gen_tok_len": "tokens",
    "tokens_per_sample": "tokens/sample",
}


def terms_of(round_name: str, benchmark: str, scenario: str, mode: rules.Mode) -> rules.Terms | None:
    """Return what the rules say of a run, None where they do not know its round, benchmark or scenario."""
    try:
        return rules.terms(round_name, benchmark, rules.Scenario.parse(scenario), mode)
    except UsageError:
        return None


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
        what: str,
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
                what=what,
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
            warnings=log.warnings,
            figures=Figures(
                Figure(one.name, one.value, one.value.unit, Source(name, one.key)) for one in read.values()
            ),
            settings=_settings(log),
            terms=terms,
            run=run,
        )

    def accuracy(
        self,
        folder: Path,
        terms: rules.Terms | None,
        run: RunRecord | None = None,
        record: AccuracyRecord | None = None,
    ) -> Accuracy | None:
        """Read the accuracy run whose logs are in `folder`; None, and a problem, where its log cannot be read."""
        try:
            log = read_detail_log(folder / DETAIL_LOG)
        except CmError as error:
            self._unreadable(folder, error)
            return None
        text = folder / ACCURACY_TEXT
        lines = self.text(text).splitlines() if text.is_file() else []
        return Accuracy(
            folder=folder,
            log=self.name(folder / DETAIL_LOG),
            figures=Figures(_scores(lines, self.name(text))),
            hash=next((match[1] for line in reversed(lines) if (match := _HASH.match(line))), ""),
            errors=log.errors,
            settings=_settings(log),
            loadgen_version=str(log.values.get("loadgen_version", "")),
            terms=terms,
            run=run,
            record=record,
        )

    def text(self, path: Path) -> str:
        """Return the end of a text file, whatever its encoding; empty, and a problem, where it cannot be read."""
        try:
            with opened(path) as file:
                file.seek(max(0, path.stat().st_size - _MAX_TEXT))
                return file.read().decode(errors="replace")
        except OSError as error:
            self.problem("FILE-UNREADABLE", f"{self.name(path)} cannot be read: {error.strerror}", path)
            return ""

    def json(self, path: Path) -> Mapping[str, Any]:
        """Return the object in a JSON file; empty, and a problem, where it is missing or holds no object."""
        try:
            with opened(path) as file:
                return MappingProxyType(msgspec.json.decode(file.read(), type=dict[str, Any]))
        except FileNotFoundError:
            self.problem("FILE-MISSING", f"{self.name(path)} is missing", path)
        except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
            self.problem("FILE-UNREADABLE", f"{self.name(path)} is not a JSON object: {error}", path)
        return MappingProxyType({})

    def _unreadable(self, folder: Path, error: CmError) -> None:
        path = folder / DETAIL_LOG
        if path.exists():
            what = error.what.replace(str(path), self.name(path))
            self.problem("LOG-UNREADABLE", what, path, value=error.cause, remedy=error.remedy)
        else:
            self.problem("FILE-MISSING", f"{self.name(path)} is missing", path)


def _settings(log: DetailLog) -> Mapping[str, Any]:
    """Return the settings that LoadGen used, and what it asked the sample library."""
    values = {
        key.removeprefix("effective_"): value
        for key, value in log.values.items()
        if key.startswith(("effective_", "qsl_reported_", "test_datetime", "power_"))
        or key in ("requested_use_token_latencies", "sut_name")
    }
    return MappingProxyType(values)


def _scores(lines: list[str], file: str) -> Iterator[Figure]:
    for line in lines:
        found = _IN_DICTIONARY.findall(line) or [match.groups() for match in _ON_A_LINE.finditer(line)]
        for label, number in found:
            yield Figure(label, float(number), SCORE_UNITS.get(label, ""), Source(file, label))

"""LoadGen's summary beside its detail log: two accounts of one run, which state the same figures."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.records.logs.run_logs import SUMMARY_LOG
from cm4vllm.results.checks.of_logs.log_figures import UNSUCCESSFUL
from cm4vllm.results.checks.subjects import Part, with_tests
from cm4vllm.results.log_folders import text_at
from cm4vllm.results.model import Accuracy, Performance

__all__: list[str] = []

#: A summary has about 3 KB; one that is far longer is none.
_MAX_SUMMARY = 2**20
#: The part by which a figure may differ beside the digits that the summary has: rates in detail logs have six.
_ROUNDING = 1e-5
_NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?:e[+-]?\d+)?")
_PERCENTILE = re.compile(r"(\d{1,3})\.(\d{1,9}) percentile")
#: A line's label, as a pattern, and the name of the figure or setting (loadgen/results.cc, LogSummary). Figures in ns
#: are in ms in the model.
_LABELS = tuple(
    (re.compile(label), name, scale)
    for label, name, scale in (
        (r"(?:Completed )?[Ss]amples per second", "samples_per_second", 1.0),
        (r"QPS w/ loadgen overhead", "samples_per_second", 1.0),
        (r"Scheduled samples per second", "scheduled_samples_per_second", 1.0),
        (r"(?:Completed )?[Tt]okens per second", "tokens_per_second", 1.0),
        (r"(\S+) latency \(ns\)", "latency", 1e6),
        (r"(\S+) [Ff]irst [Tt]oken latency \(ns\)", "ttft", 1e6),
        (r"(\S+) [Tt]ime (?:to|per) [Oo]utput [Tt]oken \(ns\)", "tpot", 1e6),
    )
)
#: Texts of a summary, and the setting of the detail log that has each. Others have the name that the summary has, with
#: its unit: `min_duration (ms)` is min_duration_ms.
_SETTINGS = {
    "SUT name": "sut_name",
    "Scenario": "scenario",
    "Mode": "test_mode",
    "ttft_latency (ns)": "requested_server_ttft_latency",
    "tpot_latency (ns)": "requested_server_tpot_latency",
}
#: Verdicts of a summary, and the entry of the detail log that has each.
_VERDICTS = {
    "Performance constraints satisfied": "result_perf_constraints_met",
    "Min duration satisfied": "result_min_duration_met",
    "Min queries satisfied": "result_min_queries_met",
    "Early stopping satisfied": "early_stopping_met",
}
#: The last lines of a summary: how many warnings and errors there were.
_ENTRIES = re.compile(r"^(No|\d+) (error|warning)s? encountered", re.IGNORECASE)
_SOME = {True: "some", False: "none"}
_UNIT = re.compile(r" \((ns|ms)\)$")


class _Stated(NamedTuple):
    """One line of a summary, and the value of the detail log that belongs to it."""

    label: str
    text: str
    logged: float | int | str

    @property
    def same(self) -> bool:
        if isinstance(self.logged, str) or (isinstance(self.logged, int) and self.text.isdecimal()):
            return self.text == str(self.logged)
        if not (number := _NUMBER.fullmatch(self.text)):
            return True  # LoadGen could compute no value
        digit = 10.0 ** -len(number[1] or "")
        return abs(float(self.text) - self.logged) <= 0.51 * digit + _ROUNDING * abs(self.logged)


@check(
    "SUMMARY-DIFFERS",
    source="loadgen/results.cc, LogSummary and LogDetail",
    remedy="publish both logs of the run that is meant, as LoadGen wrote them",
    stage=Stage.TREE,
    each=with_tests,
)
def one_run(part: Part) -> Iterator[Fault]:
    """Summary and detail log are of one run: they state the same figures."""
    stated = list(_stated(part))
    apart = [line for line in stated if not line.same]
    if apart:
        yield Fault(
            f"{len(apart)} of the {len(stated)} values that the summary shares with the detail log are others",
            part.beside(SUMMARY_LOG),
            apart[0].label,
            apart[0].text,
            f"{apart[0].logged:.15g}" if isinstance(apart[0].logged, float) else apart[0].logged,
        )


def _stated(part: Part) -> Iterator[_Stated]:
    """Yield the lines of a run's summary that the detail log has a value for; none where there is no summary."""
    lines = text_at(part.folder / SUMMARY_LOG, _MAX_SUMMARY).splitlines()
    if not lines:
        return  # RESULT-FILES
    yield from _entries(part, lines)
    for line in lines:
        label, text = _label_and_text(line)
        if text:
            value = _setting(part, label) if isinstance(part, Accuracy) else _logged(part, label)
            if value is not None:
                yield _Stated(label, text, value)


def _label_and_text(line: str) -> tuple[str, str]:
    """Return what stands before and behind the last colon with a space behind it; two empty texts without one."""
    label, _, text = line.rpartition(": ")
    return ("", "") if ":" in text else (label.strip(), text.strip())


def _entries(part: Part, lines: list[str]) -> Iterator[_Stated]:
    """Yield the summary's lines on warnings and errors, and on early stopping if it failed."""
    if part.detail is None:
        return
    logged = {"error": part.detail.error_count > 0, "warning": bool(part.detail.warnings)}
    for line in lines:
        if match := _ENTRIES.match(line):
            said, kind = match[1].lower() != "no", match[2].lower()
            yield _Stated(f"{kind}s", _SOME[said], _SOME[logged[kind]])
    failed = any(UNSUCCESSFUL in str(value) for value in part.detail.values.values())
    said = any(UNSUCCESSFUL in line for line in lines)
    if said or failed:
        yield _Stated("early stopping", UNSUCCESSFUL if said else "", UNSUCCESSFUL if failed else "")


def _logged(part: Performance, label: str) -> float | int | str | None:
    """Return the detail log's value for a line of the summary; None where the line is about another figure."""
    if label == "Result is" and part.loadgen_valid:
        return "VALID"  # what the detail log says against it is RESULT-INVALID's
    if label in _VERDICTS:
        met = part.detail.values.get(_VERDICTS[label]) if part.detail else None
        return ("Yes" if met else "NO") if isinstance(met, bool) else None
    short = _PERCENTILE.sub(
        lambda percentile: f"p{percentile[1]}" + (f".{percentile[2].rstrip('0')}" if percentile[2].strip("0") else ""),
        label,
    )
    for pattern, name, scale in _LABELS:
        if match := pattern.fullmatch(short):
            full = f"{name}_{match[1].lower()}" if match.groups() else name
            names = (f"query_{full}", full) if name == "latency" else (full,)
            figure = next((part.figures[name] for name in names if name in part.figures), None)
            return None if figure is None else float(figure.value) * scale
    return _setting(part, label)


def _setting(part: Part, label: str) -> float | int | str | None:
    value = part.settings.get(_SETTINGS.get(label) or _UNIT.sub(r"_\1", label))
    return int(value) if isinstance(value, bool) else value if isinstance(value, int | float | str) else None

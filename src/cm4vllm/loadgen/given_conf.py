"""A user.conf that the user gives, read as LoadGen reads it: lines that are of no use are named before a run.

Of no use are those that would set nothing, and those that set another value than the rules have.

LoadGen takes words between spaces, `NAME.SCENARIO.SETTING = NUMBER`, and passes over whatever it has no use for:
another model's name, a setting that it does not have, `=` without spaces (loadgen/test_settings_internal.cc,
FromConfig).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.records.logs.early_stopping import PERCENTILES
from cm4vllm.rules import ExecutionMode, Mode, Terms, issues_equally

#: The settings that LoadGen reads in every scenario.
_COMMON = frozenset(
    {
        "accuracy_log_rng_seed",
        "accuracy_log_sampling_target",
        "accuracy_sample_count_override",
        "infer_token_latencies",
        "max_duration",
        "max_query_count",
        "min_duration",
        "min_query_count",
        "mode",
        "performance_issue_same",
        "performance_issue_same_index",
        "performance_issue_unique",
        "performance_sample_count_override",
        "print_timestamps",
        "sample_concatenate_permutation",
        "token_latency_scaling_factor",
        "use_token_latencies",
    }
)
#: The settings of one scenario, beside the common ones.
_OF_SCENARIO = {
    "SingleStream": frozenset({"target_latency", "target_latency_percentile"}),
    "MultiStream": frozenset({"target_latency", "target_latency_percentile", "samples_per_query"}),
    "Server": frozenset(
        {
            "target_latency",
            "target_latency_percentile",
            "target_qps",
            "ttft_latency",
            "tpot_latency",
            "coalesce_queries",
            "max_async_queries",
        }
    ),
    "Offline": frozenset({"target_qps"}),
}
#: The settings that LoadGen takes from its own mlperf.conf alone.
_FIXED = frozenset({"qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed", "accuracy_log_probability"})
#: The settings that a run here, or the benchmark's lines of mlperf.conf, have whatever a user.conf says.
_OTHERS = {
    "mode": "each run has the mode that its recipe gives it",
    "infer_token_latencies": "the rules fix it, in mlperf.conf",
    "token_latency_scaling_factor": "the rules fix it, in mlperf.conf",
}
#: The settings that are for runs of compliance tests alone (compliance, audit.config of each test).
_OF_TESTS = frozenset({"performance_issue_same", "performance_issue_unique", "accuracy_log_sampling_target"})
#: The bounds of a run that 0 leaves open.
_UNBOUNDED = frozenset({"max_duration", "max_query_count"})
#: The settings that LoadGen reads with a fraction, and those of them that it does not where queries are paced. It reads
#: all others as whole numbers: up to the first character that is no digit, those after a leading 0 in octal.
_FRACTIONS, _WHOLE_IF_PACED = frozenset({"target_qps", "target_latency", "target_latency_percentile"}), "target_latency"
#: The settings that must be greater than 0.
_POSITIVE = frozenset({"target_qps", "target_latency"})
#: LoadGen's rates where nothing states one: samples/s, and the expected latency in ms (loadgen/mlperf.conf).
_RATE, _LATENCY_MS = 1.0, 10.0


@dataclass(frozen=True)
class _Line:
    """A line that is no comment: its number and text, and the parts that LoadGen reads, empty where it reads none.

    `whole` is what LoadGen makes of the value where it reads a whole number.
    """

    number: int
    text: str
    model: str = ""
    scenario: str = ""
    setting: str = ""
    value: float = 0.0
    whole: int = 0

    @property
    def words(self) -> str:
        """Return the line's number and text for a message."""
        return f"line {self.number}, {self.text!r}"


def require_usable_conf(text: str, terms: Terms, execution: ExecutionMode = ExecutionMode.TEST) -> None:
    """Raise UsageError for the lines of a user.conf that are of no use, all at once.

    Those are lines that set nothing, no usable number, or another value than the rules have: in any run, or in the
    `execution` mode of valid runs.
    """
    lines = list(_lines(text))
    wrong = [f"{line.words}: {why}" for line in lines if (why := _why_not(line, lines, terms, execution))]
    if wrong:
        raise UsageError(
            "lines of user.conf are not usable for this run",
            cause="\n".join(wrong),
            remedy=f"write {terms.loadgen_name}.{terms.loadgen_scenario}.SETTING = NUMBER, with spaces around =, or "
            "leave these lines out",
        )


def rate_in(text: str, terms: Terms) -> float:
    """Return the samples/s that LoadGen aims at by a user.conf: its own rate where the file states none."""
    if terms.one_by_one:
        return 1000 / (_value(text, terms, "target_latency") or _LATENCY_MS)
    return _value(text, terms, "target_qps") or _RATE


def _value(text: str, terms: Terms, setting: str) -> float | None:
    """Return a setting of the run: the line that names model and scenario most closely counts, the last of such."""
    values = {(line.model, line.scenario): line.value for line in _lines(text) if line.setting == setting}
    order = product((terms.loadgen_scenario, "*"), (terms.loadgen_name, "*"))
    return next((values[name, scenario] for scenario, name in order if (name, scenario) in values), None)


def _lines(text: str) -> Iterator[_Line]:
    """Yield the settings of a user.conf with their lines; comments are skipped."""
    for number, line in enumerate(text.encode().split(b"\n"), 1):
        words = [word.decode() for word in line.split()]  # of bytes: at the white space of ASCII alone
        values = [_number(word) for word in words[2:]]
        is_setting = words[1:2] == ["="] and values and None not in values
        if not words or words[0] == "#" or (words[0].startswith("#") and (is_setting or len(words) == 1)):
            continue
        names = words[0].rsplit(".", 2) if is_setting else []
        model, scenario, setting = names if len(names) == 3 else ("", "", "")
        value = words[-1] if setting else "0"
        yield _Line(number, " ".join(words), model, scenario, setting, _number(value) or 0.0, _whole(value))


def _number(word: str) -> float | None:
    """Return a number as LoadGen reads it: whole, also in hexadecimal, or with a fraction."""
    try:
        usable = word.isascii() and "_" not in word
        return (float(int(word, 0)) if "x" in word.lower() else float(word)) if usable else None
    except ValueError:
        return None


def _whole(word: str) -> int:
    """Return what LoadGen makes of a number where it reads a whole one: C's strtoull with base 0."""
    match = re.match(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([0-9]*))", word)
    sign, hexadecimal, octal, decimal = match.groups() if match else ("", "", "", "")
    base, digits = (16, hexadecimal) if hexadecimal else (8, octal) if octal else (10, decimal)
    return int(f"{sign}{digits}", base) if digits else 0


def _why_not(line: _Line, lines: list[_Line], terms: Terms, execution: ExecutionMode) -> str:
    """Return why a line is not usable; empty for one that sets something, or is for other runs."""
    if not line.setting:
        return "it is not NAME.SCENARIO.SETTING = NUMBER alone, nor a comment that begins with '# '"
    if line.scenario not in (*_OF_SCENARIO, "*"):
        return f"LoadGen has no scenario {line.scenario}; {nearest(line.scenario, list(_OF_SCENARIO))}"
    if line.setting in _FIXED:
        return "LoadGen takes it from its own mlperf.conf alone"
    known = _COMMON.union(*(own for name, own in _OF_SCENARIO.items() if line.scenario in (name, "*")))
    if line.setting not in known:
        of = "" if line.scenario == "*" else f" of {line.scenario}"
        return f"LoadGen has no setting {line.setting}{of}; {nearest(line.setting, sorted(known))}"
    models, scenarios = (terms.loadgen_name, "*"), (terms.loadgen_scenario, "*")
    if line.scenario not in scenarios:
        return ""
    if line.model not in models:
        own = (other for other in lines if other.model in models and other.scenario in scenarios)
        stated = line.setting in {other.setting for other in own}
        return "" if stated else f"LoadGen's name of this benchmark is {terms.loadgen_name}"
    return (
        _not_usable(line.value, line.setting, terms)
        or _read_otherwise(line, terms)
        or _against_rules(line.value, line.setting, terms, execution)
    )


def _not_usable(value: float, setting: str, terms: Terms) -> str:
    """Return why a value of a setting can be used by no run; empty where it can."""
    if setting in _OTHERS:
        return _OTHERS[setting]
    least = setting in _POSITIVE and not (setting == "target_latency" and terms.token_latencies and terms.paced)
    if not math.isfinite(value) or value < 0 or (least and value == 0):
        return f"it must be a number {'greater than 0' if least else 'of 0 or more'}"
    if setting in _OF_TESTS and value:
        return "it is for compliance tests, whose audit.config sets it"
    return ""


def _read_otherwise(line: _Line, terms: Terms) -> str:
    """Return what LoadGen would make of a number that is not written as a whole one; empty where it reads its value."""
    fraction = line.setting in _FRACTIONS and not (line.setting == _WHOLE_IF_PACED and terms.paced)
    if fraction or line.whole == line.value:
        return ""
    return f"LoadGen reads whole numbers here, and would take {line.whole} for it"


def _against_rules(value: float, setting: str, terms: Terms, execution: ExecutionMode) -> str:
    """Return what the rules have in the place of a value; empty where they allow it."""
    rules = f"the rules of {terms.benchmark}"
    valid = execution is ExecutionMode.VALID and terms.mode is Mode.PERFORMANCE
    wanted = _fixed_values(terms, valid=valid).get(setting)
    if wanted is not None and value != wanted:
        return f"{rules} have {wanted:g}; a run with another is none of this benchmark"
    least = _least_values(terms).get(setting, 0) if valid else 0
    if value < least and not (value == 0 and setting in _UNBOUNDED):
        return f"{rules} have {least:g} at least; a rehearsal (--execution_mode=test) may have less"
    return ""


def _fixed_values(terms: Terms, *, valid: bool) -> dict[str, float | None]:
    """Return the values that the rules fix, None for those that they do not; `valid` runs have more of them."""
    limits = terms.limits
    fixed: dict[str, float | None] = {
        "use_token_latencies": float(terms.token_latencies),
        "target_latency_percentile": PERCENTILES.get(terms.loadgen_scenario),
        "sample_concatenate_permutation": 1.0 if issues_equally(terms.round, terms.benchmark) else None,
    }
    if limits is not None:
        fixed |= {"ttft_latency": limits.ttft_ms, "tpot_latency": limits.tpot_ms}
    if limits is not None and terms.paced and not terms.token_latencies:
        fixed["target_latency"] = limits.latency_ms
    if valid:
        loaded = "performance_sample_count_override"
        fixed[loaded] = float(terms.user_conf.get(loaded, terms.samples))
    return fixed


def _least_values(terms: Terms) -> dict[str, float]:
    """Return the least values of a valid performance run; 0 leaves what is _UNBOUNDED without a bound."""
    duration, asked = terms.min_duration_ms, terms.user_conf.get("min_query_count", 0)
    queries = max(asked, terms.min_samples, 1 if terms.early_stopping else terms.min_queries)
    return {"min_duration": duration, "max_duration": duration, "min_query_count": queries, "max_query_count": queries}

"""The settings in the logs of a written tree: as they were requested, as the rules and the files beside them say."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.subjects import Part, is_strict, measured_results, parts, with_submission, with_tests
from cm4vllm.results.log_folders import text_at
from cm4vllm.results.model import Performance, Result, Submission
from cm4vllm.rules import if_known, issues_equally

_AGAIN = "measure again with the settings of the rules, and publish that run"
_PUBLISH = "publish the files of the run whose log is published"
_INTERNAL = "loadgen/test_settings_internal.cc, LogRequestedTestSettings and LogEffectiveSettings"
#: `model.scenario.setting = value`, as in user.conf and mlperf.conf.
_SETTING = re.compile(r"^[^\S\n]*([\w.*-]+?)\.(\w+|\*)\.(\w+)\s*=\s*([\d.eE+-]+)\s*(?:#.*)?$", re.MULTILINE)
#: A longer mlperf.conf is none.
_MAX_CONF = 2**20
_NS = 1e6
#: Settings as the conf files name them, each with the factor of its value in a log, and its entry there.
_LOGGED = {
    "target_qps": (1.0, "target_qps"),
    "min_duration": (1.0, "min_duration_ms"),
    "max_duration": (1.0, "max_duration_ms"),
    "min_query_count": (1.0, "requested_min_query_count"),
    "max_query_count": (1.0, "max_query_count"),
    "performance_sample_count_override": (1.0, "performance_sample_count"),
    "accuracy_log_sampling_target": (1.0, "accuracy_log_sampling_target"),
    "performance_issue_unique": (1.0, "performance_issue_unique"),
    "performance_issue_same": (1.0, "performance_issue_same"),
    "sample_concatenate_permutation": (1.0, "sample_concatenate_permutation"),
    "use_token_latencies": (1.0, "requested_use_token_latencies"),
    "ttft_latency": (_NS, "requested_server_ttft_latency"),
    "tpot_latency": (_NS, "requested_server_tpot_latency"),
    "target_latency": (_NS, "requested_server_target_latency_ns"),
    "target_latency_percentile": (0.01, "requested_server_target_latency_percentile"),
    "qsl_rng_seed": (1.0, "qsl_rng_seed"),
    "sample_index_rng_seed": (1.0, "sample_index_rng_seed"),
    "schedule_rng_seed": (1.0, "schedule_rng_seed"),
}
#: The limits of a benchmark: the setting in a conf file, the entry of a log in ns, and the field of the rules in ms.
_LIMITS = (
    ("ttft_latency", "requested_server_ttft_latency", "ttft_ms"),
    ("tpot_latency", "requested_server_tpot_latency", "tpot_ms"),
    ("target_latency", "target_latency_ns", "latency_ms"),
)
#: The settings that mlperf.conf fixes for all models in one line.
_OF_ALL = {"min_duration", "qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed"}
#: The settings that mlperf.conf fixes and a submitter does not choose; a run may last longer.
_FIXED = {
    "ttft_latency",
    "tpot_latency",
    "target_latency",
    "target_latency_percentile",
    "use_token_latencies",
    "sample_concatenate_permutation",
    "performance_issue_unique",
    "performance_issue_same",
    "performance_sample_count_override",
    *_OF_ALL,
}
#: Entries of one setting under two names, besides requested_X and effective_X. LoadGen derives min_query_count.
_REQUESTED = {
    "requested_server_target_qps": "target_qps",
    "requested_offline_expected_qps": "target_qps",
    "requested_server_target_latency_ns": "target_latency_ns",
    "requested_server_target_latency_percentile": "target_latency_percentile",
    "requested_single_stream_target_latency_percentile": "target_latency_percentile",
    "requested_multi_stream_target_latency_percentile": "target_latency_percentile",
    "requested_multi_stream_samples_per_query": "samples_per_query",
    "requested_server_max_async_queries": "max_async_queries",
}
_DERIVED = "requested_min_query_count"
#: The part by which a setting may differ: logs have six digits.
_ROUNDING = 1e-4


def _same(value: object, other: object) -> bool:
    if isinstance(value, int | float) and isinstance(other, int | float):
        return abs(value - other) <= _ROUNDING * abs(value) if isinstance(value, float) else value == other
    return value == other


@check(
    "LOG-MODE",
    source="loadgen/test_settings.h, TestMode",
    remedy="publish each run's log in its own folder",
    stage=Stage.TREE,
    each=parts,
)
def modes(_: Result, part: Part) -> Iterator[Fault]:
    """A performance run was made in LoadGen's performance mode, an accuracy run in its accuracy mode."""
    used, mode = part.settings.get("test_mode"), f"{part.mode.capitalize()}Only"
    if used and used not in (mode, "SubmissionRun"):
        yield Fault("the log is of a run in another mode", part.log, "effective_test_mode", used, mode)


@check("LOG-REQUESTED", source=_INTERNAL, remedy=_PUBLISH, stage=Stage.TREE, each=with_tests)
def as_requested(part: Part) -> Iterator[Fault]:
    """LoadGen used the settings that were requested: a log states both."""
    apart = list(_unused_requests(part.settings))
    if apart:
        key, requested, used = apart[0]
        more = f"; {len(apart) - 1} more settings differ" if len(apart) > 1 else ""
        yield Fault(f"the log requests another value than it used{more}", part.log, key, requested, used)


def _unused_requests(settings: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    for key, value in settings.items():
        if not key.startswith("requested_") or key == _DERIVED:
            continue
        used = settings.get(_REQUESTED.get(key, key.removeprefix("requested_")))
        if used is not None and not _same(value, used):
            yield key, value, used
    asked, issued = settings.get(_DERIVED), settings.get("min_sample_count")
    if isinstance(asked, int) and isinstance(issued, int) and issued < asked:
        yield _DERIVED, asked, f"min_sample_count {issued}"


@check(
    "EQUAL-ISSUE",
    source="tools/submission/submission_checker.py at tag v5.1.1, requires_equal_issue",
    remedy=f"{_AGAIN}: LoadGen's own name of the benchmark sets sample_concatenate_permutation",
    stage=Stage.TREE,
    each=measured_results,
)
def equal_issue(result: Result, part: Performance) -> Iterator[Fault]:
    """Runs of benchmarks whose samples differ in length issue all samples equally often."""
    permuted = part.settings.get("sample_concatenate_permutation")
    if permuted is False and if_known(issues_equally, result.round, result.benchmark):
        yield Fault(
            "the run does not issue all samples equally often",
            part.log,
            "effective_sample_concatenate_permutation",
            "false",
            "true",
        )


@check(
    "AUDIT-SETTINGS",
    source="compliance, audit.config of each test; loadgen/test_settings.h",
    remedy="remove audit.config, measure again, and publish that run",
    stage=Stage.TREE,
    each=parts,
)
def no_audit(_: Result, part: Part) -> Iterator[Fault]:
    """The settings of compliance tests are for these alone: a result's run draws its samples as LoadGen does."""
    for key in ("performance_issue_same", "performance_issue_unique", "accuracy_log_sampling_target"):
        if value := part.settings.get(key):
            # LoadGen logs a part of the answers, and measures as without: the checkers take such a log.
            mild = isinstance(value, int) and not isinstance(value, bool) and isinstance(part, Performance)
            yield Fault(
                "the run was made with a setting of compliance tests",
                part.log,
                f"effective_{key}",
                value,
                "false" if isinstance(value, bool) else 0,
                severity=Severity.WARNING if mild else Severity.ERROR,
            )


@check(
    "LOG-LIMITS",
    source="loadgen/mlperf.conf, ttft_latency, tpot_latency and target_latency of each benchmark",
    remedy=_AGAIN,
    stage=Stage.TREE,
    each=with_submission(measured_results),
)
def limits(submission: Submission, result: Result, part: Performance) -> Iterator[Fault]:
    """LoadGen judged a run by the limits of the rules, not by larger ones."""
    stated = part.terms.limits if part.terms else None
    if stated is None or part.loadgen_scenario != (part.terms.loadgen_scenario if part.terms else ""):
        return
    confs = {file: _settings_in(text, part, exact) for file, text, exact in _confs(submission, result)}
    for key, entry, name in _LIMITS:
        limit = getattr(stated, name)
        used = part.settings.get(entry)
        if limit and isinstance(used, int | float) and used > limit * _NS * (1 + _ROUNDING):
            yield Fault("LoadGen was given a larger limit than the rules have", part.log, entry, used, limit * _NS)
        yield from (
            Fault(
                "the file states a larger limit than the rules have",
                file,
                settings[key].name,
                f"{settings[key].value:g}",
                f"{limit:g} or less",
            )
            for file, settings in confs.items()
            if limit and key in settings and settings[key].value > limit * (1 + _ROUNDING)
        )


@check(
    "USER-CONF-DIFFERS",
    source="loadgen/mlperf.conf",
    remedy=_PUBLISH,
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=with_submission(measured_results),
)
def confs(submission: Submission, result: Result, part: Performance) -> Iterator[Fault]:
    """The settings in user.conf, and those that mlperf.conf fixes, are those that LoadGen used."""
    known: set[str] = set()
    for file, text, fixed in _confs(submission, result):
        settings = _settings_in(text, part, exact=fixed)
        for key, setting in settings.items():
            factor, entry = _LOGGED[key]
            used = part.settings.get(entry)
            if key in known or (fixed and key not in _FIXED) or not isinstance(used, int | float):
                continue
            if fixed and key == "min_duration" and used >= setting.value:
                continue
            if abs(used / factor - setting.value) > _ROUNDING * max(abs(setting.value), 1e-9):
                yield Fault(
                    f"{file.rpartition('/')[2]} states another {key} than the log",
                    file,
                    setting.name,
                    f"{setting.value:g}",
                    f"{used / factor:g}, as in {part.log}",
                    # LoadGen since 5.0 has the seeds of its round, whatever the file says.
                    severity=Severity.NOTE if key.endswith("_seed") else None,
                )
        known |= set(settings)


def _confs(submission: Submission, result: Result) -> Iterator[tuple[str, str, bool]]:
    """Yield user.conf, then mlperf.conf: name, text, and True for mlperf.conf, which fixes settings."""
    name = result.files.get("user_conf", "")
    if not name:
        return
    yield name, result.user_conf, False
    yield (
        f"{name.rpartition('/')[0]}/mlperf.conf",
        text_at((submission.root / name).with_name("mlperf.conf"), _MAX_CONF),
        True,
    )


class _Setting(NamedTuple):
    """A line of a conf file: how closely it names the run, its name there, and its value."""

    weight: tuple[bool, int]
    name: str
    value: float


def _settings_in(text: str, part: Performance, exact: bool) -> dict[str, _Setting]:
    """Return the settings of a conf file for a run: of several lines the one that LoadGen takes.

    A line that names the scenario goes before one that names the model. Where names are not `exact`, lines for all
    models count, and lines for a model whose name is the beginning of LoadGen's name of this one. Where they are
    `exact`, lines for all models count for a few settings alone.
    """
    settings: dict[str, _Setting] = {}
    name = part.terms.loadgen_name if part.terms else part.log.split("/")[4]
    for model, of, key, number in _SETTING.findall(text):
        if exact:
            close = 2 if model == name else 0 if model == "*" and key in _OF_ALL else -1
        else:
            close = 2 if model == name else 0 if model == "*" else 1 if name.startswith(model) else -1
        if key not in _LOGGED or of not in (part.loadgen_scenario, "*") or close < 0:
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        weight = (of != "*", close)
        if key not in settings or weight >= settings[key].weight:
            settings[key] = _Setting(weight, f"{of}.{key}", value)
    return settings


@check(
    "MIN-SAMPLES",
    source="loadgen/mlperf.conf, Offline.min_query_count",
    remedy=_AGAIN,
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=measured_results,
)
def min_samples(result: Result, part: Performance) -> Iterator[Fault]:
    """An Offline run is asked to issue at least as many samples as mlperf.conf asks of its benchmark."""
    asked = part.settings.get(_DERIVED)
    terms = part.terms
    if terms is None or not terms.at_once or part.loadgen_scenario != terms.loadgen_scenario:
        return  # another scenario's log, as that of an inferred result
    if "min_query_count" in terms.user_conf:
        return  # mlperf.conf does not ask; how many samples were issued is PERFORMANCE-SAMPLES
    if isinstance(asked, int) and asked < terms.min_samples:
        yield Fault(
            "LoadGen was asked for fewer samples than mlperf.conf asks for",
            part.log,
            _DERIVED,
            asked,
            f"{terms.min_samples} or more",
            severity=None if is_strict(result) else Severity.NOTE,
        )

"""The changes between two files of rules of MLPerf Endpoints, and the kept curves and points that they concern."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace

from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.clock import present
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import typed_path
from cm4vllm.common.progress import say_text
from cm4vllm.common.settings import Key, Settings
from cm4vllm.results.checks import findings_at
from cm4vllm.results.endpoints.curves import Curve, read_curves
from cm4vllm.rules import EndpointsRules, RulesInputs, plain_rules, read_rules

#: The keys that name an entry of a list together, those that it has.
_NAMES = ("round", "checker", "benchmark", "name", "weights", "target", "up_to")


class ExplainSettings(Settings, frozen=True, kw_only=True):
    """The inputs of explain,mlperf,rules: older rules, newer ones, and a folder that holds kept results."""

    since: Annotated[str, Key("CM_MLPERF_RULES_SINCE")] = ""
    folder: Annotated[str, Key("CM_MLPERF_RULES_RESULTS")] = ""
    rules: RulesInputs = RulesInputs()


def explain_rules(settings: ExplainSettings) -> dict[str, Any]:
    """Print what changed and what that means for kept results; return both as data. Raises UsageError."""
    if not settings.since:
        raise UsageError("no older rules were given", remedy="name their file with --since of explain,mlperf,rules")
    older, newer = read_rules(typed_path(settings.since)), settings.rules.chosen()
    changed = list(_changes("", plain_rules(replace(older, amended_by=())), plain_rules(replace(newer, amended_by=()))))
    say_text(f"from {older.title} to {newer.title}: {len(changed)} change{'s' * (len(changed) != 1)}")
    for line in changed:
        say_text(f"  {line}")
    verdicts = list(_verdicts(typed_path(settings.folder), older, newer)) if settings.folder else []
    for line in verdicts or ["kept results: no verdict changes" if settings.folder else "kept results: none named"]:
        say_text(line)
    return {"changes": changed, "verdicts": verdicts}


def _changes(place: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the differences between two plain values, each with its place."""
    if before == after:
        return
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        before, after = _by_name(before), _by_name(after)
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        yield f"{place}: {_plain(before)} before, {_plain(after)} now"
        return
    for key in [*before, *(key for key in after if key not in before)]:
        inner = f"{place}.{key}" if place else str(key)
        if key not in after:
            yield f"{inner}: removed ({_plain(before[key])})"
        elif key not in before:
            yield f"{inner}: added ({_plain(after[key])})"
        else:
            yield from _changes(inner, before[key], after[key])


def _plain(value: Any) -> str:
    """Return a value as words; of an entry those of its fields that are not empty."""
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{key} {inner}" for key, inner in value.items() if inner not in ("", None, {}, []))


def _by_name(values: Sequence[Any]) -> dict[str, Any]:
    """Return the entries of a list by their names, those without one by their number."""
    named: dict[str, Any] = {}
    for number, value in enumerate(values, 1):
        name = _name_of(value, number)
        named[f"{name} ({number})" if name in named else name] = value
    return named


def _name_of(value: Any, number: int) -> str:
    names = [str(value[key]) for key in _NAMES if value.get(key)] if isinstance(value, Mapping) else []
    return " ".join(names) or str(number)


def _verdicts(root: Path, older: EndpointsRules, newer: EndpointsRules) -> Iterator[str]:
    """Yield which curves below a folder have other findings, and which points are measured again by newer rules."""
    if not root.is_dir():
        raise UsageError(f"{root} is no folder", remedy="name a folder of results, run folders or a bundle")
    for before, after in zip(read_curves(root, older)[0], read_curves(root, newer)[0], strict=True):
        yield from _findings(before, after)
        yield from _targets(after)
        yield from _points(after)


def _findings(before: Curve, after: Curve) -> Iterator[str]:
    known, now = (findings_at(Stage.CURVE, curve) for curve in (before, after))
    yield from (f"{after.name}: now {_short(finding)}" for finding in now if finding not in known)
    yield from (f"{after.name}: no longer {_short(finding)}" for finding in known if finding not in now)


def _short(finding: Finding) -> str:
    return " ".join(str(finding).split())


def _targets(curve: Curve) -> Iterator[str]:
    """Yield why the cohort that a curve is for is over, where it is."""
    for cohort in sorted({str(point.declared.get("target_cohort") or "") for point in curve.points} - {""}):
        try:
            over = curve.rules.target(cohort, present().date()).over
        except UsageError as error:
            over = error.what
        if over:
            yield f"{curve.name}: not submittable now: {over}"


def _points(curve: Curve) -> Iterator[str]:
    """Yield which points of cm4vllm a job of today would measure again, and why."""
    seeds = curve.rules.target("", present().date()).seeds
    for point in curve.points:
        if not (run := point.record.get("run")) or not isinstance(run, Mapping):
            continue
        used = run.get("seeds")
        if isinstance(used, Mapping) and (used.get("scheduler"), used.get("sample_index")) != (
            seeds.scheduler,
            seeds.sample_index,
        ):
            yield f"{point.name}: measured with seed set {used.get('name')}; a job of today uses {seeds.name}"
        if (commit := str(point.record.get("client_commit") or "not known")) not in curve.rules.client.commits:
            yield f"{point.name}: measured by the client at {commit[:12]}, which these rules do not name"
        terms, concurrency = point.record.get("terms"), point.concurrency
        if isinstance(terms, Mapping) and concurrency is not None:
            least = curve.rules.least_seconds(concurrency)
            if terms.get("least_seconds") != least:
                yield f"{point.name}: measured for {terms.get('least_seconds')} s; the rules now ask for {least:g} s"

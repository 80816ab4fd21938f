"""Two capsules field by field: what has to be equal, what may differ, and whether the results are the same.

Accuracy: the equal answers are counted, and each score may differ by a stated part of it. Performance: the intervals of
the figures have to overlap (results.uncertainty); in a rehearsal, whose figures say nothing of the system, they are
shown and not judged. Figures of a run that its own record calls doubtful, or whose interval is so wide that most runs
lie in it, do not confirm each other: they are called doubtful, with the reason.
"""

from __future__ import annotations

import base64
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from cm4vllm.common.errors import ResultsDiffer
from cm4vllm.common.progress import say
from cm4vllm.common.records import Record
from cm4vllm.loadgen.logs import ACCURACY_LOG
from cm4vllm.results.uncertainty import LEVEL
from cm4vllm.serving.given_options import given_options, value_text
from cm4vllm.submission.capsule.rerun_file import ANSWER_BYTES, Capsule, CapsuleFigure, CapsuleRun

__all__ = ["ACCURACY_TOLERANCE", "Compared", "Judgement", "compare", "environment", "judge", "report"]

#: The part of a score by which the same model may miss it: that which the 99 % variants of benchmarks allow.
ACCURACY_TOLERANCE = 0.01
#: Fields that make another measurement where they differ.
_DECISIVE = (
    "round",
    "benchmark",
    "model.sha256",
    "dataset.sha256",
    "server.software",
    "server.version",
    "server.endpoints",
)
#: Fields that are shown where they differ: the results say whether it matters.
_SHOWN = (
    "division",
    "program",
    "packages",
    "contents",
    "model.name",
    "model.revision",
    "model.weight_data_types",
    "server.env",
    "server.packages",
    "server.contents",
    "machine",
)
#: Packages, by version and by digest of what was installed: one line each is printed of them.
_INSTALLED = (("packages", "contents"), ("server.packages", "server.contents"))
#: Names of packages in such a line.
_NAMED = 6
#: An interval whose end is more than this times its beginning holds almost any other run, too.
_WIDE = 2.0
#: Options of a server's command that say where it listens.
_PLACE = ("port", "host", "uds", "root-path")
_CLIENT_SHOWN = ("target_qps_source",)


class Judgement(StrEnum):
    """What is said of a field: EQUAL and WITHIN are well, DIFFERS is not, SHOWN and UNKNOWN are not judged.

    DOUBTFUL is within the tolerance, and confirms nothing.
    """

    EQUAL = "equal"
    WITHIN = "within the tolerance"
    DOUBTFUL = "within the tolerance, DOUBTFUL"
    DIFFERS = "DIFFERS"
    SHOWN = "differs, not judged"
    UNKNOWN = "not known"


class Compared(Record, frozen=True, kw_only=True):
    """One field of two capsules. `tolerance` says what was allowed, empty where the values have to be equal."""

    field: str
    first: Any
    second: Any
    judgement: Judgement
    tolerance: str = ""


def compare(first: Capsule, second: Capsule, accuracy_tolerance: float = ACCURACY_TOLERANCE) -> list[Compared]:
    """Compare two capsules and return all fields that both or one of them state."""
    rows = [*_fields(first, second, _DECISIVE, Judgement.DIFFERS)]
    rows += _server_commands(first.server.command, second.server.command)
    rows += _fields(first, second, _SHOWN, Judgement.SHOWN)
    ours, theirs = ({run.name: run for run in one.runs} for one in (first, second))
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None:
            rows.append(
                Compared(
                    field=f"runs.{name}",
                    first="measured" if one else "missing",
                    second="measured" if other else "missing",
                    judgement=Judgement.DIFFERS,
                )
            )
        else:
            rows += _run(one, other, accuracy_tolerance, rehearsal=first.rehearsal or second.rehearsal)
    return rows


def environment(first: Capsule, second: Capsule) -> list[Compared]:
    """Compare what is known before a run: program, packages and machine."""
    return [*_fields(first, second, ("program", "packages", "contents", "machine"), Judgement.SHOWN)]


def judge(rows: list[Compared]) -> None:
    """Raise ResultsDiffer where a field differs that has to be the same."""
    apart = [row for row in rows if row.judgement is Judgement.DIFFERS]
    if apart:
        shown = [
            f"{row.field}: {_short(row.first)} and {_short(row.second)}"
            + (f" ({row.tolerance})" if row.tolerance else "")
            for row in apart[:20]
        ]
        raise ResultsDiffer(
            f"the second result is not that of the first: {len(apart)} fields differ",
            cause="\n".join(shown),
            remedy="repeat it with what the first capsule states; the table above names every field",
        )


def report(rows: list[Compared]) -> None:
    """Print each field that is not equal, one line for all packages of an environment, and how many are equal."""
    installed = tuple(f"{name}." for names in _INSTALLED for name in names)
    for row in rows:
        if row.judgement is Judgement.EQUAL or (_empty(row.first) and _empty(row.second)):
            continue
        if not row.field.startswith(installed):
            tolerance = f" ({row.tolerance})" if row.tolerance else ""
            same = row.judgement is Judgement.SHOWN and row.first == row.second
            said = f"in both: {_short(row.first)}" if same else f"{_short(row.first)} | {_short(row.second)}"
            say(f"{row.field}: {'not judged' if same else row.judgement}: {said}{tolerance}")
    for versions, contents in _INSTALLED:
        if lines := list(_packages(rows, f"{versions}.", f"{contents}.")):
            say(f"{versions}: {Judgement.SHOWN}: {'; '.join(lines)}")
    count = Counter(row.judgement for row in rows)
    unknown = sum(_empty(row.first) and _empty(row.second) for row in rows)
    say(
        f"{count[Judgement.EQUAL]} of {len(rows)} fields are equal, {count[Judgement.DIFFERS]} differ that have to be "
        f"the same, {unknown} are not known of either"
    )
    if doubtful := [row.field for row in rows if row.judgement is Judgement.DOUBTFUL]:
        say(f"WARNING: the performance is not confirmed: {len(doubtful)} figures agree, but are doubtful (see above)")


def _packages(rows: list[Compared], versions: str, contents: str) -> Iterator[str]:
    """Say which packages differ between two environments: other versions, those of one only, other contents."""
    found = {row.field.removeprefix(versions): row for row in rows if row.field.startswith(versions)}
    others = [name for name, row in found.items() if row.judgement is Judgement.SHOWN and row.first and row.second]
    yield from _listed("of another version", [f"{one} {found[one].first} | {found[one].second}" for one in others])
    yield from _listed("only in the first", [name for name, row in found.items() if row.first and not row.second])
    yield from _listed("only in the second", [name for name, row in found.items() if row.second and not row.first])
    yield from _listed(
        "of one version with other files",
        [
            name
            for row in rows
            if row.field.startswith(contents) and row.judgement is Judgement.SHOWN and row.first and row.second
            if (name := row.field.removeprefix(contents)) not in others
        ],
    )


def _listed(what: str, names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{len(names)} {what}: {', '.join(names[:_NAMED])}{more}"


def _empty(value: Any) -> bool:
    return value in ("", [], {}, None)


def _fields(first: Capsule, second: Capsule, names: tuple[str, ...], apart: Judgement) -> Iterator[Compared]:
    for name in names:
        one, other = (_value(capsule, name) for capsule in (first, second))
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            known = bool(one and other)  # what one of two known environments has not is a difference
            for key in dict.fromkeys([*one, *other]):
                row = _row(f"{name}.{key}", one.get(key, ""), other.get(key, ""), apart)
                missing = known and (key in one) != (key in other)
                yield msgspec.structs.replace(row, judgement=apart) if missing else row
        else:
            yield _row(name, one, other, apart)


def _value(capsule: Capsule, name: str) -> Any:
    value: Any = capsule
    for part in name.split("."):
        value = value[part] if isinstance(value, Mapping) and part in value else getattr(value, part, "")
    return value


def _row(field: str, one: Any, other: Any, apart: Judgement) -> Compared:
    if one == other:
        judgement = Judgement.UNKNOWN if _empty(one) else Judgement.EQUAL
    else:
        judgement = Judgement.UNKNOWN if _empty(one) or _empty(other) else apart
    return Compared(field=field, first=one, second=other, judgement=judgement)


def _server_commands(one: list[str], other: list[str]) -> Iterator[Compared]:
    """Compare what is started, then each option but those that say where the server listens, in whatever order."""
    if not one or not other:
        yield _row("server.command", one, other, Judgement.DIFFERS)
        return
    started = ([*itertools.takewhile(lambda word: not word.startswith("--"), words)] for words in (one, other))
    yield _row("server.command", next(started), next(started), Judgement.DIFFERS)
    ours, theirs = given_options(one), given_options(other)
    for name in dict.fromkeys(name for name in [*ours, *theirs] if name not in _PLACE):
        first, second = (value_text(given[name]) if name in given else "not given" for given in (ours, theirs))
        yield _row(f"server.command --{name}", first, second, Judgement.DIFFERS)


def _run(one: CapsuleRun, other: CapsuleRun, tolerance: float, *, rehearsal: bool) -> Iterator[Compared]:
    name = f"runs.{one.name}"
    yield _row(f"{name}.loadgen_version", one.loadgen_version, other.loadgen_version, Judgement.DIFFERS)
    for part in ("seeds", "sampling", "settings", "client"):
        ours, theirs = getattr(one, part), getattr(other, part)
        if bool(ours) != bool(theirs):
            yield Compared(field=f"{name}.{part}", first=ours, second=theirs, judgement=Judgement.UNKNOWN)
            continue
        for key in dict.fromkeys([*ours, *theirs]):
            same = ours.get(key) == theirs.get(key)
            apart = Judgement.SHOWN if key in _CLIENT_SHOWN else Judgement.DIFFERS
            yield Compared(
                field=f"{name}.{part}.{key}",
                first=ours.get(key),
                second=theirs.get(key),
                judgement=Judgement.EQUAL if same else apart,
            )
    if one.answers or other.answers or one.scores or other.scores:
        yield from _accuracy(name, one, other, tolerance)
    if one.valid is not None or other.valid is not None:
        yield _row(f"{name}.valid", one.valid, other.valid, Judgement.SHOWN if rehearsal else Judgement.DIFFERS)
    if doubts := [f"see {name}.doubts"] if one.doubts or other.doubts else []:
        said = ("; ".join(run.doubts) or "none" for run in (one, other))
        yield Compared(field=f"{name}.doubts", first=next(said), second=next(said), judgement=Judgement.SHOWN)
    for key in dict.fromkeys([*one.figures, *other.figures]):
        row = _figure(f"{name}.figures.{key}", one.figures.get(key), other.figures.get(key), rehearsal=rehearsal)
        yield _doubted(row, [*_wide(one.figures.get(key), other.figures.get(key)), *doubts])


def _accuracy(name: str, one: CapsuleRun, other: CapsuleRun, tolerance: float) -> Iterator[Compared]:
    ours, theirs = (base64.b64decode(run.answers) for run in (one, other))
    count, scored = len(ours) // ANSWER_BYTES, bool(one.scores and other.scores)
    if not ours or not theirs:
        first, second = (run.logs.get(ACCURACY_LOG, "") for run in (one, other))
        yield _row(f"{name}.answers: their log", first, second, Judgement.SHOWN if scored else Judgement.DIFFERS)
    elif len(ours) != len(theirs):
        yield Compared(
            field=f"{name}.answers",
            first=f"{count} answers",
            second=f"{len(theirs) // ANSWER_BYTES} answers",
            judgement=Judgement.DIFFERS,
        )
    else:
        same = sum(
            ours[at : at + ANSWER_BYTES] == theirs[at : at + ANSWER_BYTES] for at in range(0, len(ours), ANSWER_BYTES)
        )
        apart = Judgement.SHOWN if scored else Judgement.DIFFERS
        yield Compared(
            field=f"{name}.answers",
            first=f"{count} answers",
            second=f"{same} of them equal",
            judgement=Judgement.EQUAL if same == count else apart,
        )
    for label in dict.fromkeys([*one.scores, *other.scores]):
        a, b = one.scores.get(label), other.scores.get(label)
        if a is None or b is None:
            judgement = Judgement.UNKNOWN
        else:
            near = abs(a - b) <= tolerance * abs(a)
            judgement = Judgement.EQUAL if a == b else Judgement.WITHIN if near else Judgement.DIFFERS
        yield Compared(
            field=f"{name}.scores.{label}",
            first=a,
            second=b,
            judgement=judgement,
            tolerance=f"{tolerance:.2%} of the first",
        )


def _figure(field: str, one: CapsuleFigure | None, other: CapsuleFigure | None, *, rehearsal: bool) -> Compared:
    first, second = (_words(figure) for figure in (one, other))
    if one is None or other is None:
        judgement, tolerance = Judgement.UNKNOWN, ""
    elif rehearsal:
        judgement, tolerance = Judgement.SHOWN, "a rehearsal's figures say nothing of the system"
    elif one.low is None or one.high is None or other.low is None or other.high is None:
        judgement, tolerance = Judgement.UNKNOWN, "the spread of a run is not known"
    else:
        overlap = one.low <= other.high and other.low <= one.high
        judgement = Judgement.WITHIN if overlap else Judgement.DIFFERS
        tolerance = f"the intervals of {LEVEL:.0%} have to overlap"
    if one is not None and other is not None and one.value == other.value:
        judgement = Judgement.EQUAL
    return Compared(field=field, first=first, second=second, judgement=judgement, tolerance=tolerance)


def _doubted(row: Compared, doubts: list[str]) -> Compared:
    """Name the reasons to doubt a figure; one that agrees is then not confirmed."""
    if not doubts or row.judgement in (Judgement.EQUAL, Judgement.UNKNOWN):
        return row
    doubtful = row.judgement is Judgement.WITHIN
    return msgspec.structs.replace(
        row,
        judgement=Judgement.DOUBTFUL if doubtful else row.judgement,
        tolerance="; ".join([row.tolerance, f"doubtful: {', '.join(doubts)}"]),
    )


def _wide(*figures: CapsuleFigure | None) -> Iterator[str]:
    """Say which intervals are so wide that overlapping means little."""
    for which, figure in zip(("first", "second"), figures, strict=True):
        if figure and figure.low and figure.high and figure.high > _WIDE * figure.low:
            yield f"the interval of the {which} run spans a factor of {figure.high / figure.low:.1f}"


def _words(figure: CapsuleFigure | None) -> str:
    if figure is None:
        return ""
    between = f", {figure.low:.6g} to {figure.high:.6g}" if figure.low is not None and figure.high is not None else ""
    return f"{figure.value:.6g} {figure.unit}{between}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"{text[:80]}…" if len(text) > 80 else text or "(nothing)"

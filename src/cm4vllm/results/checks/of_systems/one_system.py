"""The runs of one result: performance, accuracy and compliance tests state one system, one LoadGen and one scenario."""

from collections.abc import Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.subjects import measured
from cm4vllm.results.model import Performance, Result

__all__: list[str] = []

_TOGETHER = "publish the logs of runs that were made on one system for this result"
#: The facts that all runs of a result share, by their entries in the log; the accuracy run may be of another scenario.
_SHARED = ("sut_name", "qsl_name")
_SCENARIO = "effective_scenario"


@check(
    "RUNS-APART",
    source="compliance/README.md; inference_policies/inference_rules.adoc, Results",
    remedy=_TOGETHER,
    stage=Stage.TREE,
    each=measured,
)
def one_system(result: Result, performance: Performance) -> Iterator[Fault]:
    """Performance, accuracy and compliance runs of a result are of one system under test and one sample library."""
    for part in result.logged:
        if part.detail is None or performance.detail is None:
            continue
        for key in (*_SHARED, *((_SCENARIO,) if isinstance(part, Performance) else ())):
            stated, expected = part.detail.values.get(key), performance.detail.values.get(key)
            if stated and expected and stated != expected:
                yield Fault(
                    "the run is not of the system and scenario of the performance run",
                    part.log,
                    key,
                    stated,
                    f"{expected}, as in {performance.log}",
                )
                break


@check(
    "LOADGEN-VERSIONS",
    source="wheels of mlcommons-loadgen, and LoadGen as built from the sources of the round",
    remedy="measure all runs of a result with one LoadGen of the round",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=measured,
)
def loadgen_versions(result: Result, part: Performance) -> Iterator[Fault]:
    """The runs of a result were made by one LoadGen, of a version that has the round's seeds."""
    if part.detail is not None and (known := _known(result.round)) and not _fits(part.loadgen_version, result.round):
        yield Fault("the LoadGen is not one of the round", part.log, "loadgen_version", part.loadgen_version, known)
    for other in result.logged:
        if other.loadgen_version and _number(other.loadgen_version) != _number(part.loadgen_version):
            yield Fault(
                "the runs of a result were made by different versions of LoadGen",
                part.log,
                "loadgen_version",
                part.loadgen_version,
                f"{other.loadgen_version}, as in {other.log}",
            )
            break


def _known(round_name: str) -> str:
    known = rules.if_known(rules.round_terms, round_name)
    return " or ".join((f"{known.loadgen.first} to {known.loadgen.last}", *known.builds)) if known else ""


def _fits(version: str, round_name: str) -> bool:
    known, number = rules.round_terms(round_name), _number(version)
    first, last = _parts(known.loadgen.first), _parts(known.loadgen.last)
    return number in known.builds or first <= _parts(number) <= last


def _number(version: str) -> str:
    return version.partition(" ")[0]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isascii() and part.isdigit())

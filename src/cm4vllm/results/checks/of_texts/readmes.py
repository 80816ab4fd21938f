"""The READMEs of results: required accuracy and command lines, against the logs and the rules."""

import re
import shlex
from collections.abc import Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.subjects import results, with_submission
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.submitted_names import shows_a_command

POLICY = "inference_policies/submission_rules.adoc, README of a result"
WRITE = "write the README from the log: value, unit and the commands that were run"
BOUND = re.compile(
    r"(?<![A-Z0-9_])`?([A-Z][A-Z0-9_]+)`?\s*:\s*`?(\d+(?:\.\d+)?)`?[^\n]{0,200}?>=\s*`?(\d+(?:\.\d+)?)`?([^\n]*)"
)
#: The line in which pages of public automation name the system, and that in which ours say what was measured.
_PLATFORM = re.compile(r"^Platform: (\S+)\s*$", re.MULTILINE)
_OF_RESULT = re.compile(
    r"^MLPerf Inference (v[\d.]+), (\w+) division, benchmark `([^`]+)`, (\w+) scenario", re.MULTILINE
)
#: The digests that a page of cm4vllm states, by their labels.
_DIGESTS = {
    "model": "SHA-256 of the model's files",
    "dataset": "SHA-256 of the dataset",
    "log": "SHA-256 of the scored log, before truncation",
}
_UNFILLED = re.compile(r"\b(TBD|TODO|TO BE (?:FILLED|ADDED|DONE)[\w ]*|FIXME|lorem ipsum)\b", re.IGNORECASE)
#: A page, a link or a folder of programs that a page names.
_ELSEWHERE = re.compile(r"README|\.(?:md|adoc|rst|sh|py)\b|https?://|\]\(|\b(?:code|src|documentation)/")
_FENCE = re.compile(r"(?<!`)`{3,}+[^`\n]*+\n(.*?)```", re.DOTALL)
#: Two numbers that are printed with six digits are equal up to this part.
_SAME = 2e-3


@check(
    "README-TARGET",
    source="tools/submission/submission_checker/constants.py, accuracy-target and accuracy-upper-limit",
    remedy=WRITE,
    stage=Stage.TREE,
    each=results,
)
def required(result: Result) -> Iterator[Fault]:
    """The required accuracy in a README is that of the benchmark's variant and round, with both bounds."""
    known = {target.metric.upper(): target for target in targets_of(result.round, result.benchmark, result.scenario)}
    for metric_name, _, text, rest in BOUND.findall(result.readme):
        target = known.get(metric_name)
        if target is None or target.lower is None:
            continue
        if not close(float(text), target.lower, 1e-5):
            other = _variant_with(result, metric_name, float(text))
            yield Fault(
                f"the required {metric_name} is {f'that of {other}' if other else 'not the rules own'}",
                result.file("readme"),
                metric_name,
                text,
                f"{target.lower:g} of {result.benchmark}",
                severity=Severity.ERROR if other else Severity.WARNING,
            )
        elif target.upper is not None and "<=" not in rest:
            yield Fault(
                f"the upper bound of {metric_name} is left out",
                result.file("readme"),
                metric_name,
                f">= {text}",
                f"<= {target.upper:g}, too",
                severity=Severity.WARNING,
            )


def targets_of(round_name: str, benchmark: str, scenario: str) -> tuple[rules.AccuracyTarget, ...]:
    """Return the accuracy that a benchmark asks for; nothing where the rules do not know it."""
    return rules.if_known(rules.accuracy_targets, round_name, benchmark, rules.Scenario(scenario)) or ()


def _variant_with(result: Result, metric_name: str, value: float) -> str:
    """Return another benchmark of the round that has this target."""
    for name in rules.benchmark_names(result.round):
        for target in targets_of(result.round, name, result.scenario):
            if target.metric.upper() == metric_name and target.lower and close(value, target.lower, 1e-5):
                return name
    return ""


@check(
    "README-COMMAND",
    source=POLICY,
    remedy=WRITE,
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=with_submission(results),
)
def commands(submission: Submission, result: Result) -> Iterator[Fault]:
    """A command line in a README can be parsed, and does not contradict what was measured."""
    for text in _commands(result.readme):
        try:
            words = shlex.split(text)
        except ValueError as error:
            yield Fault(
                "a command line cannot be parsed",
                result.file("readme"),
                text[:60],
                str(error),
                "a line that a shell takes",
            )
            continue
        given = {
            word[2:].partition("=")[0]: word.partition("=")[2]
            for word in words
            if word.startswith("--") and "=" in word
        }
        yield from _contradictions(submission, result, given)


def _commands(readme: str) -> list[str]:
    """Return the `cm` and `mlcr` commands that start a benchmark, continued lines joined."""
    joined = (re.sub(r"\\\s*\n\s*", " ", block) for block in _FENCE.findall(readme))
    return [
        line
        for line in (line.strip() for block in joined for line in block.splitlines())
        if re.match(r"(cm|mlc) run script\b|cmr\b|mlcr\b", line) and re.search(r"run-mlperf|app-mlperf", line)
    ]


def _contradictions(submission: Submission, result: Result, given: dict[str, str]) -> Iterator[Fault]:
    yield from (
        Fault(
            f"the command's --{flag} contradicts the result",
            result.file("readme"),
            f"--{flag}",
            given[flag],
            known,
            severity=severity,
        )
        for flag, known, severity in (
            ("division", submission.division, Severity.ERROR),
            ("scenario", result.scenario, None),
            ("model", result.benchmark, None),
        )
        if given.get(flag) and given[flag].lower() != known.lower()
    )
    yield from _against_system(submission, result, given)
    if given.get("execution_mode") == "test":
        yield Fault("the command starts a short run", result.file("readme"), "--execution_mode", "test", "valid")
    qps = given.get(f"{result.scenario.lower()}_target_qps", "")
    run = result.performance
    if run and re.fullmatch(r"\d+(?:\.\d+)?", qps) and run.target_qps and not close(float(qps), run.target_qps, 1e-3):
        yield Fault(
            "the command asks for another target QPS than the log",
            result.file("readme"),
            f"--{result.scenario.lower()}_target_qps",
            qps,
            f"{run.target_qps:g}, as in {run.log}",
        )


def _against_system(submission: Submission, result: Result, given: dict[str, str]) -> Iterator[Fault]:
    """Yield the flags of a command that contradict the description of the result's system."""
    system = submission.system(result.system)
    stated = system.description if system else {}
    if given.get("device") == "cpu" and str(stated.get("accelerators_per_node", "0")) not in ("0", "", "N/A"):
        name = stated.get("accelerator_model_name", "accelerators")
        yield Fault(
            "the command's --device contradicts the system description",
            result.file("readme"),
            "--device",
            "cpu",
            f"{stated.get('accelerators_per_node')} {name}",
        )
    kinds = str(stated.get("system_type", ""))
    if given.get("category") and kinds and given["category"] not in kinds.split(","):
        yield Fault(
            "the command's --category contradicts the system description",
            result.file("readme"),
            "--category",
            given["category"],
            kinds,
        )


@check(
    "README-SYSTEM",
    source=POLICY,
    remedy="publish each result with its own README",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=results,
)
def of_the_result(result: Result) -> Iterator[Fault]:
    """A README is that of the result beside it: of its system, benchmark, scenario, division and digests."""
    if (match := _PLATFORM.search(result.readme)) and match[1] != result.system:
        yield Fault("the README is of another system", result.file("readme"), "Platform", match[1], result.system)
    wanted = (result.round, result.division, result.benchmark, result.scenario)
    if result.round and (match := _OF_RESULT.search(result.readme)) and match.groups() != wanted:
        yield Fault("the README is of another result", result.file("readme"), "", match[0], ", ".join(wanted))
    yield from _digests(result)


def _digests(result: Result) -> Iterator[Fault]:
    """Compare the digests that a page of cm4vllm states with those in the files beside it."""
    scored = result.accuracy.hash if result.accuracy else ""
    stated = {key: str(result.measurements.get(f"{key}_sha256", "")) for key in ("model", "dataset")} | {"log": scored}
    for key, label in _DIGESTS.items():
        match = re.search(rf"{label}\W+([0-9a-f]{{64}})\b", result.readme)
        if match and stated[key] and match[1] != stated[key]:
            yield Fault(
                "the README states another digest than the files beside it",
                result.file("readme"),
                label,
                match[1],
                stated[key],
            )


@check(
    "README-REPEATABLE",
    source=POLICY,
    remedy="name the server's command and version, pin every source to a commit",
    severity=Severity.NOTE,
    stage=Stage.TREE,
    each=results,
)
def repeatable(result: Result) -> Iterator[Fault]:
    """The instructions of a README make the same run: server and its version, a fixed source, nothing that destroys."""
    lines = _commands(result.readme)
    if any("--api_server" in line for line in lines) and not re.search(
        r"vllm serve|api_server\b(?!=)|-m vllm", result.readme
    ):
        yield Fault(
            "a server is asked, and no command starts it", result.file("readme"), "--api_server", "", "its command"
        )
    yield from (
        Fault("a source is taken from a branch, which moves on", result.file("readme"), "", pinned, "a commit")
        for line in lines
        for pinned in re.findall(r"_branch\.[\w./-]+", line)
    )
    if match := re.search(r"CPU version:\s*(x86_64|aarch64|arm64)\b", result.readme):
        yield Fault("the processor is not named", result.file("readme"), "CPU version", match[1], "its name")
    if re.search(r"^[^\S\n]*cm rm cache -f\s*$", result.readme, re.MULTILINE):
        yield Fault(
            "a command removes everything that CM has cached", result.file("readme"), "", "cm rm cache -f", "nothing"
        )


@check("README-UNFILLED", source=POLICY, remedy=WRITE, severity=Severity.WARNING, stage=Stage.TREE, each=results)
def unfilled(result: Result) -> Iterator[Fault]:
    """A page is written, not left as a template."""
    if match := _UNFILLED.search(result.readme):
        yield Fault("a README is not written yet", result.file("readme"), "", match[0], "a text")


@check("README-NO-COMMAND", source=POLICY, remedy=WRITE, severity=Severity.WARNING, stage=Stage.TREE, each=results)
def without_command(result: Result) -> Iterator[Fault]:
    """A page shows the commands of its result, or names the page that does."""
    page = result.readme
    if not page.strip() or _UNFILLED.search(page) or shows_a_command(page) or _ELSEWHERE.search(page):
        return
    yield Fault(
        "a README shows no command and names no other page", result.file("readme"), "", page.strip()[:60], "a command"
    )


def close(value: float, other: float | None, part: float = _SAME) -> bool:
    """Return True if two numbers are equal, as pages print them."""
    return other is not None and abs(value - other) <= part * max(abs(value), abs(other))

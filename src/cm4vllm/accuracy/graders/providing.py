"""A grader made ready: its official files at their commits, its packages in an environment of its own, and a proof."""

import hashlib
from pathlib import Path
from typing import Annotated

from cm4vllm.accuracy.graders.catalogue import (
    GRADER_FILE,
    PROBLEMS_FILE,
    Grader,
    GraderRecord,
    Origin,
    grader,
    grader_lacks,
)
from cm4vllm.accuracy.graders.judging import require_known
from cm4vllm.accuracy.graders.problems import ProblemIndex, index_problems
from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError
from cm4vllm.common.files import require_space, typed_path
from cm4vllm.common.git.git_source import extract, fetch_checkout, git_directory
from cm4vllm.common.programs.environments import checked, make_environment, pip
from cm4vllm.common.progress import step
from cm4vllm.common.records import write_record
from cm4vllm.common.settings import Key, Settings

_SPACE_BYTES = 2**30


class GraderInputs(Settings, frozen=True, kw_only=True):
    """The grader, a folder with git directories of its sources, and that of its tests; empty for none."""

    name: Annotated[str, Key("CM_MLPERF_GRADER_NAME")]
    source_dir: input_types.GraderSource = ""
    problems_dir: input_types.ProblemsDir = ""

    def provide(self, folder: Path, recipe: Path) -> GraderRecord:
        """Make the grader ready in `folder`. Raises what `provide` raises."""
        paths = (typed_path(text).absolute() if text else None for text in (self.source_dir, self.problems_dir))
        return provide(self.name, folder, recipe, *paths)


def provide(
    name: str, folder: Path, recipe: Path, at_hand: Path | None = None, problems: Path | None = None
) -> GraderRecord:
    """Make a grader ready in `folder` and write its record there. `recipe` holds the files of requirements.

    `at_hand` holds git directories named as the repositories are; what it lacks is fetched from its home. `problems` is
    the folder with the files of tests. Raises InstallError, also where answers with known verdicts are judged
    otherwise; SourceUnavailable, DiskFull; UsageError and DatasetError for files of tests that are missing or are none.
    """
    known = grader(name)
    if why := grader_lacks(name, str(problems or "")):
        raise InstallError(f"the grader {name} cannot run on this machine", cause="; ".join(why))
    require_space(folder, _SPACE_BYTES, f"the grader {name}")
    index = None
    if known.problems and problems:
        with step(f"tests of {known.name}"):
            index = index_problems(problems, known.problems)
            write_record(folder / PROBLEMS_FILE, index)
    official = folder / "official"
    for origin in known.origins:
        _official(origin, official / origin.name, folder, at_hand)
    requirements = recipe / known.requirements
    with step(f"environment for the grader {name}"):
        python = make_environment(folder / "venv")
        checked(
            pip(python, ["--no-deps", "-r", str(requirements)], folder / "pip.log"),
            f"what {known.script} needs cannot be installed",
        )
    record = _record(known, official, python, requirements, folder / PROBLEMS_FILE, index)
    with step(f"answers with known verdicts for the grader {name}"):
        require_known(record)
    write_record(folder / GRADER_FILE, record)
    return record


def _official(origin: Origin, target: Path, folder: Path, at_hand: Path | None) -> None:
    """Put the sources of an origin at its commit into `target`: those at hand, else fetched ones."""
    remedy = f"give a folder with a git directory of it, {origin.name}: --grader_src=FOLDER\n({origin.url})"
    git = git_directory(at_hand / origin.name) if at_hand else None
    if git is None:
        patterns = [f"/{path}" for path in origin.paths]
        title = f"the grader's sources {origin.name}"
        checkout = fetch_checkout(
            folder / "fetched" / origin.name, origin.url, origin.commit, patterns, title=title, remedy=remedy
        )
        git = checkout / ".git"
    target.mkdir(parents=True, exist_ok=True)
    extract(git, origin.commit, origin.paths, target, remedy=remedy)


def _record(
    grader: Grader, official: Path, python: Path, requirements: Path, problems: Path, index: ProblemIndex | None
) -> GraderRecord:
    """Return the record of a grader that was made ready: commits, digests and the paths of its parts."""
    commits = {origin.name: origin.commit for origin in grader.origins}
    if index:
        commits["code_generation_lite"] = hashlib.sha256(" ".join(index.files.values()).encode()).hexdigest()
    return GraderRecord(
        name=grader.name,
        script=grader.script,
        official=str(official),
        python=str(python),
        commits=commits,
        packages=f"sha256:{hashlib.sha256(requirements.read_bytes()).hexdigest()}",
        problems=str(problems) if index else "",
    )

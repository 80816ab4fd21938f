"""A grader made ready, and its verdicts on answers: each is given to the official script inside a sandbox.

Made ready are its official files at their commits, its packages in an environment of its own, and a proof: answers
whose verdict is known. A program runs in a sandbox of its own: other namespaces of processes, files and users. It
shares one socket with the process that judges it, for inputs and results. The pipe of the verdicts, and the token that
each has to repeat, are known to the judging process alone.
"""

import contextlib
import hashlib
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from cm4vllm.accuracy.graders.catalogue import (
    GRADER_FILE,
    INSIDE,
    PROBLEMS_FILE,
    Grader,
    GraderRecord,
    Origin,
    Verdict,
    grader,
    grader_lacks,
)
from cm4vllm.accuracy.graders.problems import ProblemIndex, index_problems, problem
from cm4vllm.accuracy.graders.sandbox import Held, Sandbox
from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError
from cm4vllm.common.files import require_space, typed_path
from cm4vllm.common.git.git_source import extract, fetch_checkout, git_directory
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.programs.environments import make_environment, pip, require_success
from cm4vllm.common.progress import say, step
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import Key, Settings

#: Seconds that the script itself may take until it reads the first answer.
_START_S = 120.0
_CHUNK = 1 << 16
#: Tasks that share a judging process at most: some take long, so that the workers' shares are not equal.
_PART = 32
#: Bytes of a verdict at most: what a program prints without an end is not kept.
_LONGEST = 1 << 20


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A verdict as the judging process writes it."""

    right: bool | None
    token: str
    why: str = ""


#: Made before threads read by it: two that are the first to read a kind of record end the process (SIGSEGV in msgspec).
_LINES = msgspec.json.Decoder(_Line)


def judge(record: GraderRecord, tasks: Sequence[Mapping[str, str]], workers: int | None = None) -> list[Verdict]:
    """Return a verdict on each task, in their order. Raises InstallError where the script itself fails."""
    known = grader(record.name)
    workers = workers or usable_processors()
    size = min(_PART, -(-len(tasks) // workers) or 1)
    index = _index(record, tasks)
    parts = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        of_parts = pool.map(lambda part: _judge_together(record, known, part, index), parts)
        judged = [verdict for verdicts in of_parts for verdict in verdicts]
    if held := sum(verdict.held for verdict in judged):
        say(f"{record.name}: the sandbox held {held} of {len(judged)} answers, which count as wrong")
    return judged


def require_known(record: GraderRecord) -> None:
    """Raise InstallError unless the script gives the known verdicts here: a broken tool makes no answer wrong."""
    known = grader(record.name).known
    for example, verdict in zip(known, judge(record, [example.task for example in known]), strict=True):
        if verdict.right is not example.right:
            language = example.task.get("lang", record.name)
            raise InstallError(
                f"the grader {record.name} does not work on this machine",
                cause=f"an answer in {language} that is {'right' if example.right else 'wrong'} was judged otherwise: "
                f"{verdict.why}",
                remedy=f"check what it uses for {language}: its answers would all be counted as wrong",
            )


def _index(record: GraderRecord, tasks: Sequence[Mapping[str, str]]) -> ProblemIndex | None:
    """Return the place of the tasks' tests; None where the tasks bring them."""
    if not record.problems:
        return None
    index = read_record(Path(record.problems), ProblemIndex)
    if unknown := sum("problem" not in task and task["question_id"] not in index.places for task in tasks):
        files = ", ".join(index.files)
        say(f"{record.name}: {unknown} of {len(tasks)} questions are not in {files}, and count as wrong")
    return index


def _judge_together(
    record: GraderRecord, grader: Grader, tasks: Sequence[Mapping[str, str]], index: ProblemIndex | None
) -> list[Verdict]:
    """Return the verdicts on tasks that share a judging process; after one that was held, the others get a new one."""
    verdicts: list[Verdict] = []
    while len(verdicts) < len(tasks):
        with _judging_process(record, grader, grader.inside) as judging:
            while len(verdicts) < len(tasks):
                task = tasks[len(verdicts)]
                if index and "problem" not in task:  # megabytes of tests: read when they are used
                    task = {**task, "problem": problem(index, task["question_id"])}
                verdict = _judge(record, grader, judging, task)
                verdicts.append(verdict)
                if judging.held.why or verdict.held:
                    break
    return verdicts


@dataclass(frozen=True)
class _Process:
    """A process in a sandbox: this end of the socket that is its standard input, and its standard output."""

    socket: socket.socket
    output: int
    held: Held


@contextlib.contextmanager
def _judging_process(record: GraderRecord, grader: Grader, script: Path) -> Iterator[_Process]:
    """Yield a process that runs the official script in a sandbox, with a socket to it; end it with the block."""
    environment = Path(record.python).parent.parent
    folders = {INSIDE: "/inside", script: "/script.py", Path(record.official): "/official"}
    sandbox = Sandbox(limits=grader.limits, read_only={**folders, environment: str(environment)})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [record.python, "-I", "/script.py", grader.script]
        with sandbox.start(argv, stdin=theirs.fileno()) as (process, held):
            theirs.close()
            if process.stdout is None:
                raise ValueError("the sandbox was started without a pipe")
            yield _Process(ours, process.stdout.fileno(), held)


def _judge(record: GraderRecord, grader: Grader, judging: _Process, task: Mapping[str, str]) -> Verdict:
    """Return the verdict on one task; a program that is its answer runs in a sandbox of its own."""
    if grader.program is None:
        return _verdict(judging, task, [], grader.limits.seconds + _START_S)
    with _judging_process(record, grader, grader.program) as program:
        verdict = _verdict(judging, task, [program.socket], grader.limits.seconds + _START_S)
        why = program.held.why
    return Verdict(right=False, held=True, why=why) if why else verdict


def _verdict(judging: _Process, task: Mapping[str, str], sockets: Sequence[socket.socket], seconds: float) -> Verdict:
    """Hand over a task with the sockets of its program, and return the verdict that repeats the task's token."""
    token = secrets.token_hex(16)
    until = time.monotonic() + seconds
    with contextlib.suppress(OSError):  # it has ended: what it left to read says how
        judging.socket.settimeout(seconds)
        data = json.dumps({**task, "token": token}).encode() + b"\n"
        sent = socket.send_fds(judging.socket, [data], [end.fileno() for end in sockets])
        judging.socket.sendall(data[sent:])
    for end in sockets:
        end.close()
    if (line := _line(judging.output, until)) is None:
        return Verdict(right=False, held=True, why=judging.held.why or f"no verdict within {seconds:.0f} s")
    with contextlib.suppress(ValueError, RecursionError):
        made = _LINES.decode(line)
        if secrets.compare_digest(made.token, token):
            return Verdict(right=made.right, why=made.why)
    ended = "the script ended without a verdict"
    if len(line) > _LONGEST:
        ended = f"no verdict in {_LONGEST:,} bytes of output"
    return Verdict(right=False, held=True, why=judging.held.why or ended)


def _line(fd: int, until: float) -> bytes | None:
    """Read up to the end of a line, of the stream, or of what a verdict may take; None when the time is over."""
    read = bytearray()
    while not read.endswith(b"\n") and len(read) <= _LONGEST:
        ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        if not (part := os.read(fd, _CHUNK)):
            break
        read += part
    return bytes(read)


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
    require_space(folder, 2**30, f"the grader {name}")
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
        require_success(
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

"""Verdicts on answers: each handed to the official script inside a sandbox, one line of JSON to and from it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from cm4vllm.accuracy.graders.catalogue import Grader, grader
from cm4vllm.accuracy.graders.problems import ProblemIndex, problem
from cm4vllm.accuracy.graders.records import GraderRecord, Verdict
from cm4vllm.accuracy.graders.sandbox import Held, Sandbox
from cm4vllm.common.errors import InstallError
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record

__all__ = ["judge", "require_known"]

#: Seconds that the script itself may take until it reads the first answer.
_START_S = 120.0
_CHUNK = 1 << 16
#: Bytes of a verdict at most: what a program prints without an end is not kept.
_LONGEST = 1 << 20


def judge(record: GraderRecord, tasks: Sequence[Mapping[str, str]], workers: int | None = None) -> list[Verdict]:
    """Return a verdict on each task, in their order. Raises InstallError where the script itself fails."""
    one = grader(record.name)
    workers = workers or len(os.sched_getaffinity(0))
    size = 1 if one.alone else -(-len(tasks) // workers) or 1
    index = _index(record, tasks)
    parts = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        of_parts = pool.map(lambda part: _judged(record, one, part, index), parts)
        found = [verdict for verdicts in of_parts for verdict in verdicts]
    if held := sum(verdict.held for verdict in found):
        say(f"{record.name}: the sandbox held {held} of {len(found)} answers, which count as wrong")
    return found


def require_known(record: GraderRecord) -> None:
    """Raise InstallError unless the script gives the known verdicts here: a broken tool makes no answer wrong."""
    known = grader(record.name).known
    for one, verdict in zip(known, judge(record, [one.task for one in known]), strict=True):
        if verdict.right is not one.right:
            language = one.task.get("lang", record.name)
            raise InstallError(
                f"the grader {record.name} does not work on this machine",
                cause=f"an answer in {language} that is {'right' if one.right else 'wrong'} was judged otherwise: "
                f"{verdict.why}",
                remedy=f"check what it uses for {language}: its answers would all be counted as wrong",
            )


def _index(record: GraderRecord, tasks: Sequence[Mapping[str, str]]) -> ProblemIndex | None:
    """Return where the tests of the tasks lie, None where the tasks bring them."""
    if not record.problems:
        return None
    index = read_record(Path(record.problems), ProblemIndex)
    if unknown := sum("problem" not in task and task["question_id"] not in index.places for task in tasks):
        files = ", ".join(index.files)
        say(f"{record.name}: {unknown} of {len(tasks)} questions are not in {files}, and count as wrong")
    return index


def _judged(
    record: GraderRecord, one: Grader, tasks: Sequence[Mapping[str, str]], index: ProblemIndex | None
) -> list[Verdict]:
    """Return the verdicts on tasks that share a sandbox; after one that was held, the others get a new one."""
    found: list[Verdict] = []
    while len(found) < len(tasks):
        with _sandbox(record, one).started([record.python, "-I", "/inside.py", one.script]) as (process, held):
            while len(found) < len(tasks):
                task = tasks[len(found)]
                if index and "problem" not in task:  # megabytes of tests: read when they are used
                    task = {**task, "problem": problem(index, task["question_id"])}
                verdict = _answered(process, held, task, one.limits.seconds + _START_S)
                found.append(verdict)
                if verdict.held:
                    break
    return found


def _sandbox(record: GraderRecord, one: Grader) -> Sandbox:
    environment = Path(record.python).parent.parent
    return Sandbox(
        limits=one.limits,
        read_only={one.inside: "/inside.py", Path(record.official): "/official", environment: str(environment)},
    )


def _answered(process: subprocess.Popen[bytes], held: Held, task: Mapping[str, str], seconds: float) -> Verdict:
    asks, answers = process.stdin, process.stdout
    if asks is None or answers is None:
        raise ValueError("the sandbox was started without pipes")
    with contextlib.suppress(OSError):  # it has ended: what it left to read says how
        asks.write(json.dumps(dict(task)).encode() + b"\n")
        asks.flush()
    line = _line(answers.fileno(), time.monotonic() + seconds)
    if line is None:
        return Verdict(right=False, held=True, why=held.why or f"no verdict within {seconds:.0f} s")
    try:
        return msgspec.json.decode(line, type=Verdict)
    except (msgspec.DecodeError, ValueError):
        ended = "the script ended without a verdict"
        if len(line) > _LONGEST:
            ended = f"no verdict in {_LONGEST:,} bytes of output"
        return Verdict(right=False, held=True, why=held.why or ended)


def _line(fd: int, until: float) -> bytes | None:
    """Read up to the end of a line, of the stream, or of what a verdict may take; None when the time is over."""
    read = bytearray()
    while not read.endswith(b"\n") and len(read) <= _LONGEST:
        ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(fd, _CHUNK)
        if not part:
            break
        read += part
    return bytes(read)

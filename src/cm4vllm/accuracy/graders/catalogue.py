"""The graders: official scripts with their commits, what they need, and answers whose verdict is known; and the record
of one that is ready to be used, grader.json.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cm4vllm.accuracy.graders.problems import HOW_TO_FETCH
from cm4vllm.accuracy.graders.sandbox import MIB, NODE_MODULES, Limits, sandbox_lacks
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.records import Record

#: The folder of the programs that run inside the sandboxes.
INSIDE = Path(__file__).with_name("inside")
_INFERENCE = "https://github.com/mlcommons/inference"


@dataclass(frozen=True)
class Origin:
    """Files of a repository at one commit: those below `paths`, visible to the grader under /official/NAME."""

    name: str
    url: str
    commit: str
    paths: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Known:
    """A task whose verdict is known, so that a tool that is missing or broken is not counted as a wrong answer."""

    task: Mapping[str, str]
    right: bool


@dataclass(frozen=True)
class Grader:
    """An official script. `inside` hands it tasks; `requirements` are its packages, a file of the recipe.

    `tools` are the programs that it starts, by what it needs them for, `libraries` what programs under test load from
    the folders of NODE_MODULES. `program` runs an answer that is a program: each has a process and a sandbox of its
    own, apart from the one that judges, so that none can change a verdict. `problems` are the files of tests that the
    user gives.
    """

    name: str
    script: str
    inside: Path
    requirements: str
    origins: tuple[Origin, ...]
    known: tuple[Known, ...]
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    program: Path | None = None
    problems: tuple[str, ...] = ()


#: A program of each language that evaluate_mbxp.py counts, right with 2 and wrong with 3, and its test.
_PROGRAMS = {
    "python": ("def two():\n    return {}\n", "\ndef check(candidate):\n    assert candidate() == 2\n"),
    "javascript": (
        "function two() {{ return {}; }}\n",
        "const _ = require('lodash')\nif (!_.isEqual(two(), 2)) throw 'wrong';\n",
    ),
    # tsc finds no types of `assert` and writes the program all the same: mxeval takes only that for compiled.
    "typescript": (
        "const two = (): number => {{ return {}; }};\n",
        "import * as assert from 'assert'\nassert.deepEqual(two(), 2);\n",
    ),
    "php": ("<?php function two() {{ return {}; }}\n", "if (two() !== 2) { throw new Exception('wrong'); }\n"),
    "ruby": ("def two\n  {}\nend\n", "raise 'wrong' unless two == 2\n"),
    "cpp": ("#include <bits/stdc++.h>\nint two() {{ return {}; }}\n", "int main() { return two() == 2 ? 0 : 1; }\n"),
}


def _known_math(response: str, right: bool) -> Known:
    return Known({"response": response, "reference": "\\frac{1}{2}"}, right)


#: A problem of this package in LiveCodeBench's format: its program reads a number, or is a method of a class.
_DOUBLE = {
    "question_title": "Double",
    "question_content": "",
    "platform": "atcoder",
    "question_id": "double",
    "contest_id": "own",
    "contest_date": "2026-01-01T00:00:00",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "4", "output": "8", "testtype": "stdin"}]),
    "metadata": "{}",
}
_DOUBLE_METHOD = {
    **_DOUBLE,
    "platform": "leetcode",
    "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "4", "output": "8", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "double"}),
}


def _known_doubles() -> tuple[Known, ...]:
    """Return right and wrong programs of both kinds that LiveCodeBench has; `n + 1` passes one test of two."""
    forms = (
        (_DOUBLE, "n = int(input())\nprint({})"),
        (_DOUBLE_METHOD, "class Solution:\n    def double(self, n: int) -> int:\n        return {}"),
    )
    return tuple(
        Known(
            {
                "question_id": "double",
                "problem": json.dumps(row),
                "response": f"This doubles it.\n```python\n{form.format(result)}\n```",
            },
            right=result == "2 * n",
        )
        for row, form in forms
        for result in ("2 * n", "n + 1")
    )


def _livecodebench(name: str, script: str, releases: int, why: str) -> Grader:
    """Return the grader of a reference's eval_accuracy.py, whose data set has the files of so many releases."""
    return Grader(
        name=name,
        script=script,
        inside=INSIDE / "livecodebench.py",
        requirements="requirements-reasoning.txt",
        origins=(
            Origin(
                "inference",
                _INFERENCE,
                "b66003e10e2db4b8c36a448b0545ec90fcc6e9e9",
                (script,),
                "the newest of the rounds",
            ),
            Origin(
                "LiveCodeBench",
                "https://github.com/LiveCodeBench/LiveCodeBench",
                "b1e7cab44d610bbc2e10d36d270cd0c89c600492",
                ("lcb_runner",),
                why,
            ),
        ),
        known=_known_doubles(),
        # The script waits 1,200 s for the verdicts on all answers, and 60 s for each test of one.
        limits=Limits(seconds=1200, memory_bytes=4096 * MIB),
        program=INSIDE / "livecodebench_program.py",
        problems=("test.jsonl", *(f"test{number}.jsonl" for number in range(2, releases + 1))),
    )


GRADERS = {
    known.name: known
    for known in (
        Grader(
            name="mbxp",
            script="language/mixtral-8x7b/evaluate_mbxp.py",
            inside=INSIDE / "mbxp.py",
            requirements="requirements-mbxp.txt",
            origins=(
                Origin(
                    "inference",
                    _INFERENCE,
                    "b66003e10e2db4b8c36a448b0545ec90fcc6e9e9",
                    ("language/mixtral-8x7b/evaluate_mbxp.py",),
                    "the script that all rounds since v4.1 have in substance",
                ),
                Origin(
                    "mxeval",
                    "https://github.com/amazon-science/mxeval",
                    "e09974f990eeaf0c0e8f2b5eaff4be66effb2c86",
                    ("mxeval",),
                    "Dockerfile.eval names no commit: the newest, of 2023-11-10",
                ),
            ),
            known=tuple(
                Known(
                    {
                        "lang": lang,
                        "prompt": "",
                        "entry_point": "two",
                        "response": body.format(number),
                        "test_code": test,
                    },
                    right=number == 2,
                )
                for lang, (body, test) in _PROGRAMS.items()
                for number in (2, 3)
            ),
            tools={
                "C++": ("g++",),
                "JavaScript": ("node",),
                "PHP": ("php",),
                "Ruby": ("ruby",),
                "TypeScript": ("tsc", "node"),
            },
            libraries={"lodash": "the tests in JavaScript"},
            limits=Limits(seconds=150, processes=128),
            program=INSIDE / "mbxp_program.py",
        ),
        Grader(
            name="math",
            script="language/deepseek-r1/eval_accuracy.py",
            inside=INSIDE / "mathematics.py",
            requirements="requirements-reasoning.txt",
            origins=(
                Origin(
                    "inference",
                    _INFERENCE,
                    "b66003e10e2db4b8c36a448b0545ec90fcc6e9e9",
                    ("language/deepseek-r1/eval_accuracy.py",),
                    "the newest of the rounds",
                ),
                Origin(
                    "prm800k",
                    "https://github.com/openai/prm800k",
                    "7ecc794703b2877f63226f2477a49b34f9b25163",
                    ("prm800k/grading",),
                    "the submodule's commit in mlcommons/inference",
                ),
            ),
            known=(
                _known_math(r"so \boxed{\dfrac{1}{2}}", right=True),
                _known_math(r"so \boxed{\frac{1}{3}}", right=False),
            ),
        ),
        _livecodebench(
            "livecodebench",
            "language/deepseek-r1/eval_accuracy.py",
            1,
            "the submodule's commit in mlcommons/inference; the script asks for release_v1",
        ),
        _livecodebench(
            "livecodebench_v6",
            "language/gpt-oss-120b/eval_accuracy.py",
            6,
            "that of deepseek-r1: .gitmodules gives no address for gpt-oss-120b's submodule, and its commit d1e5c665 "
            "is not in this repository; the script asks for release_v6",
        ),
    )
}


def grader(name: str) -> Grader:
    """Return the grader called `name`. Raises UsageError."""
    if name not in GRADERS:
        raise UsageError(f"unknown grader {name!r}", remedy=nearest(name, list(GRADERS)))
    return GRADERS[name]


def grader_lacks(name: str, problems: str = "", *, here: bool = True) -> tuple[str, ...]:
    """Return all reasons why a grader cannot run on this machine, none where it can: the plan and the run ask here.

    `problems` is the folder with the files of tests, where the user gives one. Without `here` it is to run on another
    machine, of which nothing is known.
    """
    known = grader(name)
    reasons = [sandbox_lacks()] if here else []
    if known.problems and not problems:
        reasons.append(
            f"LiveCodeBench's tests are not given: fetch them ({HOW_TO_FETCH}; {len(known.problems)} of its files are "
            "read) and give --livecodebench_path=FOLDER"
        )
    missing = {
        program: language
        for language, programs in known.tools.items()
        for program in programs
        if shutil.which(program) is None
    } | {
        library: use
        for library, use in known.libraries.items()
        if not any((Path(folder) / library).is_dir() for folder in NODE_MODULES)
    }
    if missing and here:
        listed = ", ".join(f"{program} (for {use})" for program, use in missing.items())
        reasons.append(f"not found on this machine: {listed}; install what is missing")
    return tuple(filter(None, reasons))


#: The names of the record's file, and of the index of tests beside it.
GRADER_FILE, PROBLEMS_FILE = "grader.json", "problems.json"


class GraderRecord(Record, frozen=True, kw_only=True):
    """A grader: its official files lie in `official`, its Python is `python`, `commits` say of which repositories;
    of a data set that the user gives it has a digest of the files.

    `problems` is the file of a ProblemIndex, empty for a grader whose tasks bring their tests.
    """

    name: str
    script: str
    official: str
    python: str
    commits: dict[str, str]
    packages: str
    problems: str = ""


class Verdict(Record, frozen=True, kw_only=True):
    """The grade of an answer: `right` is None for an answer that the official script leaves out of its count.

    `held` says that a limit of the sandbox ended it; it counts as wrong.
    """

    right: bool | None
    why: str = ""
    held: bool = False

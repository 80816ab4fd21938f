"""The graders: official scripts with their commits, what they need, and answers whose verdict is known."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cm4vllm.accuracy.graders.sandbox import NODE_MODULES, Limits, sandbox_lacks
from cm4vllm.common.errors import UsageError, nearest

__all__ = ["GRADERS", "Grader", "Known", "Origin", "grader", "grader_lacks"]

_INSIDE = Path(__file__).with_name("inside")
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
    the folders of NODE_MODULES. With `alone` each answer has a sandbox of its
    own, so that none can change the verdict on another.
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
    alone: bool = False


def _program(lang: str, body: str, test: str) -> dict[str, str]:
    return {"lang": lang, "prompt": "", "entry_point": "two", "response": body, "test_code": test}


def _known_programs() -> tuple[Known, ...]:
    """Return a right and a wrong program of each language that evaluate_mbxp.py counts."""
    forms = {
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
        "cpp": (
            "#include <bits/stdc++.h>\nint two() {{ return {}; }}\n",
            "int main() { return two() == 2 ? 0 : 1; }\n",
        ),
    }
    return tuple(
        Known(_program(lang, body.format(number), test), right=number == 2)
        for lang, (body, test) in forms.items()
        for number in (2, 3)
    )


def _math(response: str, right: bool) -> Known:
    return Known({"response": response, "reference": "\\frac{1}{2}"}, right)


GRADERS = {
    one.name: one
    for one in (
        Grader(
            name="mbxp",
            script="language/mixtral-8x7b/evaluate_mbxp.py",
            inside=_INSIDE / "mbxp.py",
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
            known=_known_programs(),
            tools={
                "C++": ("g++",),
                "JavaScript": ("node",),
                "PHP": ("php",),
                "Ruby": ("ruby",),
                "TypeScript": ("tsc", "node"),
            },
            libraries={"lodash": "the tests in JavaScript"},
            limits=Limits(seconds=150, processes=128),
            alone=True,
        ),
        Grader(
            name="math",
            script="language/deepseek-r1/eval_accuracy.py",
            inside=_INSIDE / "mathematics.py",
            requirements="requirements-math.txt",
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
            known=(_math(r"so \boxed{\dfrac{1}{2}}", right=True), _math(r"so \boxed{\frac{1}{3}}", right=False)),
        ),
    )
}


def grader(name: str) -> Grader:
    """Return the grader called `name`. Raises UsageError."""
    if name not in GRADERS:
        raise UsageError(f"unknown grader {name!r}", remedy=nearest(name, list(GRADERS)))
    return GRADERS[name]


def grader_lacks(name: str) -> str:
    """Return why a grader cannot run on this machine, empty where it can: the plan and the run ask here."""
    if why := sandbox_lacks():
        return why
    one = grader(name)
    missing = {
        program: language
        for language, programs in one.tools.items()
        for program in programs
        if shutil.which(program) is None
    }
    missing |= {
        library: use
        for library, use in one.libraries.items()
        if not any((Path(folder) / library).is_dir() for folder in NODE_MODULES)
    }
    if missing:
        listed = ", ".join(f"{what} (for {use})" for what, use in missing.items())
        return f"not found on this machine: {listed}; install what is missing"
    return ""

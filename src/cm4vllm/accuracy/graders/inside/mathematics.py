"""Answers of MATH-500, judged as eval_accuracy.py of language/deepseek-r1 does, with prm800k's grader beside it.

That grader hands answers to sympy, which evaluates them as Python. An expression with a string, an attribute or a name
with two underscores is no mathematics, and is not evaluated: it equals nothing that it is not spelled like. The package
`transformers`, with which the script reads tokens, has a stand-in.
"""

import importlib
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, "/inside")
exchange = importlib.import_module("exchange")

#: Strings, also their escapes, attributes, and statements inside an expression.
_NO_MATHEMATICS = re.compile(r"""['"`\\@:;]|__|(?<!\d)\.\s*[^\W\d]|lambda""")


class Evaluation:
    """sympy's evaluation of an expression, for those that are mathematics."""

    def __init__(self, official: Any) -> None:
        self._official = official

    def __call__(self, expression: str) -> Any:
        if _NO_MATHEMATICS.search(expression):
            raise ValueError("not a mathematical expression")
        return self._official(expression)


if __name__ == "__main__":
    script = Path("/tmp/official/eval_accuracy.py")  # noqa: S108 - the sandbox's own
    script.parent.mkdir()
    shutil.copyfile("/official/inference/language/deepseek-r1/eval_accuracy.py", script)
    (script.parent / "submodules").mkdir()
    (script.parent / "submodules" / "prm800k").symlink_to("/official/prm800k")
    sys.modules["transformers"] = ModuleType("transformers")
    vars(sys.modules["transformers"])["AutoTokenizer"] = None
    sys.path[:0] = [str(script.parent), "/official/prm800k/prm800k"]
    evaluator = importlib.import_module("eval_accuracy").DATASET_EVALUATORS["math500"]
    grader = importlib.import_module("grading.grader")
    vars(grader)["_sympy_parse"] = Evaluation(vars(grader)["_sympy_parse"])

    def judged(task: dict[str, str], _channel: Any) -> tuple[bool, str]:
        """Return the official verdict on one answer."""
        answer = evaluator["parse"](task["response"])
        return answer is not None and bool(evaluator["evaluate"](answer, task["reference"])), f"found {answer!r}"

    exchange.judge_tasks(judged)

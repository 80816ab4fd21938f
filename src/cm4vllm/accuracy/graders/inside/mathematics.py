"""Answers of MATH-500, judged as eval_accuracy.py of language/deepseek-r1 does, with prm800k's grader beside it."""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    script = Path("/tmp/official/eval_accuracy.py")  # noqa: S108 - the sandbox's own
    script.parent.mkdir()
    shutil.copyfile("/official/inference/language/deepseek-r1/eval_accuracy.py", script)
    (script.parent / "submodules").mkdir()
    (script.parent / "submodules" / "prm800k").symlink_to("/official/prm800k")
    sys.path.insert(0, str(script.parent))
    evaluator = importlib.import_module("eval_accuracy").DATASET_EVALUATORS["math500"]
    for line in sys.stdin:
        task = json.loads(line)
        found = evaluator["parse"](task["response"])
        right = found is not None and bool(evaluator["evaluate"](found, task["reference"]))
        print(json.dumps({"right": right, "why": f"found {found!r}"[:300]}), file=verdicts, flush=True)
    os._exit(0)

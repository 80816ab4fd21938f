"""Programs of LiveCodeBench, judged as the eval_accuracy.py that is named on the command line does.

A task brings its problem, the row of the data set with its tests: the script would load all of them from a hub. The
packages `datasets`, which does that, and `anthropic`, of which prompts take two words, have a stand-in each.
"""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

OFFICIAL = Path("/tmp/official")  # noqa: S108 - the sandbox's own


def stand_in(name: str, **parts: Any) -> None:
    """Make a module of this name that has nothing but `parts`."""
    module = ModuleType(name)
    vars(module).update(parts)
    sys.modules[name] = module


if __name__ == "__main__":
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    (OFFICIAL / "submodules").mkdir(parents=True)
    shutil.copyfile(Path("/official/inference") / sys.argv[1], OFFICIAL / "eval_accuracy.py")
    (OFFICIAL / "submodules" / "LiveCodeBench").symlink_to("/official/LiveCodeBench")
    problems: list[dict[str, Any]] = []
    stand_in("datasets", load_dataset=lambda *args, **named: problems)
    stand_in("anthropic", HUMAN_PROMPT="", AI_PROMPT="")
    sys.path.insert(0, str(OFFICIAL))
    script = importlib.import_module("eval_accuracy")
    evaluator = script.DATASET_EVALUATORS["livecodebench"]
    for line in sys.stdin:
        task = json.loads(line)
        problems[:] = [json.loads(task["problem"])] if task["problem"] else []
        script.load_lcb_benchmark.cache_clear()
        code = evaluator["parse"](task["response"])
        why = "" if code else "no program in the answer"
        right = bool(code) and bool(evaluator["evaluate"](code, task["question_id"]))
        print(json.dumps({"right": right, "why": why}), file=verdicts, flush=True)
    os._exit(0)  # the script's workers may live on

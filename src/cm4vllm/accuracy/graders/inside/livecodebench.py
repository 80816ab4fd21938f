"""Programs of LiveCodeBench, judged as the eval_accuracy.py that is named on the command line does.

A task brings its problem, the row of the data set with its tests: the script would load all of them from a hub. The
packages `datasets`, which does that, `anthropic`, of which prompts take two words, and `transformers`, which reads
tokens, have a stand-in each. The script would run a program in the process that compares its results with the expected
ones. Here testing_util's functions that run a program ask its own process, in another sandbox; all else is theirs.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, "/inside")
exchange = importlib.import_module("exchange")

OFFICIAL = Path("/tmp/official")  # noqa: S108 - the sandbox's own


def stand_in(name: str, **parts: Any) -> None:
    """Make a module of this name that has nothing but `parts`."""
    module = ModuleType(name)
    vars(module).update(parts)
    sys.modules[name] = module


class Program:
    """The program of the present task, in another process, in place of the functions that would run it here."""

    channel: Any = None

    def compile_code(self, code: str, timeout: int) -> "Program | None":
        """Run its definitions."""
        signal.alarm(timeout)
        try:
            return self if self.channel.ask("compile", code=code, timeout=timeout) else None
        finally:
            signal.alarm(0)

    def get_function(self, compiled: "Program", name: str) -> Any:
        """Return a function that calls the program's function of this name; None if the program has none."""
        return compiled.call if self.channel.ask("find", name=name) else None

    def call(self, *arguments: Any) -> Any:
        """Return the result of the program's function."""
        return exchange.decode(self.channel.ask("call", arguments=exchange.encode(list(arguments))))

    def call_method(self, method: Any, inputs: Any) -> None:
        """Print what it prints."""
        sys.stdout.write(str(self.channel.ask("printed", inputs=inputs)))


def replace_running(program: Program) -> None:
    """Replace the functions by which testing_util runs an answer in its own process by those of `program`."""
    testing = importlib.import_module("lcb_runner.evaluation.testing_util")
    own = {name: getattr(program, name) for name in ("compile_code", "get_function", "call_method")}
    vars(testing).update(own, reliability_guard=lambda *limits: None)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")  # what is replaced here has to hold in the script's processes
    (OFFICIAL / "submodules").mkdir(parents=True)
    shutil.copyfile(Path("/official/inference") / sys.argv[1], OFFICIAL / "eval_accuracy.py")
    (OFFICIAL / "submodules" / "LiveCodeBench").symlink_to("/official/LiveCodeBench")
    problems: list[Any] = []
    stand_in("datasets", load_dataset=lambda *args, **named: problems)
    stand_in("anthropic", HUMAN_PROMPT="", AI_PROMPT="")
    stand_in("transformers", AutoTokenizer=None)
    sys.path[:0] = [str(OFFICIAL), "/official/LiveCodeBench"]
    os.chdir("/tmp")  # noqa: S108 - the sandbox's own
    script = importlib.import_module("eval_accuracy")
    evaluator = script.DATASET_EVALUATORS["livecodebench"]
    program = Program()
    replace_running(program)

    def judged(task: dict[str, str], channel: Any) -> tuple[bool, str]:
        """Return the official verdict on one answer."""
        program.channel = channel
        problems[:] = [json.loads(task["problem"])] if task["problem"] else []
        script.load_lcb_benchmark.cache_clear()
        code = evaluator["parse"](task["response"])
        right = bool(code) and bool(evaluator["evaluate"](code, task["question_id"]))
        return right, "" if code else "no program in the answer"

    exchange.judge_tasks(judged)

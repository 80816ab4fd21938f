"""MBXP's programs, judged by evaluate_mbxp.py of language/mixtral-8x7b.

mxeval writes each program beside its own module, so that it works on a copy. `npx tsc` is replaced by `tsc`, as
Dockerfile.eval does, because npx would ask the network. Programs run in another process, in another sandbox: mxeval
takes their exit status from there. A test in Python runs here and calls the program's function there, unless it uses
names that the program defines or hands over what it reads again afterwards; then both run there together.
"""

import ast
import builtins
import importlib
import json
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, "/inside")
exchange = importlib.import_module("exchange")

OFFICIAL = Path("/tmp/official")  # noqa: S108 - the sandbox's own


def stands_alone(test: str) -> bool:
    """Return True if a test needs nothing of the program's but the results of `candidate` for values that it states."""
    try:
        nodes = list(ast.walk(ast.parse(test)))
    except SyntaxError:
        return False
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    own = (
        {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        | {node.arg for node in nodes if isinstance(node, ast.arg)}
        | {
            (alias.asname or alias.name).partition(".")[0]
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
    )
    given = {
        name.id
        for call in nodes
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "candidate"
        for argument in (*call.args, *(named.value for named in call.keywords))
        for name in ast.walk(argument)
        if isinstance(name, ast.Name)
    }
    return read <= own | set(dir(builtins)) and not given & own


class Programs:
    """The process of the present task's program. It replaces the code that would run the program in this process."""

    channel: Any = None
    task: dict[str, str]

    def run(self, argv: list[str], timeout: float, cwd: str | None = None, **_named: Any) -> Any:
        """Run a command in the program's sandbox on the files that mxeval has written; return its exit status."""
        written = [path for path in (OFFICIAL / "mxeval").glob("*_exec_eval/*") if path.is_file()]
        files = {str(path): path.read_text(encoding="utf-8") for path in written}
        done = self.channel.ask("run", timeout + 10.0, argv=argv, cwd=cwd, timeout=timeout, files=files)
        return SimpleNamespace(returncode=done["returncode"], stderr=done["stderr"], stdout="")

    def execute(self, code: str, names: dict[str, Any]) -> None:
        """Define a Python program there, and run its test: here where it stands alone, there where it does not."""
        test, entry = self.task["test_code"], self.task["entry_point"]
        tail = f"\n{test}\ncheck({entry})"
        if not (code.endswith(tail) and stands_alone(test)):
            self.channel.ask("define", code=code)
            return
        self.channel.ask("define", code=code.removesuffix(tail))
        if not self.channel.ask("find", name=entry):
            raise NameError(f"name {entry!r} is not defined")

        def candidate(*positional: Any, **named: Any) -> Any:
            """Call the function of the program in its own sandbox, and return its result."""
            arguments = exchange.encode([list(positional), named])
            return exchange.decode(self.channel.ask("call", name=entry, arguments=arguments))

        exec(f"{test}\ncheck(candidate)", {"candidate": candidate})  # noqa: S102 - the dataset's test, not the answer


def replace_running(programs: Programs) -> None:
    """Have mxeval ask `programs` where it would start a program, or run one in its own process."""
    execution = importlib.import_module("mxeval.execution")
    started = SimpleNamespace(run=programs.run, PIPE=subprocess.PIPE)
    vars(execution).update(subprocess=started, exec=programs.execute, reliability_guard=lambda *limits: None)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")  # what is replaced here has to hold in the script's processes
    shutil.copytree("/official/mxeval/mxeval", OFFICIAL / "mxeval")
    module = OFFICIAL / "mxeval" / "execution.py"
    module.write_text(module.read_text(encoding="utf-8").replace("npx tsc", "tsc"), encoding="utf-8")
    sys.path[:0] = [str(OFFICIAL), "/official/inference/language/mixtral-8x7b"]
    evaluate_mbxp = importlib.import_module("evaluate_mbxp").evaluate_mbxp
    programs = Programs()
    replace_running(programs)

    def judged(task: dict[str, str], channel: Any) -> tuple[bool | None, str]:
        """Return the official verdict on one answer, None for a language that the script leaves out."""
        programs.channel, programs.task = channel, task
        try:
            right = evaluate_mbxp([dict(task)], 1) > 0
        except ZeroDivisionError:
            return None, ""
        finally:
            for worker in multiprocessing.active_children():  # they wait some seconds for more
                worker.kill()
        (evaluation,) = json.loads(Path("evaluated_test.json").read_text(encoding="utf-8")).values()
        return right, str(evaluation["result"])

    exchange.judge_tasks(judged)

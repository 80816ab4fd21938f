"""MBXP's programs, judged by evaluate_mbxp.py of language/mixtral-8x7b: tasks come as lines of JSON, verdicts go back.

mxeval writes each program beside its own module, so that it works on a copy. `npx tsc` is replaced by `tsc`, as
Dockerfile.eval does, because npx would ask the network.
"""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    shutil.copytree("/official/mxeval/mxeval", "/tmp/official/mxeval")  # noqa: S108 - the sandbox's own
    module = Path("/tmp/official/mxeval/execution.py")  # noqa: S108 - the sandbox's own
    module.write_text(module.read_text(encoding="utf-8").replace("npx tsc", "tsc"), encoding="utf-8")
    sys.path[:0] = ["/tmp/official", "/official/inference/language/mixtral-8x7b"]  # noqa: S108 - the sandbox's own
    evaluate_mbxp = importlib.import_module("evaluate_mbxp").evaluate_mbxp
    for line in sys.stdin:
        task = json.loads(line)
        right: bool | None
        try:
            right = evaluate_mbxp([task], 1) > 0
        except ZeroDivisionError:  # a language that the script leaves out
            right = None
        why = ""
        if right is not None:
            (found,) = json.loads(Path("evaluated_test.json").read_text(encoding="utf-8")).values()
            why = str(found["result"])[:300]
        print(json.dumps({"right": right, "why": why}), file=verdicts, flush=True)
    os._exit(0)  # the script's workers wait some seconds for more

"""Runs requests one after the other with whatever script engine a CM home has, and writes what each gave as JSON.

`python recorder.py <home> <folder to work in> <file with cases> <file for the answers>`; cases are a JSON mapping of
names to lists of requests: inputs, or the words of a command line. Each case begins with an empty cache.
"""

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import yaml
from cmind.core import CM

# The public engine reads its metas anew in each run: libyaml's parser gives the same in a tenth of the time.
if yaml.__with_libyaml__:
    yaml.FullLoader, yaml.SafeLoader = yaml.CFullLoader, yaml.CSafeLoader


def entries(home):
    """Return what cmind and people see of the cache: tags without UIDs, version, and whether it is finished."""
    cached = []
    for path in sorted((home / "repos" / "local" / "cache").glob("*/_cm.json")):
        meta = json.loads(path.read_bytes())
        tags = sorted(tag for tag in meta["tags"] if not tag.startswith("script-artifact-"))
        cached.append({"tags": tags, "version": str(meta.get("version", ""))})
    return sorted(cached, key=lambda entry: entry["tags"])


@contextlib.contextmanager
def output_to(path):
    """Send what this process and its children print to a file."""
    sys.stdout.flush()
    before = os.dup(1)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


def answer(home, work, request):
    """Run one request in a folder of its own and return its answer."""
    work.mkdir(parents=True)
    os.chdir(work)
    with output_to(work.with_suffix(".out")):
        try:
            result = CM(str(home)).access(request, out="con" if isinstance(request, list) else None)
        except Exception as error:  # the public engine lets them through
            result = {"return": 1, "error": f"raised {type(error).__name__}: {error}"}
    shown = {key: result.get(key) for key in ("return", "error", "new_env", "new_state", "deps", "version")}
    return {
        **shown,
        "skipped": bool(result.get("skipped")),
        "keys": sorted(result),
        "entries": entries(home),
        "output": work.with_suffix(".out").read_text(errors="replace"),
    }


def main(home, work, cases, answers):
    """Answer all requests of all cases."""
    os.environ["CM_REPOS"] = str(home)
    # Each request loads the engine's modules anew: they are compiled once, and nothing is written beside them.
    sys.pycache_prefix, sys.dont_write_bytecode = str(work / "bytecode"), False
    given = json.loads(cases.read_text())
    CM(str(home)).access({"action": "find", "automation": "repo"})
    got = {}
    for name, requests in given.items():
        shutil.rmtree(home / "repos" / "local" / "cache", ignore_errors=True)
        got[name] = [answer(home, work / name / str(number), request) for number, request in enumerate(requests)]
    answers.write_text(json.dumps(got, default=str))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

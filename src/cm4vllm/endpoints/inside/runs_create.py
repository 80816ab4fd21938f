"""Runs the official `runs create` on run folders, unmodified, and without its question for a newer version.

runs_create.py address: print where runs are registered.
runs_create.py payloads FOLDER TARGET ...: write what would be sent of each run folder to its target, and send nothing.
runs_create.py create FOLDER: register a run; its id is among what the program prints.
"""

import contextlib
import sys
from pathlib import Path

from endpoints_submission_cli import _http
from endpoints_submission_cli.commands.runs.create import runs_create


def main(action: str, *words: str) -> int:
    """Do what the first word says; the exit status is 1 where the official program refuses a run folder."""
    if action == "address":
        print(_http._base_url())
        return 0
    if action == "create":
        return _run(["--path", words[0]])
    return next(filter(None, map(_write_payload, words[::2], words[1::2])), 0)


def _write_payload(folder: str, target: str) -> int:
    with Path(target).open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        status = _run(["--path", folder, "--dry-run"])
    if status:
        print(f"refused: {folder}")
    return status


def _run(words: list[str]) -> int:
    try:
        runs_create.main(words, prog_name="runs create")
    except SystemExit as ended:
        return 0 if ended.code in (0, None) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Two CM homes side by side: one with this engine, one with that of cm4mlops where CM4MLOPS names a checkout of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import ROOT

RECORDER = Path(__file__).with_name("recorder.py")


class Engine:
    """A CM home with one script engine and the repositories that it runs scripts of."""

    def __init__(self, folder: Path, *repositories: Path) -> None:
        self.home = folder / "CM"
        self.work = folder / "work"
        self.home.mkdir(parents=True)
        (self.home / "repos.json").write_text(json.dumps([str(path) for path in repositories]))
        self._rounds = 0

    def answers(self, cases: dict[str, list[dict[str, Any] | list[str]]]) -> dict[str, list[dict[str, Any]]]:
        """Run the requests of all cases in one process, one after the other, and return what each gave.

        A request is its inputs, or the words of a command line.
        """
        self._rounds += 1
        place = self.work / f"round{self._rounds}"
        place.mkdir(parents=True)
        given, got = place / "cases.json", place / "answers.json"
        given.write_text(
            json.dumps(
                {
                    name: [
                        request
                        if isinstance(request, list)
                        else {"action": "run", "automation": "script", "quiet": True, **request}
                        for request in requests
                    ]
                    for name, requests in cases.items()
                }
            )
        )
        env = {
            **os.environ,
            # Scripts ask every Python on PATH for its version: pyenv's are shell scripts that take a third of a second.
            "PATH": ":".join((str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin")),
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "CM_CORE_SKIP_INTERNAL_REPOS": "yes",
        }
        # -u: the public engine does not write out what it has printed before it starts a script.
        done = subprocess.run(
            [
                sys.executable,
                "-u",
                "-W",
                "ignore",
                str(RECORDER),
                str(self.home),
                str(place / "runs"),
                str(given),
                str(got),
            ],
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert got.exists(), done.stdout + done.stderr
        # Only the differences between two homes are removed.
        text = got.read_text().replace(str(place / "runs"), "(work)").replace(str(self.home), "(home)")
        return dict(json.loads(text))


def engine_alone(folder: Path, checkout: Path = ROOT) -> Path:
    """Return a repository with the engine of a checkout alone: its recipes would answer to the tags of others."""
    folder.mkdir(parents=True)
    (folder / "cmr.yaml").write_text('alias: cm4vllm\nuid: "00000000000000f2"\n')
    (folder / "automation").symlink_to(checkout / "automation")
    return folder


@pytest.fixture(scope="session")
def cm4mlops() -> Path:
    """Return the checkout of cm4mlops to compare with."""
    named = os.environ.get("CM4MLOPS", "")
    if not named:
        pytest.skip("CM4MLOPS names no checkout of cm4mlops to compare with")
    return Path(named).resolve()

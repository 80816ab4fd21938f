"""A CM home of its own for each test, with a repository of scripts that the test writes."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT_UID = "5b4e0237da074764"


class Home:
    """A CM home in which this checkout and a synthetic repository are registered."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "CM"
        self.repo = folder / "synthetic"
        self.work = folder / "work"
        for path in (self.path, self.repo, self.work):
            path.mkdir()
        (self.repo / "cmr.yaml").write_text('alias: synthetic\nuid: "00000000000000f1"\n')
        # The engine without our recipes: cmind indexes each new home, which takes a second for all of them.
        self.engine = folder / "engine"
        self.engine.mkdir()
        (self.engine / "cmr.yaml").write_text('alias: cm4vllm\nuid: "00000000000000f2"\n')
        (self.engine / "automation").symlink_to(ROOT / "automation")
        self.register(self.engine, self.repo)
        self.env = {
            **os.environ,
            "CM_REPOS": str(self.path),
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._count = 0

    def register(self, *repositories: Path) -> None:
        (self.path / "repos.json").write_text(json.dumps([str(path) for path in repositories]))

    def script(self, tags: str, meta: dict[str, Any] | None = None, *, customize: str = "", run: str = "") -> Path:
        """Write a script; its alias is its tags joined by dashes."""
        self._count += 1
        alias = tags.replace(",", "-")
        folder = self.repo / "script" / alias
        folder.mkdir(parents=True, exist_ok=True)
        full = {
            "alias": alias,
            "uid": f"{self._count:015x}a",
            "automation_alias": "script",
            "automation_uid": SCRIPT_UID,
            "tags": tags.split(","),
            **(meta or {}),
        }
        (folder / "_cm.yaml").write_text(yaml.safe_dump(full, sort_keys=False))
        for name, text in (("customize.py", customize), ("run.sh", run)):
            if text:
                (folder / name).write_text(text)
        return folder

    def run(self, tags: str, **given: Any) -> dict[str, Any]:
        """Run in this process, as `cm run script --tags=...` with these inputs would."""
        from cmind.core import CM

        before = Path.cwd()
        os.chdir(self.work)
        try:
            return dict(
                CM(str(self.path)).access(
                    {"action": "run", "automation": "script", "tags": tags, "cmd": ["typed"], **given}
                )
            )
        finally:
            os.chdir(before)

    def act(self, *words: str) -> dict[str, Any]:
        """Do in this process what `cm` would do with these words, and return the result."""
        from cmind.core import CM

        before = Path.cwd()
        os.chdir(self.work)
        try:
            return dict(CM(str(self.path)).access(list(words), out="con"))
        finally:
            os.chdir(before)

    def done(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Do the same, and return it as `cli` does, without its time."""
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            result = self.act(*words)
        error = f"CM error: {result['error']}\n" if result["return"] else ""
        return subprocess.CompletedProcess(words, result["return"], output.getvalue(), errors.getvalue() + error)

    def cli(self, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cmind.cli", *words],
            cwd=cwd or self.work,
            text=True,
            errors="replace",
            capture_output=True,
            env={**self.env, **env},
            timeout=120,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cmind.cli", *words],
            cwd=self.work,
            text=True,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def entries(self) -> list[Path]:
        """Return the folders of all cache entries."""
        return sorted(path.parent for path in (self.path / "repos" / "local" / "cache").glob("*/_cm.json"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    # Else cmind looks at each start for repositories among all packages that this Python can import.
    monkeypatch.setenv("CM_CORE_SKIP_INTERNAL_REPOS", "yes")
    return Home(tmp_path)

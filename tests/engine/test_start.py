"""The modules that a start loads: a cache hit ends before pathlib would be imported."""

import subprocess
import sys

#: Modules that take a millisecond or more to load, or that start something.
HEAVY = {
    "pathlib",
    "hashlib",
    "dataclasses",
    "subprocess",
    "shutil",
    "tempfile",
    "asyncio",
    "cm4vllm.engine.run.shell_script",
    "cm4vllm.engine.run.hooks",
    "cm4vllm.engine.run.shell_environment",
    "cm4vllm.common.programs.processes",
}


def loaded(home, *words):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cmind.cli", *words],
        cwd=home.work,
        env=home.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_a_hit_of_the_cache_loads_nothing_heavy(home):
    home.script("one", {"cache": True, "new_env_keys": ["CM_ONE"]}, run="echo CM_ONE=1 > tmp-run-env.out\n")
    first = loaded(home, "run", "script", "--tags=one")
    assert "cm4vllm.engine.run.shell_script" in first
    hit = loaded(home, "run", "script", "--tags=one") - loaded(home, "version")
    assert "cm4vllm.engine.cache.reuse" in hit
    assert not hit & HEAVY


def test_a_script_without_a_shell_file_loads_nothing_to_run_one(home):
    home.script("one", {"env": {"CM_ONE": "1"}})
    loaded(home, "version")  # cmind indexes the home
    assert not loaded(home, "run", "script", "--tags=one") & {
        "subprocess",
        "ctypes",
        "cm4vllm.common.programs.processes",
    }

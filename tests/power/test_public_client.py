"""The public recipe `run,mlperf,power,client` of cm4mlops, unchanged, under this engine, with the simulated analyzer.

Needs CM4MLOPS=<checkout of cm4mlops>. Its dependencies on Python, on the programs and on ntpdate are satisfied by our
recipes with those tags: nothing is installed, and no clock is set.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.power.programs import provide
from cm4vllm.records.power.session import FETCHED_ONLY, FILES, PowerSession, reasons_unmeasured
from cm4vllm.rules import round_names, round_terms

ROOT = Path(__file__).parents[2]
#: The UID of the public recipe: ours answers to the same tags.
PUBLIC = "bf6a6d0cc97b48ae"
MEASURE = f"""#!{sys.executable}
from pathlib import Path
from cm4vllm.power.making import preflight_run
folder = Path("WORK") / "loadgen_logs"
folder.mkdir(exist_ok=True)
preflight_run(folder, seconds=3)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A CM home with our repository, and one that has the public recipe alone."""
    named = os.environ.get("CM4MLOPS", "")
    if not named:
        pytest.skip("CM4MLOPS names no checkout of cm4mlops")
    public = tmp_path / "public"
    (public / "script").mkdir(parents=True)
    (public / "cmr.yaml").write_text('alias: public\nuid: "00000000000000f3"\n')
    recipe = "run-mlperf-power-client"
    (public / "script" / recipe).symlink_to(Path(named).resolve() / "script" / recipe)
    home = tmp_path / "CM"
    home.mkdir()
    (home / "repos.json").write_text(json.dumps([str(ROOT), str(public)]))
    return home


def test_the_public_client_makes_a_session(own_network: None, home: Path, power_dev: Path, tmp_path: Path) -> None:
    programs = round_terms(round_names()[-1]).power
    source = provide(programs, power_dev, tmp_path / "source")
    work = tmp_path / "work"
    work.mkdir()
    measure = work / "measure.py"
    measure.write_text(MEASURE.replace("WORK", str(work)))
    measure.chmod(0o755)
    cm = Path(sys.executable).with_name("cm")
    command = [cm, "run", "script", PUBLIC, "--quiet", "--power_server=127.0.0.1", "--ntp_server=127.0.0.1"]
    command += [f"--run_cmd={measure}", f"--loadgen_logs_dir={work / 'loadgen_logs'}", f"--log_dir={work / 'logs'}"]
    command += [f"--env.CM_MLPERF_POWER_SOURCE_GIT={power_dev}"]
    site = [sys.executable, "-m", "cm4vllm.power.simulated_site", work, source, programs.section]
    env = {**os.environ, "CM_REPOS": str(home), "MLPP_DEBUG": "1", "HOME": str(tmp_path)}
    words = [str(word) for word in ("unshare", "-Urn", *site, *command)]
    done = subprocess.run(words, cwd=work, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    session = PowerSession(work / "logs")
    names = {str(path.relative_to(session.folder)) for path in session.folder.rglob("*") if path.is_file()}
    assert names == {*FILES, FETCHED_ONLY} and len(names) == 12
    assert reasons_unmeasured(session) == () and session.simulated
    assert "sudo" not in done.stdout and "ntpdate" not in done.stdout.replace("_ntpdate", "")

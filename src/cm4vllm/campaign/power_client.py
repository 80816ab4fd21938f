"""The recipe `run,mlperf,power,client`: a power session around a command of the user's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated

from cm4vllm.campaign.power_preflight import make_preflight
from cm4vllm.common import input_types
from cm4vllm.common.errors import RunFailed, UsageError
from cm4vllm.common.files import given_path
from cm4vllm.common.processes import exit_in_words
from cm4vllm.common.progress import say, step
from cm4vllm.common.settings import Key
from cm4vllm.common.temporary_folders import scratch_folder
from cm4vllm.loadgen.logs.detail_log import DETAIL_LOG
from cm4vllm.power.making import SiteInputs, make_session, require_hosts, require_reachable
from cm4vllm.power.samples import SIMULATED, mean_watts
from cm4vllm.power.session import Phase, PowerSession
from cm4vllm.submission.power_files import require_analyzer
from cm4vllm.submission.privacy import private_words
from cm4vllm.submission.privacy_check import words_of

__all__ = ["ClientSettings", "make", "require_settings"]


class ClientSettings(SiteInputs, frozen=True, kw_only=True):
    """The settings of a session: its servers, the command, the folder of its logs, and that of the session.

    `results_dir` is the folder of the job whose session it is; with `before_tree` that job makes a
    submission, and the simulated PTDaemon is refused. The ranges are known for their refusal.
    """

    run_cmd: Annotated[str, Key("CM_MLPERF_RUN_CMD")] = ""
    loadgen_logs: Annotated[str, Key("CM_MLPERF_LOADGEN_LOGS_DIR")] = "loadgen_logs"
    log_dir: Annotated[str, Key("CM_MLPERF_POWER_LOG_DIR")] = "logs"
    preflight: Annotated[bool, Key("CM_MLPERF_POWER_PREFLIGHT")] = False
    before_tree: Annotated[bool, Key("CM_MLPERF_POWER_BEFORE_TREE")] = False
    simulated: Annotated[bool, Key("CM_MLPERF_POWER_SIMULATED")] = False
    timestamp: Annotated[bool, Key("CM_MLPERF_POWER_TIMESTAMP")] = False
    max_amps: Annotated[str, Key("CM_MLPERF_POWER_MAX_AMPS")] = ""
    max_volts: Annotated[str, Key("CM_MLPERF_POWER_MAX_VOLTS")] = ""
    results_dir: input_types.ResultsDir = ""


def require_settings(settings: ClientSettings) -> None:
    """Raise UsageError for settings with which no session can be made: in a plan and in a run."""
    for value, flag in ((settings.max_amps, "--max_amps"), (settings.max_volts, "--max_volts")):
        if value:
            raise UsageError(
                f"{flag} is not supported",
                cause="with ranges that are given, the official client leaves ranging out, and no checker accepts that",
                remedy="leave --max_amps and --max_volts out: ranging finds the ranges",
            )
    if not settings.run_cmd and not settings.preflight:
        raise UsageError("no command to measure was given", remedy="give it with --run_cmd, or add _preflight")
    kept = not settings.preflight and not settings.timestamp
    if kept and (folder := given_path(settings.log_dir)).exists():
        raise UsageError(f"{folder} exists already", remedy="give another folder with --log_dir, or move that one")
    require_hosts(settings.site(simulated=settings.simulated))


def make(settings: ClientSettings) -> Path:
    """Make the session; return its folder, or the present one after a session before the runs, which is not kept."""
    require_settings(settings)
    site = settings.site(simulated=settings.simulated)
    require_reachable(site)
    if settings.preflight:
        words = words_of(Path(settings.results_dir)) if settings.results_dir else private_words()
        with step("power session without a measurement"), scratch_folder("cm4vllm-preflight-") as folder:
            made = make_preflight(site, folder / "performance", words)
            if settings.before_tree:
                require_analyzer(made)
            _say(made)
        return Path.cwd()
    target = given_path(settings.log_dir)
    with step("power session: ranging, then testing"):
        made = make_session(
            site, target, lambda folder: _run_command(settings, folder), below_its_name=settings.timestamp
        )
        _say(made)
    return made.folder


def _run_command(settings: ClientSettings, folder: Path) -> None:
    """Run the command of the user, and take LoadGen's logs from where it writes them."""
    status = subprocess.run(settings.run_cmd, shell=True, check=False).returncode  # noqa: S602 - what the user gave
    if status:
        raise RunFailed("the measured command failed", cause=exit_in_words(status), remedy="run it by itself first")
    logs = sorted(given_path(settings.loadgen_logs).rglob(DETAIL_LOG), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise RunFailed(
            "the measured command wrote no LoadGen logs",
            cause=f"no {DETAIL_LOG} below {settings.loadgen_logs}",
            remedy="name the folder that it writes to with --loadgen_logs_dir",
        )
    shutil.copytree(logs[-1].parent, folder, dirs_exist_ok=True)


def _say(session: PowerSession) -> None:
    mark = f"{SIMULATED}: " if session.simulated else ""
    for phase in Phase:
        window = session.window(phase)
        samples = session.samples(phase).within(window.begin, window.end) if window else ()
        if window:
            say(f"{mark}{phase.key}: {mean_watts(samples):.3f} W, {len(samples)} samples in {window.seconds:.1f} s")

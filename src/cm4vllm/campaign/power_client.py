"""The recipe `run,mlperf,power,client`: a power session around a command of the user's, or one before the runs.

That one measures nothing, and finds faults before the sessions that take hours. Its files are those of any session, and
cannot be changed later: what they say of the analyzer must fit how it is read, and no word in them may be private.
"""

import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from cm4vllm.common import input_types
from cm4vllm.common.checking.private_text import HOME, SECRETS, found_in
from cm4vllm.common.checking.private_words import PrivateWord, first_private, private_words
from cm4vllm.common.errors import RunFailed, SubmissionError, UsageError
from cm4vllm.common.files import typed_path
from cm4vllm.common.folders.ownership_notes import Kind, require_replaceable
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import exit_in_words
from cm4vllm.common.progress import say, step
from cm4vllm.common.settings import Key
from cm4vllm.power.making import (
    Site,
    SiteInputs,
    make_session,
    preflight_run,
    require_hosts,
    require_reachable,
    several_analyzers,
)
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.power.samples import SIMULATED, mean_watts
from cm4vllm.records.power.session import FILES, Phase, PowerSession
from cm4vllm.records.published_server import words_of
from cm4vllm.submission.run_files import require_analyzer

#: The folder of a session, which takes hours: an earlier one is not replaced.
_SESSION_FOLDER = Kind("a power session", "--log_dir", refused=lambda _folder: "it holds an earlier session")
#: How long the two runs of a session before the runs stand for; the simulated analyzer needs no more for a few samples.
_SECONDS, _SIMULATED_S = 10.0, 3.0
#: PTDaemon's value for a reading that it did not get.
_NO_READING_W = -1.0
#: What may not stand in a session beside the words of this machine: the path of the director's programs may hold it.
_FORMS = (SECRETS, HOME)


class ClientSettings(SiteInputs, frozen=True, kw_only=True):
    """The settings of a session: its servers, the command, the folder of its logs, and that of the session.

    `results_dir` is the folder of the job whose session it is; with `before_tree` that job makes a
    submission, and the simulated PTDaemon is refused. The ranges are known for their refusal.
    """

    run_cmd: Annotated[str, Key("CM_MLPERF_RUN_CMD")] = ""
    loadgen_logs: Annotated[str, Key("CM_MLPERF_LOADGEN_LOGS_DIR")] = "loadgen_logs"
    log_dir: Annotated[str, Key("CM_MLPERF_POWER_LOG_DIR")] = "logs"
    preflight: Annotated[bool, Key("CM_MLPERF_POWER_PREFLIGHT")] = False
    before_tree: input_types.BeforeTree = False
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
    if not settings.preflight and not settings.timestamp:
        require_replaceable(typed_path(settings.log_dir).absolute(), _SESSION_FOLDER)
    require_hosts(settings.as_site(simulated=settings.simulated))


def make(settings: ClientSettings) -> Path:
    """Make the session; return its folder, or the present one after a session before the runs, which is not kept."""
    require_settings(settings)
    site = settings.as_site(simulated=settings.simulated)
    require_reachable(site)
    if settings.preflight:
        words = words_of(Path(settings.results_dir)) if settings.results_dir else private_words()
        with step("power session without a measurement"), scratch_folder("cm4vllm-preflight-") as folder:
            made = make_preflight(site, folder / "performance", words)
            if settings.before_tree:
                require_analyzer(made)
            _say(made)
        return Path.cwd()
    target = typed_path(settings.log_dir).absolute()
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
    logs = sorted(typed_path(settings.loadgen_logs).rglob(DETAIL_LOG), key=lambda path: path.stat().st_mtime)
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


def make_preflight(site: Site, target: Path, words: Sequence[PrivateWord]) -> PowerSession:
    """Make a session without a measurement in `target`. Raises what make_session raises, UsageError, SubmissionError.

    With the simulated analyzer its pauses are shortened: what is to be found are ports and words.
    """
    seconds = _SIMULATED_S if site.simulated else _SECONDS
    session = make_session(replace(site, debug=site.simulated), target, partial(preflight_run, seconds=seconds))
    require_channels(session)
    require_publishable(session, words)
    return session


def require_channels(session: PowerSession) -> int:
    """Return the number of channels that are read.

    Raises UsageError where the analyzer cannot measure as it is configured and wired.
    """
    if (count := len(session.analyzers)) > 1:
        raise several_analyzers(count)
    stated = max((identity.channels for identity in session.identities), default=1)
    wanted = _configured_channels(session) or stated
    for phase in Phase:
        for sample in session.samples(phase).samples:
            read = len(sample.channels) or 1
            if read != wanted:
                raise UsageError(
                    f"the analyzer gives {read} channels of {wanted}",
                    cause=f"{phase}/spl.txt; PTDaemon states {stated}",
                    remedy="give the channels that are wired: --channel=FIRST,NUMBER of run,mlperf,power,server",
                )
            for name, watts in (sample.channels or {"of one": sample.watts}).items():
                if watts < _NO_READING_W:
                    raise UsageError(
                        f"channel {name} of the analyzer reads {watts:g} W",
                        cause="a machine that runs draws power: its current is wired the wrong way round, or not "
                        "steadily",
                        remedy="mend the wiring of that channel",
                    )
    return wanted


def require_publishable(session: PowerSession, words: Sequence[PrivateWord]) -> None:
    """Raise SubmissionError where a file of the session holds a private word: they are published as they are."""
    for name in FILES:
        for number, line in enumerate(session.text(name).splitlines(), 1):
            if private := _private(line, words):
                raise SubmissionError(
                    f"{name}, line {number}, of a power session names {private}",
                    cause="the files of a session are published as they are, and each session would hold it",
                    remedy="name PTDaemon and its device by paths without it, and start the power server elsewhere; no "
                    "key may stand in a setting of the session",
                )


def _private(line: str, words: Sequence[PrivateWord]) -> str:
    """Return the private part of a line in words; empty where nothing is private."""
    if word := first_private(line, words):
        return f"this machine's {word.kind} {word.shown}" if word.kind != "secret" else "a secret"
    return next((f"{kind.kind}{'' if kind.is_secret else f': {word}'}" for kind, word in found_in(line, _FORMS)), "")


def _configured_channels(session: PowerSession) -> int:
    """Return the number of channels that the server was configured for; 0 where its configuration names none."""
    channels = [analyzer.get("channel") for analyzer in session.analyzers]
    return next((int(channel[1]) for channel in channels if isinstance(channel, list) and len(channel) == 2), 0)

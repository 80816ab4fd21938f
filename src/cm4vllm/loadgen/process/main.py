"""The process that runs LoadGen: `python -m cm4vllm.loadgen.process.main SETTINGS.json FOLDER [FLAG ...]`.

LoadGen issues queries on the main thread, which gives them to worker processes; a second thread reports what they
answer. The logs go to FOLDER, progress and the outcome as lines of JSON (loadgen.messages) to standard output, with
--latencies the times of each answer too. With --keep=FILE answers are kept there, and those
that are there already are given to LoadGen (loadgen.kept_answers). One process makes one run: LoadGen applies
mlperf.conf only to the first FromConfig of a process.
"""

import faulthandler
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm import __version__
from cm4vllm.assets.samples.published_formats import require_media
from cm4vllm.common.errors import CmError, InstallError, RunFailed
from cm4vllm.common.files import write_text
from cm4vllm.common.programs.processes import die_with_parent, raise_open_files
from cm4vllm.common.records import read_record
from cm4vllm.hardware.readiness import machine_limits
from cm4vllm.loadgen.limits import demand_of, needs
from cm4vllm.loadgen.process.messages import Checked, Ended, Failed, Message, Note
from cm4vllm.loadgen.process.sample_library import SampleLibrary, library_of, read_rows
from cm4vllm.loadgen.process.system_under_test import SystemUnderTest
from cm4vllm.loadgen.settings import require_room
from cm4vllm.loadgen.wheel import DISTRIBUTION, compiled_in_conf, require_seeds
from cm4vllm.records.client import SelfCheck
from cm4vllm.records.logs.run_logs import AUDIT_CONFIG
from cm4vllm.records.run import MLPERF_CONF, RunSettings
from cm4vllm.rules import Audit, Mode, Seeds, Terms, audit
from cm4vllm.serving.probing.node_names import network_name

#: The interpreter's default of 5 ms between threads would show in the measured TTFT.
SWITCH_INTERVAL_S = 1e-4
_KEEP = "--keep="


def main(argv: Sequence[str]) -> int:
    """Make the run; return the process's exit code."""
    die_with_parent()
    faulthandler.enable(all_threads=False)  # writes to console.log where LoadGen, or an extension, crashed
    # Ctrl-C reaches the whole foreground group; the parent decides, and a Python handler could not run inside LoadGen.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings_file, folder = Path(argv[1]), Path(argv[2])
    try:
        kept = next((Path(word.removeprefix(_KEEP)) for word in argv[3:] if word.startswith(_KEEP)), None)
        settings, shown = read_record(settings_file, RunSettings), "--latencies" in argv[3:]
        _send(_run(settings, folder, show_latencies=shown, keep=kept))
    except CmError as error:
        _send(Failed(exit_code=error.exit_code, what=error.what, cause=error.cause, remedy=error.remedy))
        return error.exit_code
    return 0


def _run(settings: RunSettings, folder: Path, *, show_latencies: bool, keep: Path | None) -> Message:
    """Make the LoadGen run that the settings describe, and return the message with its outcome."""
    loadgen = _import_loadgen()
    require_seeds(settings.terms, metadata.version(DISTRIBUTION))
    test = _test_settings(loadgen, settings, folder)
    rows = read_rows(settings.dataset, settings.samples)
    settings.server.access.headers()  # refused here, in words, and not in a worker
    if settings.dataset.media_folder:
        require_media(Path(settings.dataset.media_folder), rows)
    library = library_of(settings, rows)
    if library.prompts_changed:
        _send(
            Note(
                text=f"{library.prompts_changed:,} of {len(rows):,} prompts are other token ids than the dataset's "
                "when the model's tokenizer reads their text",
                loud=True,
            )
        )
    require_room(settings, library.longest_prompt)
    raise_open_files()  # which the workers inherit
    least = needs(demand_of(settings), machine_limits()).workers
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    checked = _self_check(settings, library, least) if settings.self_check else None
    workers = checked.workers if checked else least
    with SystemUnderTest(
        loadgen, settings, library, workers, send=_send, show_latencies=show_latencies, answers=keep
    ) as system:
        duration = _test(loadgen, test, folder, library, system, _network_name(settings))
    system.times.write(folder)
    return Ended(client=system.record(checked), duration_s=duration, versions=_versions())


def _self_check(settings: RunSettings, library: SampleLibrary, least: int) -> SelfCheck:
    """Measure what the client can carry, and report it."""
    # Here, because of asyncio and psutil, which LoadGen's process otherwise does without.
    from cm4vllm.loadgen.process.selfcheck import in_words, self_check

    checked = self_check(settings, library, least)
    _send(Checked(check=checked, text=in_words(checked, settings)))
    return checked


def _network_name(settings: RunSettings) -> Callable[[], str] | None:
    """Return the function that asks the nodes of a system on other machines for its name; None for other systems."""
    if not settings.network:
        return None
    ask = partial(network_name, settings.server)
    ask()  # refused here, in words, and not in LoadGen
    return ask


def _test(
    loadgen: Any,
    test: Any,
    folder: Path,
    library: SampleLibrary,
    system: SystemUnderTest,
    name: Callable[[], str] | None,
) -> float:
    """Run LoadGen's test to its end, on this thread; return its duration in s.

    With `name` LoadGen has a query dispatch library, and calls it for the name of the system.
    """
    log = loadgen.LogSettings()
    log.log_output.outdir = str(folder)
    log.log_output.copy_summary_to_stdout = False
    log.enable_trace = False
    sut = (
        loadgen.ConstructQDL(system.issue, lambda: None, name)
        if name
        else loadgen.ConstructSUT(system.issue, lambda: None)
    )
    qsl = loadgen.ConstructQSL(len(library), len(library), library.load, library.unload)
    begin = time.monotonic()
    # LoadGen would take up an audit.config of the working directory: only one in the run's folder may count.
    loadgen.StartTestWithLogSettings(sut, qsl, test, log, str(folder / AUDIT_CONFIG))
    duration = time.monotonic() - begin
    loadgen.DestroyQSL(qsl)
    (loadgen.DestroyQDL if name else loadgen.DestroySUT)(sut)
    return duration


def _import_loadgen() -> Any:
    """Return the module of LoadGen. Raises InstallError where it is not installed."""
    try:
        import mlperf_loadgen
    except ImportError as error:
        raise InstallError(
            "LoadGen is not installed in this Python",
            cause=str(error),
            remedy="cm run script --tags=get,mlperf,inference,loadgen",
        ) from error
    return mlperf_loadgen


def _test_settings(loadgen: Any, settings: RunSettings, folder: Path) -> Any:
    """Return LoadGen's settings from mlperf.conf and our user.conf, checked to be those of the round and benchmark."""
    write_text(folder / MLPERF_CONF, compiled_in_conf(Path(loadgen.__file__)))
    test, terms = loadgen.TestSettings(), settings.terms
    # The fourth parameter keeps its default, "this is user.conf": LoadGen 5.0.0 has it the other way round.
    if test.FromConfig(str(folder / "user.conf"), terms.loadgen_name, terms.loadgen_scenario) not in (0, None):
        raise RunFailed("LoadGen refuses user.conf", cause=settings.user_conf)
    test.scenario = getattr(loadgen.TestScenario, terms.loadgen_scenario)
    modes = loadgen.TestMode
    test.mode = modes.PerformanceOnly if settings.mode is Mode.PERFORMANCE else modes.AccuracyOnly
    if settings.audit_config:
        _set_audit(test, audit(settings.compliance_test, settings.benchmark), settings)
    seeds = Seeds(qsl=test.qsl_rng_seed, sample_index=test.sample_index_rng_seed, schedule=test.schedule_rng_seed)
    if seeds != terms.seeds:
        raise InstallError(
            f"the LoadGen in use is not that of round {terms.round}",
            cause="its seeds differ, and the checker compares them",
            remedy=f"pip install mlcommons-loadgen=={terms.loadgen.wheel}",
        )
    if not _measures(test, terms):
        raise RunFailed(
            f"LoadGen does not measure {terms.loadgen_name} with the limits of {terms.benchmark}",
            cause=f"the mlperf.conf of LoadGen {metadata.version(DISTRIBUTION)} has other limits, or does not have the "
            "name, or user.conf sets others",
            remedy=f"use the LoadGen of the round ({terms.loadgen.wheel}), and no limits in user.conf",
        )
    return test


#: Times the answers of a compliance test that LoadGen is asked to log where it draws them: chance may give fewer.
_DRAWN = 1.5


def _set_audit(test: Any, wanted: Audit, settings: RunSettings) -> None:
    """Have LoadGen 4.1.30 to 5.0.4 log answers: of audit.config they take neither seed nor number of these.

    They do not take `sample_concatenate_permutation` either, and issue whole passes over the loaded samples.
    """
    if hasattr(test, "accuracy_log_sampling_target"):
        return
    loaded = test.performance_sample_count_override or settings.samples
    issued = -(-wanted.samples // loaded) * loaded
    test.accuracy_log_rng_seed = wanted.audit["accuracy_log_rng_seed"]
    test.accuracy_log_probability = min(1.0, _DRAWN * wanted.samples / issued)


def _measures(test: Any, terms: Terms) -> bool:
    """Return True if LoadGen measures what the benchmark's rules limit, by these limits if any (mlperf.conf has ms)."""
    limits = terms.limits
    pairs: list[tuple[object, object]] = [(bool(test.use_token_latencies), terms.token_latencies)]
    if limits is not None and limits.latency_ms is not None and not terms.token_latencies:
        pairs.append((test.server_target_latency_ns, round(limits.latency_ms * 1e6)))
    elif limits is not None and limits.ttft_ms is not None and limits.tpot_ms is not None:
        pairs += [(test.ttft_latency, round(limits.ttft_ms * 1e6)), (test.tpot_latency, round(limits.tpot_ms * 1e6))]
    return all(measured == limit for measured, limit in pairs)


def _versions() -> dict[str, str]:
    """Return the versions of Python, cm4vllm and the packages that take part in a run."""
    return {
        "python": platform.python_version(),
        "cm4vllm": __version__,
        **{package: metadata.version(package) for package in (DISTRIBUTION, "uvloop", "httptools", "msgspec")},
    }


def _send(message: Message) -> None:
    sys.stdout.write(msgspec.json.encode(message).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))

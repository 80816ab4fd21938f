"""The process that runs LoadGen: `python -m cm4vllm.loadgen.process SETTINGS.json FOLDER`.

LoadGen issues queries on the main thread; one event loop in a second thread sends them and reads the answers. The logs
go to FOLDER, progress and the outcome as lines of JSON (loadgen.messages) to standard output. One process makes one
run: LoadGen applies mlperf.conf only to the first FromConfig of a process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import resource
import signal
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from cm4vllm import __version__
from cm4vllm.common.errors import CmError, InstallError, RunFailed, ServerUnreachable
from cm4vllm.common.processes import die_with_parent
from cm4vllm.common.records import read_record
from cm4vllm.loadgen.client import Client, Completion, Counts
from cm4vllm.loadgen.connection import Address, resolve
from cm4vllm.loadgen.library import SampleLibrary, read_prompts
from cm4vllm.loadgen.messages import Ended, Failed, Message, Progress
from cm4vllm.loadgen.records import ClientRecord, RunSettings
from cm4vllm.loadgen.settings import require_room
from cm4vllm.loadgen.wire import Sampling, completion_body
from cm4vllm.rules.benchmarks import BENCHMARKS
from cm4vllm.rules.rounds import ROUNDS
from cm4vllm.rules.scenarios import Mode, Scenario

__all__ = ["main"]

#: How long a run that has failed goes on, so that its report can tell one bad request from a server that is gone.
GRACE_S = 1.0
#: The interpreter's default of 5 ms between threads would show in the measured TTFT.
SWITCH_INTERVAL_S = 1e-4

_INT_BYTES = 4  # array("i"): a C int has 32 bits on every platform LoadGen has a wheel for


def main(argv: Sequence[str]) -> int:
    """Make the run; return the process's exit code."""
    die_with_parent()
    # Ctrl-C reaches the whole foreground group; the parent decides, and a Python handler could not run inside LoadGen.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings_file, folder = Path(argv[1]), Path(argv[2])
    try:
        _say(_run(read_record(settings_file, RunSettings), folder))
    except CmError as error:
        _say(Failed(exit_code=error.exit_code, what=error.what, cause=error.cause, remedy=error.remedy))
        return error.exit_code
    return 0


def _run(settings: RunSettings, folder: Path) -> Message:
    loadgen = _import_loadgen()
    test = _test_settings(loadgen, settings, folder)
    prompts = read_prompts(settings.dataset, settings.samples)
    require_room(settings, max(map(len, prompts)))
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sink = _LoadGenSink(loadgen, settings)
    thread = _ClientThread(settings, sink)
    sampling = Sampling(settings.server.model_name, settings.max_tokens, settings.min_tokens, settings.stream_interval)

    def serialise(prompt: list[int]) -> bytes:
        body = completion_body(sampling, prompt)
        return thread.address.head("/v1/completions", len(body)) + body

    duration = _test(loadgen, test, folder, SampleLibrary(prompts, serialise), thread)
    thread.stop()
    if sink.failed_count:
        raise _failure(settings, thread.client.counts)
    return Ended(client=_client_record(thread.client.counts), duration_s=duration, versions=_versions())


def _test(loadgen: Any, test: Any, folder: Path, library: SampleLibrary, thread: _ClientThread) -> float:
    """Run LoadGen's test to its end, on this thread; return its duration in s."""

    def issue(samples: Sequence[Any]) -> None:
        requests = library.requests
        thread.submit([(sample.id, requests[sample.index]) for sample in samples])

    log = loadgen.LogSettings()
    log.log_output.outdir = str(folder)
    log.log_output.copy_summary_to_stdout = False
    log.enable_trace = False
    sut = loadgen.ConstructSUT(issue, lambda: None)
    qsl = loadgen.ConstructQSL(len(library), len(library), library.load, library.unload)
    gc.collect()
    gc.freeze()
    begin = time.monotonic()
    # LoadGen would take up an audit.config of the working directory: only one in the run's folder may count.
    loadgen.StartTestWithLogSettings(sut, qsl, test, log, str(folder / "audit.config"))
    duration = time.monotonic() - begin
    loadgen.DestroyQSL(qsl)
    loadgen.DestroySUT(sut)
    return duration


class _LoadGenSink:
    """Hands answers to LoadGen, as int32 tokens; runs in the client's thread."""

    def __init__(self, loadgen: Any, settings: RunSettings) -> None:
        self.failed_count = 0
        self._loadgen = loadgen
        # LoadGen wants to be told of the first token in every scenario but Offline.
        self._tell_first = settings.scenario is not Scenario.OFFLINE
        self._on_failure: Any = lambda: None

    def on_failure(self, call: Any) -> None:
        """Have `call` called at the first failure."""
        self._on_failure = call

    def first_token(self, key: int, token: int) -> None:
        if self._tell_first:
            data = array("i", (token,))
            self._loadgen.FirstTokenComplete(
                [self._loadgen.QuerySampleResponse(key, data.buffer_info()[0], _INT_BYTES)])

    def completed(self, completions: Sequence[Completion]) -> None:
        response = self._loadgen.QuerySampleResponse
        responses = []
        for completion in completions:
            # LoadGen copies the data during the call; `completions` keeps it alive as long.
            address, count = completion.tokens.buffer_info()
            responses.append(response(completion.key, address, count * _INT_BYTES, count))
        self._loadgen.QuerySamplesComplete(responses)

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        """Complete the query empty, so that LoadGen can end; the run as a whole fails."""
        empty = [self._loadgen.QuerySampleResponse(key, 0, 0, 0)]
        if self._tell_first and not first_token_seen:
            # Without it LoadGen 6.0.17 reads past its table of first tokens (logging.cc, RecordSampleCompletion).
            self._loadgen.FirstTokenComplete(empty)
        self._loadgen.QuerySamplesComplete(empty)
        self.failed_count += 1
        if self.failed_count == 1:
            self._on_failure()


class _ClientThread:
    """The client and its event loop, in a thread beside LoadGen."""

    def __init__(self, settings: RunSettings, sink: _LoadGenSink) -> None:
        self._settings = settings
        self._sink = sink
        self._submitted = 0
        self._begin = time.monotonic()
        self._stop: asyncio.Event
        started: Future[tuple[asyncio.AbstractEventLoop, Client, Address]] = Future()
        self._thread = threading.Thread(target=self._main, args=(started,), name="client", daemon=True)
        self._thread.start()
        self._loop, self.client, self.address = started.result()

    def submit(self, requests: list[tuple[int, Any]]) -> None:
        """Take what LoadGen issues; called on LoadGen's thread."""
        if not self._submitted:
            self._begin = time.monotonic()
        self._submitted += len(requests)
        self.client.submit(requests)

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _main(self, started: Future[tuple[asyncio.AbstractEventLoop, Client, Address]]) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(started))
        except Exception as error:
            # Without its client LoadGen would wait for ever.
            traceback.print_exc()
            _say(Failed(exit_code=RunFailed.exit_code, what="the client broke", cause=repr(error),
                        remedy="report it, with the run's console.log"))
            os._exit(RunFailed.exit_code)

    async def _serve(self, started: Future[tuple[asyncio.AbstractEventLoop, Client, Address]]) -> None:
        settings = self._settings
        offline = settings.scenario is Scenario.OFFLINE
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            address = await resolve(settings.server.endpoint)
        except OSError as error:
            started.set_exception(ServerUnreachable(
                f"nothing answers at {settings.server.endpoint}", cause=error.strerror or str(error),
                remedy="start the server, or correct --api_server",
            ))
            return
        client = Client(address, self._sink, streamed=settings.stream_interval > 0,
                        max_in_flight=settings.max_in_flight if offline else None)
        self._sink.on_failure(lambda: loop.call_later(GRACE_S, self._abort))
        started.set_result((loop, client, address))
        while not self._stop.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), timeout=1.0)
            except TimeoutError:
                self._report()
        client.close()

    def _report(self) -> None:
        counts = self.client.counts
        # All of an Offline run is issued at once; how many queries a Server run will issue only LoadGen knows.
        known = self._settings.scenario is Scenario.OFFLINE or self._settings.mode is Mode.ACCURACY
        total = max(self._submitted, self._settings.samples) if known else None
        _say(Progress(done=counts.completed + counts.failed, total=total,
                      elapsed_s=round(time.monotonic() - self._begin, 3), tokens=counts.completion_tokens))

    def _abort(self) -> None:
        """End the process: LoadGen has no way to be stopped, and nothing of this run can be used."""
        counts = self.client.counts
        error = _failure(self._settings, counts)
        _say(Failed(exit_code=error.exit_code, what=error.what, cause=error.cause, remedy=error.remedy,
                    client=_client_record(counts)))
        os._exit(error.exit_code)


def _failure(settings: RunSettings, counts: Counts) -> RunFailed:
    causes = "\n".join(f"{count} x {cause}" for cause, count in counts.failures.most_common(5))
    log = f" (its log: {settings.server.log})" if settings.server.log else ""
    return RunFailed(
        f"{counts.failed} of {counts.requests} requests of the {settings.scenario} {settings.mode} run failed",
        cause=causes, remedy=f"look what the server says{log}, then run again; nothing of this run is kept as a result",
    )


def _client_record(counts: Counts) -> ClientRecord:
    return ClientRecord(
        requests=counts.requests, completed=counts.completed, failed=counts.failed, retries=counts.retries,
        prompt_tokens=counts.prompt_tokens, completion_tokens=counts.completion_tokens, failures=dict(counts.failures),
    )


def _import_loadgen() -> Any:
    try:
        import mlperf_loadgen
    except ImportError as error:
        raise InstallError("LoadGen is not installed in this Python", cause=str(error),
                           remedy="cm run script --tags=get,mlperf,inference,loadgen") from error
    return mlperf_loadgen


def _test_settings(loadgen: Any, settings: RunSettings, folder: Path) -> Any:
    """Return LoadGen's settings from mlperf.conf and our user.conf, checked to be those of the round and benchmark."""
    test = loadgen.TestSettings()
    if test.FromConfig(str(folder / "user.conf"), settings.loadgen_name, settings.scenario.value, 1) not in (0, None):
        raise RunFailed("LoadGen refuses user.conf", cause=settings.user_conf)
    test.scenario = getattr(loadgen.TestScenario, settings.scenario)
    modes = {Mode.PERFORMANCE: loadgen.TestMode.PerformanceOnly, Mode.ACCURACY: loadgen.TestMode.AccuracyOnly}
    test.mode = modes[settings.mode]
    round_ = ROUNDS[settings.round]
    if (test.qsl_rng_seed, test.sample_index_rng_seed, test.schedule_rng_seed) != round_.seeds:
        raise InstallError(f"the LoadGen in use is not that of round {round_.name}",
                           cause="its seeds differ, and the checker compares them",
                           remedy=f"pip install mlcommons-loadgen=={round_.loadgen}")
    limits = BENCHMARKS[settings.benchmark].limits.get(settings.scenario)
    expected = None if limits is None else (round(limits.ttft_ms * 1e6), round(limits.tpot_ms * 1e6))
    if not test.use_token_latencies or (expected and (test.ttft_latency, test.tpot_latency) != expected):
        raise RunFailed(f"LoadGen does not measure {settings.loadgen_name} with the limits of {settings.benchmark}",
                        cause="its mlperf.conf has others, or does not know the name",
                        remedy=f"pip install mlcommons-loadgen=={round_.loadgen}")
    return test


def _raise_file_limit() -> None:
    """Allow as many connections as the system does: each stream of a Server run has its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _versions() -> dict[str, str]:
    packages = ("mlcommons-loadgen", "uvloop", "httptools", "msgspec")
    return {"python": platform.python_version(), "cm4vllm": __version__,
            **{package: metadata.version(package) for package in packages}}


def _say(message: Message) -> None:
    sys.stdout.write(msgspec.json.encode(message).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))

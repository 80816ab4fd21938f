"""The command line as a user types it, in the CM home that `make setup` prepared."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from cmind import cli
from tests.script.main_job import SAMPLES, write_model

from cm4vllm.campaign import entry
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.engine import automation
from cm4vllm.engine.plan import graph
from traps import imported, set_traps

ROOT = Path(__file__).parents[2]


@dataclass
class Finished:
    """A `cm` command that ended: its exit code and what it printed."""

    code: int
    output: str

    def refused_with(self, code: int, *words: str) -> None:
        """Assert the exit code, one message with the words in it, and no traceback."""
        assert self.code == code, self.output
        assert self.output.count("CM error:") == 1, self.output
        assert "Traceback" not in self.output, self.output
        for word in words:
            assert word in self.output, self.output


@dataclass
class Running:
    """A `cm` command under way in a process group of its own."""

    process: subprocess.Popen
    log: Path
    started: set[psutil.Process] = field(default_factory=set)

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for(self, text: str, timeout_s: float) -> None:
        """Wait until `text` was printed; remember every process that was started until then."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output():
            ended = self.process.poll() is not None
            assert not ended or text in self.output(), f"ended before {text!r} was printed:\n{self.output()}"
            assert time.monotonic() < deadline, f"{text!r} was not printed in {timeout_s} s:\n{self.output()}"
            time.sleep(0.2)
        with suppress(psutil.NoSuchProcess):
            self.started = set(psutil.Process(self.process.pid).children(recursive=True))

    def finish(self, timeout_s: float = 60) -> Finished:
        self.process.wait(timeout_s)
        return Finished(self.process.returncode, self.output())

    def no_orphans(self, timeout_s: float = 15) -> None:
        """Assert that all processes that were started are gone within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while left := [process for process in self.started if _alive(process)]:
            assert time.monotonic() < deadline, [process.cmdline() for process in left if _alive(process)]
            time.sleep(0.2)


def _alive(process: psutil.Process) -> bool:
    """Return True if a process goes on, whatever process has its number later."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_with_the_tests() -> None:
    """Have the kernel end `cm`, and so the server that it waits for, when the tests are killed."""
    die_with_parent(signal.SIGTERM)


class Cm:
    """The `cm` of this environment, in a folder of the test's own.

    What is started is the program itself. What is called runs in a copy of this process, which has read the program
    already: half a second less of each; what it prints, its exit code and what it starts are the same. With `itself`
    it is the program there, too.
    """

    #: What a command imports before it knows its recipe.
    read = (cli, automation, graph, entry)

    def __init__(self, cwd: Path, *, itself: bool = False) -> None:
        self.cwd = self.logs = cwd
        self.itself = itself
        self.env: dict[str, str] = {}
        self.running: list[Running] = []
        self.called = 0

    def __call__(self, *words: str, timeout_s: float = 120) -> Finished:
        if self.itself:
            return self.start(*words).finish(timeout_s)
        log = self.logs / f"cm-{self.called}.txt"
        self.called += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: this process has threads
            copy = multiprocessing.get_context("fork").Process(target=self._run, args=(words, log))
            copy.start()
        copy.join(timeout_s)
        if copy.exitcode is None:
            os.killpg(copy.pid, signal.SIGINT)
            copy.join(60)
            pytest.fail(f"{words} did not end in {timeout_s} s:\n{log.read_text()}")
        return Finished(copy.exitcode, log.read_text(errors="replace"))

    def _run(self, words: tuple[str, ...], log: Path) -> None:
        os.setsid()
        end_with_the_tests()
        with log.open("w") as file, Path(os.devnull).open() as nothing:
            for at, target in enumerate((nothing, file, file)):
                os.dup2(target.fileno(), at)
        sys.stdout, sys.stderr = (os.fdopen(at, "w", buffering=1, errors="replace") for at in (1, 2))
        sys.argv = ["cm", *words]
        os.chdir(self.cwd)
        os.environ.update(self.env)
        warnings.resetwarnings()
        cli.run(list(words))

    def start(self, *words: str, inside: tuple[str, ...] = ()) -> Running:
        """Start `cm`; `inside` is a command that runs another, such as `ip netns exec NAME`."""
        return self.start_program(*inside, str(Path(sys.executable).with_name("cm")), *words)

    def start_program(self, *words: str, log: str = "") -> Running:
        """Start a program, which may have its messages in a `log` of its own."""
        own = self.logs / f"cm-{len(self.running)}.log"
        with own.open("w") as file:
            process = subprocess.Popen(
                words,
                cwd=self.cwd,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_the_tests,
            )
        running = Running(process, self.cwd / log if log else own)
        self.running.append(running)
        return running

    def end(self) -> None:
        """End what still runs."""
        for running in self.running:
            if running.process.poll() is None:
                os.killpg(running.process.pid, signal.SIGINT)
                running.process.wait(60)

    def main_job(self, *flags: str, tags: str = "", **kwargs: float) -> Finished:
        return self("run", "script", f"--tags=run-mlperf,inference{tags}", "--quiet", *flags, **kwargs)

    def start_main_job(self, *flags: str, tags: str = "") -> Running:
        return self.start("run", "script", f"--tags=run-mlperf,inference{tags}", "--quiet", *flags)


@pytest.fixture(scope="module")
def start_cm(tmp_path_factory):
    """Yield a function that makes a `cm` command in a folder of its own; end what its tests left running."""
    if not os.environ.get("CM_REPOS"):
        pytest.skip("CM_REPOS names no CM home: run by `make test`")
    made = []

    def make(*, itself: bool = False) -> Cm:
        made.append(Cm(tmp_path_factory.mktemp("cm"), itself=itself))
        set_traps(made[-1].cwd)
        return made[-1]

    yield make
    for command in made:
        command.end()
        assert not imported(command.cwd)


@pytest.fixture
def cm(start_cm, request):
    """Yield the `cm` command, the program itself beside a real vLLM; end what a failed test left running."""
    command = start_cm(itself=request.node.get_closest_marker("e2e") is not None)
    yield command
    command.end()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model folder and a dataset file of a user's own."""
    folder = tmp_path_factory.mktemp("files")
    write_model(folder / "model")
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        write_model(folder / f"pointer-{name}")
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
        (folder / f"pointer-{name}" / name).write_text(pointer)
    row = {"input": "a", "tok_input": [1], "output": "b"}
    (folder / "cnn_eval.json").write_text(json.dumps([row] * SAMPLES))
    (folder / "set.json").write_text(json.dumps([row] * 5))
    os.mkfifo(folder / "pipe")
    (folder / "locked" / "test" / ".lock").mkdir(parents=True)
    return folder

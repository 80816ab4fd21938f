"""The process between `cm` and a server: whatever happens to either, no process of the server is left behind.

    python -m cm4vllm.serving.supervisor SPEC

SPEC is a JSON file {argv, env, log, state, grace_s, last, apart}. The supervisor starts argv in a session of its own,
with its output in the log, and ends all its descendants (SIGTERM, after grace_s seconds SIGKILL) as soon as

- its standard input reaches its end: `cm` holds the other end, and however it dies, the kernel closes that,
- it gets SIGTERM, SIGINT or SIGHUP,
- the server ends by itself, or, once READY has come through standard input, one of its engines or workers does: until
  then a failing engine is given the time to say why.

It is its descendants' subreaper (prctl(2)): processes whose parents died, as vLLM's engine cores may be, become its
children instead of init's, so that it finds and reaps all of them. When it is killed itself, the kernel kills them:
each watches the supervisor's pipe (end_with_supervisor/sitecustomize.py). The name of the pipe in their environment
also distinguishes our processes from others (own_supervisors.py). In the state file it notes what it started, why it
ends that as soon as it knows, and how it ended. Only the standard library is imported.

A server in a container need not be a descendant: the engine's daemon may have started it. So `last` is the command that
removes the container, run when the server has been asked to end, and the container itself ends with a named pipe that
only the supervisor holds open (in_container/first_process.py). In argv and `last`, {watched} stands for the folder of
that pipe, {container} for a name that no other container has, {supervisor} for the supervisor's process ID.

With `-` for SPEC the specification is the first line of standard input. Then nothing is written to files: the server's
output goes to standard output and the states to standard error, a line of JSON each. A launcher carries these streams
from and to another node, and no secret in the environment of the specification stands in a file or a command line.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_json
from cm4vllm.common.folders.owned_folders import make_way
from cm4vllm.common.programs.processes import exit_in_words, raise_open_files, safe_environment
from cm4vllm.serving.carried_variables import without_service_links
from cm4vllm.serving.supervision.ipc_files import BASE, IpcFiles

#: The environment key of the supervisor's pipe, /proc/<pid of the supervisor>/fd/<number>, which closes when it dies.
SUPERVISOR_PIPE = "CM4VLLM_SUPERVISOR_PIPE"
#: The name of the pipe in the folder {watched}.
WATCHED_PIPE = "supervisor"
#: Written to the supervisor when the server is ready: all its engines and workers are there.
READY = b"+"
#: The beginnings of the titles of vLLM's own processes; others of the server may come and go.
_ENGINES = "VLLM::"

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: The reason to end that is the server's own: its exit status says the rest.
_OWN_END = "it ended by itself"
#: Between two looks for processes that do not end.
_LOOK_S = 0.05
#: Seconds between SIGTERM and SIGKILL for processes that the server leaves behind.
_LEFTOVERS_S = 2.0
#: The command that removes a container gets this long.
_LAST_S = 20.0
#: Between two looks whether the parent is still the one that started us, where nothing else wakes us.
_PARENT_S = 1.0


@dataclass
class Supervisor:
    """One server with all processes that it starts, from its start to the end of the last one."""

    argv: list[str]
    env: Mapping[str, str]
    log: Path | None
    state: Path | None
    grace_s: float
    last: Sequence[str] = ()
    apart: bool = False
    reason: str = ""
    _engines: dict[int, tuple[int, str]] = field(default_factory=dict)
    _ready: bool = False

    def run(self) -> int:
        """Start the server, wait for a reason to end, end everything; return the server's exit status."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        pipe, _held = os.pipe()  # not inherited by children: the writing end is ours alone
        wake = self._wake_on_signals()
        parent = os.getppid()
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            ipc_files = IpcFiles.begin()
        except OSError as error:
            self._note(None, 127, f"the folder for its sockets cannot be made: {error.filename}: {error.strerror}")
            return 127
        names = {"{container}": ipc_files.folder.name, "{supervisor}": str(os.getpid())}
        if any("{watched}" in word for word in self.argv):
            names["{watched}"] = str(_watched_folder(ipc_files.folder))
        argv, last = ([_fill(word, names) for word in words] for words in (self.argv, self.last))
        with contextlib.nullcontext(sys.stdout.buffer) if self.log is None else self.log.open("ab") as log:
            try:
                child = subprocess.Popen(
                    argv,
                    env=self._environment(pipe, ipc_files),
                    cwd=ipc_files.empty_folder() if self.apart else None,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                ipc_files.remove()
                self._note(None, 127, f"{self.argv[0]} cannot be started: {error.strerror}")
                return 127
        self._note(child.pid, None, "")
        self._wait(child, wake, parent, ipc_files)
        self._note(child.pid, child.returncode, self.reason)  # at once: to end all of it may take seconds
        ipc_files.note_memory(descendants(os.getpid()))
        self._end_all(child, last)
        ipc_files.remove()
        status = child.returncode if child.returncode is not None else 0
        self._note(child.pid, status, self.reason)
        return status

    def _environment(self, pipe: int, ipc_files: IpcFiles) -> dict[str, str]:
        # Our packages are not the server's: it has an environment of its own, where its bytecode is kept.
        inherited = {**without_service_links(os.environ), "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "", **self.env}
        site = str(Path(__file__).with_name("end_with_supervisor"))
        held = {
            SUPERVISOR_PIPE: f"/proc/{os.getpid()}/fd/{pipe}",
            "PYTHONPATH": os.pathsep.join(filter(None, (site, inherited["PYTHONPATH"]))),
            BASE: str(ipc_files.folder),
            "SPT_NOENV": "1",  # setproctitle, which vLLM calls, would write its title over the environment in /proc
        }
        env = safe_environment({**inherited, **held})
        # A container engine finds its containers below the folder for temporary files.
        in_container = any("{container}" in word for word in self.argv)
        return env if in_container else {**env, **ipc_files.temporary(env)}

    def _wake_on_signals(self) -> int:
        """Have every signal of interest wake the select() below; return the descriptor to select on."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in _SIGNALS:
            signal.signal(signum, self._asked_by_signal)
        return read

    def _asked_by_signal(self, signum: int, _frame: object) -> None:
        self.reason = self.reason or f"ended by {signal.Signals(signum).name}"

    def _wait(self, child: subprocess.Popen[bytes], wake: int, parent: int, ipc_files: IpcFiles) -> None:
        owner = sys.stdin.fileno()
        while not self.reason:
            ready, _, _ = select.select([wake, owner, *(self._engines if self._ready else ())], [], [], _PARENT_S)
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            _reap(child)
            if child.returncode is not None:
                self.reason = self.reason or _OWN_END
            for descriptor in self._engines.keys() & set(ready):
                self.reason = self.reason or _process_end(*self._engines[descriptor])
            if not self._ready:
                self._watch_engines()
                ipc_files.note_memory(descendants(os.getpid()))
            if owner in ready and os.read(owner, 1) == READY:
                self._ready = True
            elif owner in ready or os.getppid() != parent:
                self.reason = self.reason or "the run that owned it ended"

    def _watch_engines(self) -> None:
        """Have select() tell the end of each engine and worker: vLLM's own HTTP process may be late to see it.

        A process that has the title of its parent is a forked copy, until it executes a program of its own.
        """
        known = {pid for pid, _ in self._engines.values()}
        for pid in set(descendants(os.getpid())) - known:
            with contextlib.suppress(OSError):
                title = title_of(pid)
                if title.startswith(_ENGINES) and title != title_of(parent_of(pid) or 0):
                    self._engines[os.pidfd_open(pid)] = (pid, title)

    def _end_all(self, child: subprocess.Popen[bytes], last: Sequence[str]) -> None:
        """Ask the server to end, remove its container, then end what is left, until nothing is there."""
        deadline = time.monotonic() + self.grace_s
        if child.returncode is None:
            _ask_to_end(child.pid)
        while child.returncode is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            _reap(child)
        if last:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(last, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LAST_S, check=False)
        for pid in descendants(os.getpid()):
            _ask_to_end(pid)
        patience = time.monotonic() + min(_LEFTOVERS_S, self.grace_s)
        while left := descendants(os.getpid()):
            if time.monotonic() >= patience:
                for pid in left:
                    _send(pid, signal.SIGKILL)
            time.sleep(_LOOK_S)
            _reap(child)
        _reap(child)

    def _note(self, child: int | None, status: int | None, reason: str) -> None:
        state = {
            "supervisor": os.getpid(),
            "server": child,
            "status": status,
            "reason": reason,
            "noted_at_s": time.monotonic(),
        }
        # A full disk, or a launcher that has ended, must not keep the server's processes alive.
        with contextlib.suppress(OSError, CmError):
            if self.state is None:
                os.write(sys.stderr.fileno(), json.dumps(state).encode() + b"\n")
            else:
                write_json(self.state, state)


def _watched_folder(sockets: Path) -> Path:
    """Return a new folder with a named pipe that this process holds open for writing as long as it lives."""
    folder = sockets / "watched"
    folder.mkdir()
    folder.chmod(0o755)  # a container may run as another user
    pipe = folder / WATCHED_PIPE
    os.mkfifo(pipe)
    pipe.chmod(0o644)
    os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
    return folder


def _fill(word: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(name, value)
    return word


def process_ids() -> list[int]:
    """Return the process IDs that /proc shows."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def descendants(pid: int) -> list[int]:
    """Return the living descendants of process `pid`, zombies left out, from /proc."""
    parents = {child: parent for child in process_ids() if (parent := parent_of(child)) is not None}
    processes: list[int] = []
    layer = {pid}
    while layer:
        layer = {child for child, parent in parents.items() if parent in layer}
        processes += sorted(layer)
    return processes


def parent_of(pid: int) -> int | None:
    """Return the parent of a living process, None for one that is gone or a zombie (proc(5), /proc/pid/stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[1])


def title_of(pid: int) -> str:
    """Return a process's command line, or the title that it gave itself. Raises OSError when it is gone."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def end_in_words(state: Mapping[str, Any], otherwise: str) -> str:
    """Return why a server ended, by the last state of its supervisor; `otherwise` if that states no reason."""
    reason, status = str(state.get("reason") or otherwise), state.get("status")
    # With another reason the status is only how the server was ended.
    return f"{reason}: {exit_in_words(status)}" if reason == _OWN_END and isinstance(status, int) else reason


def _process_end(pid: int, title: str) -> str:
    """Return the way in which a process of the server ended, from a zombie's exit_code in /proc (as of waitpid(2))."""
    how = "ended"
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = os.waitstatus_to_exitcode(int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[-1]))
        how = f"ended, {exit_in_words(status)}"
    return f"its process {title} ({pid}) {how}"


def _reap(server: subprocess.Popen[bytes]) -> None:
    """Reap all children that have ended: the server, and those that became ours when their parents died."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == server.pid:
            server.returncode = os.waitstatus_to_exitcode(status)


def _ask_to_end(pid: int) -> None:
    _send(pid, signal.SIGTERM)
    _send(pid, signal.SIGCONT)  # one that is stopped would only end by being killed


def _send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def start_supervised(
    argv: list[str],
    env: Mapping[str, str],
    *,
    spec: Path,
    log: Path,
    state: Path,
    grace_s: float,
    secrets: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    last: Sequence[str] = (),
    apart: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a supervisor of `argv` and return it; what it supervises ends when its standard input is closed.

    It runs in a session of its own: Ctrl-C in the terminal reaches us, and we end the server in order. `secrets` are
    variables of the environment that are written to no file; `cwd` is the folder that `argv` works in, with `apart` an
    empty one made for it, `last` the command that removes its container.
    """
    earlier = object_of(spec)
    if "argv" not in earlier:
        make_way(spec)
    for name, place in (("log", log), ("state", state)):
        if Path(str(earlier.get(name))).name == place.name:  # what the specification of an earlier start names is ours
            place.unlink(missing_ok=True)
        else:
            make_way(place)
    files = {"log": str(log), "state": str(state)}
    write_json(spec, {"argv": argv, "env": dict(env), **files, "grace_s": grace_s, "last": list(last), "apart": apart})
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "cm4vllm.serving.supervisor", str(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd=cwd,
        env=safe_environment({**os.environ, **(secrets or {}), "PYTHONPATH": path}),
    )


def main(arguments: list[str]) -> int:
    """Run the supervisor of the specification in the file `arguments[0]`, or in the first line of standard input."""
    # vLLM raises its limit itself only where the system allows 65,535; else connections beyond the soft one wait.
    raise_open_files()
    streams = arguments[0] == "-"
    spec: dict[str, Any] = json.loads(_first_line() if streams else Path(arguments[0]).read_bytes())
    return (
        Supervisor(
            argv=spec["argv"],
            env=spec["env"],
            log=None if streams else Path(spec["log"]),
            state=None if streams else Path(spec["state"]),
            grace_s=float(spec["grace_s"]),
            last=spec.get("last") or (),
            apart=bool(spec.get("apart")),
        ).run()
        & 0xFF
    )


def _first_line() -> bytes:
    """Read one line of standard input, and no byte after it."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A sandbox for programs that a model wrote: bubblewrap, which needs no daemon and no rights beyond user namespaces.

A program in it has no network (a network namespace of its own), no file of the user (the system's programs are mounted
read-only, what it writes is in memory and ends with it), no process but its own, none of the user's environment, and
limits of time, memory, processes and file size. The kernel's own limits hold each process. What all of them take
together is checked here many times a second: the limit of processes does not hold a user who is root. Calls that make
memory which belongs to no process fail (inside/limited.py).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cm4vllm.common.programs.processes import run

_LIMITED = Path(__file__).with_name("inside") / "limited.py"
#: Folders of the system that programs, compilers and libraries come from; read-only inside.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/php")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Where Node.js finds modules that are installed for all users.
NODE_MODULES = ("/usr/local/lib/node_modules", "/usr/lib/node_modules", "/usr/share/nodejs")
#: Lines of /proc/PID/status, in kB: memory of the process alone, shared memory, both kinds in the swap.
_TAKEN = ("RssAnon:", "RssShmem:", "VmSwap:")
#: The interpreter itself: an environment of it would bring its packages along.
PYTHON = Path(sys.executable).resolve()
MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """The limits on the programs of one sandbox; `seconds` are wall-clock time for each answer."""

    seconds: float = 60.0
    memory_bytes: int = 2048 * MIB
    files_bytes: int = 256 * MIB
    processes: int = 128


@dataclass
class Held:
    """The reason for which a sandbox was ended from outside; empty while it was not."""

    why: str = ""


@cache
def sandbox_lacks() -> str:
    """Return the reason why this machine can make no sandbox, with the command that helps; empty where it can."""
    if shutil.which("bwrap") is None:
        return "no sandbox: bwrap not found on PATH (install it: apt-get install bubblewrap, or dnf install bubblewrap)"
    try:
        done = run([*Sandbox().words(), "true"], timeout_s=20.0)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no sandbox: bwrap does not run: {error}"
    if done.ok:
        return ""
    return (
        f"no sandbox: bwrap is refused by this system: {done.tail(1)} (allow user namespaces: sysctl -w "
        "user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1 "
        "kernel.apparmor_restrict_unprivileged_userns=0, those of them that the kernel has; a container is started "
        "with --security-opt seccomp=unconfined --security-opt systempaths=unconfined)"
    )


@dataclass(frozen=True)
class Sandbox:
    """`read_only` are folders that are visible inside, each under a path of its own."""

    limits: Limits = field(default_factory=Limits)
    read_only: Mapping[Path, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Return the command line that a program's own is appended to."""
        words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
        for name, value in (
            ("PATH", _PATH),
            ("HOME", "/tmp"),  # noqa: S108 - inside the sandbox it is its own
            ("LANG", "C.UTF-8"),
            ("NODE_PATH", ":".join(NODE_MODULES)),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ):
            words += ["--setenv", name, value]
        words += ["--proc", "/proc", "--dev", "/dev"]
        for folder in ("/dev/shm", "/tmp"):  # noqa: S108 - mounted empty inside the sandbox
            words += ["--size", str(self.limits.files_bytes), "--tmpfs", folder]
        for folder in (*_SYSTEM, str(PYTHON.parent.parent)):  # this Python's may be one of the system's
            words += ["--ro-bind-try", folder, folder]
        for place, inside in {_LIMITED: "/limited.py", **self.read_only}.items():
            words += ["--ro-bind", str(place), inside]
        limits = (self.limits.memory_bytes, self.limits.processes, self.limits.files_bytes)
        # /proc read-only: a user who is root outside could write the system's settings through it.
        words += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
        words += ["--chdir", "/tmp", "--hostname", "sandbox"]  # noqa: S108 - the sandbox's own
        return [*words, "--", str(PYTHON), "-I", "/limited.py", *map(str, limits)]

    @contextlib.contextmanager
    def start(
        self, argv: Sequence[str], stdin: int = subprocess.PIPE
    ) -> Iterator[tuple[subprocess.Popen[bytes], Held]]:
        """Start a program with pipes for its input and output; at the end of the block end it and its descendants.

        `stdin` may be a descriptor instead. Where the program and its descendants together exceed the limits, they are
        ended at once, and `Held` gives the reason.
        """
        held = Held()
        process = subprocess.Popen(
            [*self.words(), *argv],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", _PATH)},
            process_group=0,
        )
        watch = threading.Thread(target=self._watch, args=(process, held), daemon=True)
        watch.start()
        try:
            yield process, held
        finally:
            _end(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            watch.join()

    def _watch(self, process: subprocess.Popen[bytes], held: Held) -> None:
        """End the program as soon as it exceeds a limit, and note which one in `held`."""
        while process.poll() is None:
            if excess := self._exceeded_limit(_tree(process.pid, self.limits.processes)):
                held.why = held.why or excess
                _end(process)
                return
            time.sleep(0.05)

    def _exceeded_limit(self, pids: Sequence[int]) -> str:
        """Return in words the limit that these processes exceed together, empty if none."""
        if len(pids) > self.limits.processes:
            return f"more than {self.limits.processes} processes"
        taken = sum(map(_memory, pids))
        return f"more than {self.limits.memory_bytes // MIB} MiB of memory" if taken > self.limits.memory_bytes else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End bwrap and, while it still stands in its group, the first process inside.

    That one waits for bwrap before it is bound to its end: alone it would stay.
    """
    if process.returncode is None:  # its number is not another's yet
        os.killpg(process.pid, signal.SIGKILL)


def _tree(pid: int, most: int) -> list[int]:
    """Return a process and its descendants, no more than are needed to see that there are too many."""
    pids: list[int] = []
    waiting = [pid]
    while waiting and len(pids) <= most:
        parent = waiting.pop()
        pids.append(parent)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="ascii").split())
    return pids


def _memory(pid: int) -> int:
    """Return the memory of a process that no file on a disk backs, in bytes, shared memory too; 0 where it has ended.

    Pages that several processes share count in each of them.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        lines = [line.split() for line in status.splitlines() if line.startswith(_TAKEN)]
        return sum(int(number) for _, number, _ in lines) * 1024
    return 0

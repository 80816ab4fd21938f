"""Imported by every Python process of a server when it starts: has the kernel kill it when its supervisor is gone.

The supervisor alone holds the writing end of a pipe, whose reading end it shows as /proc/<pid>/fd/<n>. Each process
opens that, and asks the kernel to send it SIGKILL instead of SIGIO when the pipe changes (fcntl(2), F_SETSIG and
O_ASYNC): it changes when its writer dies. So it makes no difference which parent died before, whether a thread started
the process, or what it computes just then. Nothing of the package can be imported here, and the environment's own
sitecustomize must be found.
"""

import importlib
import os
import sys
from pathlib import Path

_KEY = "CM4VLLM_SUPERVISOR_PIPE"
_F_SETSIG = 10  # asm-generic/fcntl.h
_SIGKILL = 9


def _hold() -> None:
    import fcntl

    try:
        end = os.open(os.environ[_KEY], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(end, _F_SETSIG, _SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
        os.read(end, 1)  # nothing is ever written: this is the pipe's end, and the supervisor is gone already
    except BlockingIOError:
        return
    except OSError as error:
        print(f"the supervisor of this server has ended: {error}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), _SIGKILL)


def _next_sitecustomize() -> None:
    """Import the module that this one stands before, if there is one."""
    here = str(Path(__file__).parent)
    paths, sys.path[:] = sys.path[:], [path for path in sys.path if path != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.path[:] = paths
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


if _KEY in os.environ:
    _hold()
    os.register_at_fork(after_in_child=_hold)
_next_sitecustomize()

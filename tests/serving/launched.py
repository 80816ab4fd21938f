"""Servers that a test starts, and the processes that belong to them."""

import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
import peer

from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.server import start_all

PEER = [sys.executable, str(Path(peer.__file__)), "{port}"]


#: Starts a peer, and beside it a process that leaves the session, ignores SIGTERM and loses its parent.
STUBBORN = """
import os, signal, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    os._exit(0)
os.wait()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def settings(**more) -> ServerSettings:
    return ServerSettings(model="m", name=peer.MODEL, **more)


def launch(folder, *fault, timeout_s=60, argv=None, **more) -> ServerRecord:
    parts = [(settings(**more), folder)]
    return start_all(Path(sys.executable), parts, timeout_s=timeout_s, argv=argv or [*PEER, *fault])[0]


def family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def gone(processes, timeout_s=30) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(map(_lives, processes)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _lives(process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has ended in between
        return False

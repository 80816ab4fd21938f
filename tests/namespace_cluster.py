"""Two nodes on one machine: each is a network namespace and a UTS namespace with an sshd or a slurmd of its own.

    with namespace_cluster(folder, "ssh") as cluster: ...      # cluster.env for `cm`; cluster.nodes are its hosts
    with namespace_cluster(folder, "slurm") as cluster: ...    # cluster.env for sbatch and srun

A bridge joins both with this machine, which is the login node. They share its files, as the nodes of a cluster share a
file system, but no memory: each has a /dev/shm of its own. Keys, configurations and logs are in `folder`. Nothing is
installed unless CLUSTER_TESTS is `install`.
"""

import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

NODES = ("cmnode1", "cmnode2")
BRIDGE, LOGIN = "cmbridge", "10.214.0.1"
ADDRESSES = {"cmnode1": "10.214.0.11", "cmnode2": "10.214.0.12"}
#: The program of each package of Debian that a kind of cluster needs.
PACKAGES = {
    "ssh": {"/usr/sbin/sshd": "openssh-server", "ssh": "openssh-client"},
    "slurm": {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"},
}
_SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PasswordAuthentication no
ClientAliveInterval 5
ClientAliveCountMax 3
"""
_SSH = """
Host {name}
  HostName {address}
  User root
  IdentityFile {folder}/key
  UserKnownHostsFile {folder}/known_hosts
"""
_SLURM = """
ClusterName=namespaces
SlurmctldHost={host}({login})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MpiDefault=none
{nodes}
PartitionName=both Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """Nodes that are up. `env` reaches them; `daemons` are the processes of each that belong to it."""

    nodes: tuple[str, ...]
    env: dict[str, str]
    kind: str
    daemons: dict[str, set[int]] = field(default_factory=dict)

    def pids(self, node: str) -> list[int]:
        """Return the processes on a node beside its daemons."""
        own_pids = []
        for pid in map(int, _run("ip", "netns", "pids", node).split()):
            try:
                if pid not in self.daemons[node] and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    own_pids.append(pid)
            except psutil.NoSuchProcess:
                continue
        return own_pids

    def processes(self, node: str) -> list[str]:
        """Return the command lines of the processes on a node beside its daemons."""
        lines = []
        for pid in self.pids(node):
            try:
                lines.append(f"{pid} {' '.join(psutil.Process(pid).cmdline())}")
            except psutil.NoSuchProcess:
                continue
        return lines

    def wait_until_empty(self, timeout_s: float = 20) -> None:
        """Assert that no node has a process beside its daemons, within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while left := {node: own_pids for node in self.nodes if (own_pids := self.processes(node))}:
            assert time.monotonic() < deadline, left
            time.sleep(0.2)


def require_cluster(kind: str) -> None:
    """Skip the test where such a cluster cannot be made; install what it needs where CLUSTER_TESTS=install."""
    if os.geteuid():
        pytest.skip("network namespaces need root")
    missing = [package for program, package in PACKAGES[kind].items() if shutil.which(program) is None]
    if not missing:
        return
    if os.environ.get("CLUSTER_TESTS") != "install":
        pytest.skip(f"not installed: {', '.join(missing)}; CLUSTER_TESTS=install installs them (root, Debian)")
    if shutil.which("apt-get") is None:
        pytest.skip(f"not installed: {', '.join(missing)}, and this system has no apt-get")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "install", "--yes", "--no-install-recommends", *missing], check=True, env=env)


@contextmanager
def namespace_cluster(folder: Path, kind: str, *, private: Path | None = None):
    """Yield two nodes with an sshd or a slurmd each, until the end of the block.

    The folder `private` is another, empty one on the second node.
    """
    require_cluster(kind)
    with ExitStack() as stack:
        lock = stack.enter_context((Path(tempfile.gettempdir()) / "cm4vllm-namespace-cluster.lock").open("w"))
        fcntl.lockf(lock, fcntl.LOCK_EX)
        _remove_leftovers()
        _bridge(stack)
        for node in NODES:
            _namespace(stack, node)
        cluster = (_ssh if kind == "ssh" else _slurm)(stack, folder, private)
        for node in NODES:
            cluster.daemons[node] = {int(word) for word in _run("ip", "netns", "pids", node).split()}
        yield cluster


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def _remove_leftovers() -> None:
    """Remove the nodes of tests that were killed: with the lock held there are no others."""
    for node in NODES:
        _remove_node(node)
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)


def _remove_node(node: str) -> None:
    """Remove a node with all that runs on it, as a job of a failed test, which would keep its network."""
    pids = subprocess.run(["ip", "netns", "pids", node], capture_output=True, text=True, check=False).stdout
    for pid in map(int, pids.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", node], capture_output=True, check=False)
    subprocess.run(["ip", "link", "delete", _link(node)], capture_output=True, check=False)


def _link(node: str) -> str:
    """Return this machine's end of the link to a node."""
    return f"{node}h"


def _bridge(stack: ExitStack) -> None:
    made = subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"this machine permits no bridge: {made.stderr.decode()}")
    stack.callback(subprocess.run, ["ip", "link", "delete", BRIDGE], check=False)
    _run("ip", "addr", "add", f"{LOGIN}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")


def _namespace(stack: ExitStack, node: str) -> None:
    _run("ip", "netns", "add", node)
    stack.callback(_remove_node, node)
    link = _link(node)
    _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", node)
    _run("ip", "link", "set", link, "master", BRIDGE, "up")
    _run("ip", "-n", node, "addr", "add", f"{ADDRESSES[node]}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        _run("ip", "-n", node, "link", "set", device, "up")


def on_node(node: str, *words: str, private: Path | None = None) -> list[str]:
    """Return the command that runs another on a node, without a launcher."""
    folders = ["/dev/shm", *([str(private)] if private and node == NODES[1] else [])]
    own = f'hostname "$0" && for place in {shlex.join(folders)}; do mount -t tmpfs tmpfs "$place"; done && exec "$@"'
    inside = ["unshare", "--uts", "--ipc", "--mount", "sh", "-c", own, node, *words]
    # Not `ip netns exec`: its /sys has no control groups, without which slurmd does not start.
    return ["nsenter", f"--net=/run/netns/{node}", *inside]


def _daemon(stack: ExitStack, log: Path, *words: str, env: dict[str, str] | None = None) -> None:
    with log.open("ab") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )

    def end() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _listens(address: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((address, port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.1)
        else:
            return


def _ssh(stack: ExitStack, folder: Path, private: Path | None) -> Cluster:
    """Start an sshd on each node, and make an `ssh` that knows them: that of the user has no such hosts."""
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd separates its privileges
    for key in ("key", "host_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    (folder / "sshd_config").write_text(_SSHD.format(folder=folder))
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"{ADDRESSES[node]} {host_key}" for node in NODES))
    entries = (_SSH.format(name=node, address=ADDRESSES[node], folder=folder) for node in NODES)
    (folder / "ssh_config").write_text("".join(entries))
    commands = folder / "bin"
    commands.mkdir()
    (commands / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    (commands / "ssh").chmod(0o755)
    for node in NODES:
        log = folder / f"sshd-{node}.log"
        words = ("/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config"))
        _daemon(stack, log, *on_node(node, *words, private=private))
        _listens(ADDRESSES[node], 22, log)
    return Cluster(NODES, {"PATH": f"{commands}:{os.environ['PATH']}"}, "ssh")


def _slurm(stack: ExitStack, folder: Path, private: Path | None) -> Cluster:
    """Start munge and Slurm's controller here, and a slurmd on each node."""
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    cores = len(os.sched_getaffinity(0))
    nodes = "\n".join(f"NodeName={node} NodeAddr={ADDRESSES[node]} CPUs={cores} State=UNKNOWN" for node in NODES)
    conf = folder / "slurm.conf"
    conf.write_text(_SLURM.format(folder=folder, host=socket.gethostname(), login=LOGIN, nodes=nodes))
    _munge(stack, folder)
    env = {"SLURM_CONF": str(conf)}
    log = folder / "slurmctld.out"
    _daemon(stack, log, "slurmctld", "-D", "-f", str(conf), env=env)
    _listens(LOGIN, 6817, log)
    for node in NODES:
        log = folder / f"slurmd-{node}.out"
        words = ("slurmd", "-D", "-N", node, "-f", str(conf))
        _daemon(stack, log, *on_node(node, *words, private=private), env=env)
    deadline = time.monotonic() + 30
    while subprocess.run(["sinfo", "-h", "-o", "%t"], env={**os.environ, **env}, capture_output=True, text=True,
                         check=False).stdout.split() != ["idle"]:  # fmt: skip
        assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()
        time.sleep(0.2)
    return Cluster(NODES, env, "slurm")


def _munge(stack: ExitStack, folder: Path) -> None:
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
    words = [f"--{option}={folder}/{name}" for option, name in (names | {"seed-file": "munge.seed"}).items()]
    _daemon(stack, folder / "munge.out", "munged", "--foreground", "--force", *words)
    deadline = time.monotonic() + 30
    while not (folder / "munge.socket").exists():
        assert time.monotonic() < deadline, (folder / "munge.out").read_text()
        time.sleep(0.1)


if __name__ == "__main__":
    # A cluster to try by hand: python namespace_cluster.py ssh|slurm FOLDER, until SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    place = Path(sys.argv[2])
    place.mkdir(parents=True)
    with namespace_cluster(place, sys.argv[1]) as made:
        print(" ".join(f"{key}={value}" for key, value in made.env.items()), flush=True)
        with suppress(KeyboardInterrupt):
            time.sleep(24 * 3600)

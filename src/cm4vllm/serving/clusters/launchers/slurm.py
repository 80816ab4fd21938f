"""The nodes of a Slurm allocation: each program is a step of the job, started by srun."""

import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from cm4vllm.common.errors import UsageError
from cm4vllm.common.programs.processes import run

#: The steps run beside each other and beside the batch script, each with the processors and the memory of its node.
_OPTIONS = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",
    "--mem=0",
    "--cpu-bind=none",
    "--unbuffered",
    "--kill-on-bad-exit=1",
    "--input=0",
)


@dataclass(frozen=True)
class SlurmLauncher:
    """Nodes of the present allocation."""

    nodes: tuple[str, ...]
    name: ClassVar[str] = "slurm"
    job_variable: ClassVar[str] = "SLURM_JOB_ID"

    @classmethod
    def on(cls, names: tuple[str, ...], count: int, environ: Mapping[str, str]) -> Self:
        """Return the launcher for the nodes named, or the first `count`, of the allocation that this process runs in.

        Raises UsageError outside of an allocation, and for nodes that it does not have.
        """
        job = environ.get(cls.job_variable, "")
        if not job or shutil.which("srun") is None:
            raise UsageError(
                "--launcher=slurm needs an allocation of Slurm",
                cause="srun is not found on PATH" if job else "SLURM_JOB_ID is not set",
                remedy="run the command in a job: in a file for sbatch, or after salloc --nodes=N",
            )
        listed = environ.get("SLURM_JOB_NODELIST", "")
        done = run(["scontrol", "show", "hostnames", listed])
        allocated = tuple(done.output.split()) if done.ok else ()
        chosen = names or allocated[:count]
        foreign = [name for name in chosen if name not in allocated]
        if foreign or len(chosen) < count:
            raise UsageError(
                f"--nodes={','.join(names) or count} is more than the allocation of Slurm has",
                cause=f"the job {job} has {listed or 'no nodes'}" if done.ok else done.tail(3),
                remedy="give sbatch or salloc as many with its own --nodes, or name nodes of the job",
            )
        return cls(chosen)

    def words(self, node: str, program: Sequence[str]) -> list[str]:
        return ["srun", *_OPTIONS, f"--nodelist={node}", *program]

    def address(self, node: str) -> str:
        """Return the address that Slurm itself reaches a node at (NodeAddr)."""
        done = run(["scontrol", "show", "node", "--oneliner", node])
        address = re.search(r"\bNodeAddr=(\S+)", done.output) if done.ok else None
        try:
            return str(socket.getaddrinfo(address[1] if address else node, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise UsageError(
                f"the node {node} has no address",
                cause=f"{address[1] if address else node}: {error.strerror or error}",
                remedy="Slurm's NodeAddr of the node must be a name or an address that this machine can resolve",
            ) from error

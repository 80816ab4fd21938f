"""The interface of launchers."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, Self


class Launcher(Protocol):
    """A way to run a program on each of `nodes`, the first of which is the head.

    The command of `words` runs on this machine. Its standard input is that of the program, which reads its end once
    this machine's side is closed, however that happens; its standard output and error are those of the program.
    """

    #: The value of --launcher.
    name: ClassVar[str]
    #: The variable that a job has by which this launcher is chosen; empty where there are no jobs.
    job_variable: ClassVar[str]

    def __init__(self, nodes: tuple[str, ...]) -> None: ...

    @classmethod
    def on(cls, names: tuple[str, ...], count: int, environ: Mapping[str, str]) -> Self:
        """Return the launcher for the nodes of these names, or for `count` nodes where none is named.

        Raises UsageError where this machine cannot reach them.
        """
        ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes, each once."""
        ...

    def words(self, node: str, program: Sequence[str]) -> list[str]:
        """Return the command, to be run on this machine, that runs `program` on a node."""
        ...

    def address(self, node: str) -> str:
        """Return the address under which this machine and the other nodes reach a node. Raises CmError."""
        ...

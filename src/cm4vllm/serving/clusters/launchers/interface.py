"""The interface of launchers."""

from collections.abc import Sequence
from typing import Protocol


class Launcher(Protocol):
    """A way to run a program on each of `nodes`, the first of which is the head.

    The command of `words` runs on this machine. Its standard input is that of the program, which reads its end once
    this machine's side is closed, however that happens; its standard output and error are those of the program.
    """

    @property
    def name(self) -> str:
        """The value of --launcher."""
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

"""The side of a LiveCodeBench answer: its program runs here, as lcb_runner's testing_util runs it, on inputs alone.

Of the problem this process gets the name of a method and one input at a time; it answers with what the program returned
or printed.
"""

import importlib
import signal
import sys
from typing import Any

sys.path.insert(0, "/inside")
exchange = importlib.import_module("exchange")


class Solution:
    """The program of one answer."""

    def __init__(self) -> None:
        """Load the official module, and set what the official script sets before it runs a program."""
        self._official: Any = exchange.module_at("/official/LiveCodeBench/lcb_runner/evaluation/testing_util.py")
        self._solution: Any = None
        self._method: Any = None
        # What the official script sets in the process that runs a program:
        signal.signal(signal.SIGALRM, self._official.timeout_handler)
        self._official.reliability_guard()

    def compile(self, code: str, timeout: int) -> bool:
        """Run the program's definitions; return True if there are any."""
        self._solution = self._official.compile_code(code, timeout)
        return self._solution is not None

    def find(self, name: str) -> bool:
        """Return True if the program has a function of this name, which is then the one that is called."""
        self._method = self._official.get_function(self._solution, name)
        return self._method is not None

    def call(self, arguments: Any) -> Any:
        """Return the result of the function."""
        return exchange.encode(self._method(*exchange.decode(arguments)))

    def printed(self, inputs: str) -> str:
        """Return the output of the program for these inputs."""
        with self._official.Capturing() as captured:
            self._official.call_method(self._method, inputs)
        return str(captured[0])


if __name__ == "__main__":
    solution = Solution()
    exchange.run_programs(
        {"compile": solution.compile, "find": solution.find, "call": solution.call, "printed": solution.printed}
    )

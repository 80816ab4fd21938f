"""The vLLM that all parts measure, and the rates that were measured already."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from clients.real_vllm import Made, RealVllm
from figures import Figure, figure, ratios

#: The share of the in-process rate that a run through LoadGen and a server reaches.
WANTED = 0.97


class LeftOut(Exception):
    """A part that this machine cannot run, with the reason."""


@dataclass
class Hour:
    """The servers that are measured: `real` is vLLM with the model on one GPU. Rates in one process are kept."""

    real: RealVllm
    rounds: int
    gpus: int
    share: float
    in_process: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_rate_known(self) -> bool:
        """Return True if the rate in one process, with weights of the model's own type, was measured."""
        return _way(self.real) in self.in_process

    def generated(self, real: RealVllm) -> list[float]:
        """Return the tokens/s of vLLM's own generate, measured once for each way of serving."""
        name = _way(real)
        if name not in self.in_process:
            with real.in_process() as measure:
                self.in_process[name] = [made.rate for made in self.times(measure)]
        return self.in_process[name]

    def served(self, real: RealVllm) -> list[float]:
        """Return the tokens/s of Offline runs through LoadGen against one server."""
        with real.served(real.settings()) as server:
            task = replace(real.task, api=real.api)
            return [made.rate for made in self.times(lambda: real.through_loadgen(server, task))]

    def times(self, measure: Callable[[], Made]) -> list[Made]:
        """Measure once to warm up, and then each round."""
        measure()
        return [measure() for _ in range(self.rounds)]

    def beside(self, title: str, real: RealVllm) -> Iterator[Figure]:
        """Yield the rates in one process and through LoadGen, and their ratio."""
        alone, through = self.generated(real), self.served(real)
        yield from (
            figure(f"{title}, in process", alone, "tokens/s"),
            figure(f"{title}, through LoadGen", through, "tokens/s"),
            figure(f"{title}, through LoadGen / in process", ratios(through, alone), "x", at_least=WANTED),
        )


def _way(real: RealVllm) -> str:
    return f"{real.quantization} x {real.gpus}"

"""Rates of published results that were measured with vLLM, by which a job on like accelerators is foreseen."""

import math
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from cm4vllm.assets.model_sizes import catalogue_name
from cm4vllm.campaign.planning.minutes import Rate
from cm4vllm.campaign.published.published_results import PublishedRun, published_runs
from cm4vllm.common.files import bytes_of
from cm4vllm.records.known_hardware import accelerator
from cm4vllm.records.weights.model_size import BYTES
from cm4vllm.rules import Scenario, catalogue, round_names

_ROWS = Path(__file__).with_name("published_rates.yaml")
#: Words for the number of bits of integers, as schemes and checkpoints have them.
_WEIGHTS = {"w8a8": "int8", "w4a16": "int4", "gptq": "int4"}
#: The two data types of 16 bits, which accelerators compute alike.
_HALVES = {"fp16": "bf16"}


class _Row(msgspec.Struct, frozen=True, array_like=True):
    round: str
    division: str
    submitter: str
    system: str
    accelerator: str
    accelerators: int
    benchmark: str
    weights: str
    scenario: Scenario
    samples_per_second: float


class PublishedRate(NamedTuple):
    """A published rate in samples/s of all `accelerators` (0: of the processors that `accelerator` names).

    `model` is the catalogue's name of the model that was quantised, or is served as it is; `name` that of the run among
    published_runs/, empty for another one.
    """

    round: str
    submitter: str
    system: str
    accelerator: str
    accelerators: int
    model: str
    weights: str
    scenario: Scenario
    samples_per_second: float
    name: str = ""

    @property
    def words(self) -> str:
        count = f"{self.accelerators} x " if self.accelerators else ""
        return f"{self.submitter}'s {self.system} ({self.round} {self.scenario}, {count}{self.accelerator})"


@cache
def published_rates() -> tuple[PublishedRate, ...]:
    """Return the rates of the published runs, and those of further results."""
    rows = msgspec.yaml.decode(bytes_of(_ROWS), type=list[_Row])
    runs = (rate for name, run in published_runs().items() for rate in _rates_of(name, run))
    return (*runs, *(_rate_of(row) for row in rows))


def _rate_of(row: _Row) -> PublishedRate:
    return PublishedRate(
        round=row.round,
        submitter=row.submitter,
        system=row.system,
        accelerator=row.accelerator,
        accelerators=row.accelerators,
        model=catalogue().benchmark(row.benchmark).model,
        weights=row.weights,
        scenario=row.scenario,
        samples_per_second=row.samples_per_second,
    )


def _rates_of(name: str, run: PublishedRun) -> Iterator[PublishedRate]:
    served = str(run.settings.get("vllm_model_name", ""))
    model = served if served in catalogue().models else catalogue_name("hf", served)
    if not model:
        return
    for result in run.results:
        yield PublishedRate(
            round=run.round,
            submitter=run.submitter,
            system=run.system,
            accelerator=run.accelerator,
            accelerators=run.accelerators,
            model=base_model(model),
            weights=weights_words(str(run.settings.get("quantization") or run.settings.get("quantize") or ""), model),
            scenario=result.scenario,
            samples_per_second=result.samples_per_second,
            name=name,
        )


def base_model(model: str) -> str:
    """Return the model of the catalogue that this one was quantised from, or itself."""
    return catalogue().model(model).base or model


def weights_words(quantised: str, model: str) -> str:
    """Return the data type of weights that are `quantised` (schemes, or vLLM's word), else of the checkpoint."""
    words = [word.strip().lower() for word in quantised.split(",")]
    named = [_WEIGHTS.get(word, word.partition("-")[0]) for word in words]
    return next((word for word in named if word in BYTES), catalogue().model(model).precision)


def nearest_rate(
    rates: Iterable[PublishedRate],
    *,
    accelerator_name: str,
    accelerators: int,
    model: str,
    weights: str,
    scenario: Scenario,
    alike: Collection[Scenario],
    round_name: str,
) -> Rate | None:
    """Return the rate to expect in a scenario, by the nearest published one; None where there is none.

    It is of the same kind of accelerator, model and data type of weights, of the scenario itself or of one that is
    `alike`, and scaled by the number of accelerators. The nearest has the same scenario, then the most similar number
    of accelerators, then the nearest round; of equals it is the slowest. Other data types of weights are no neighbours:
    published rates of one model on one accelerator differ by a factor of 3.7 between them.
    """
    known = [
        rate
        for rate in rates
        if rate.model == model
        and _HALVES.get(rate.weights, rate.weights) == _HALVES.get(weights, weights)
        and _is_same(rate.accelerator, accelerator_name)
        and bool(rate.accelerators) == bool(accelerators)
        and rate.scenario in (scenario, *alike)
    ]
    if not known:
        return None
    order = round_names()

    def distance(rate: PublishedRate) -> tuple[bool, float, int, float]:
        size = abs(math.log(rate.accelerators / accelerators)) if accelerators else 0.0
        rounds = abs(order.index(rate.round) - order.index(round_name)) if rate.round in order else len(order)
        return rate.scenario is not scenario, round(size, 6), rounds, rate.samples_per_second

    best = min(known, key=distance)
    factor = accelerators / best.accelerators if accelerators else 1.0
    scaled = f", scaled to {accelerators}" if factor != 1 else ""
    return Rate(best.samples_per_second * factor, f"{best.words}{scaled}")


def _is_same(name: str, other: str) -> bool:
    row = accelerator(name)
    return name == other or (row is not None and row is accelerator(other))

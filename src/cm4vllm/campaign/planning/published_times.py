"""The rates by which the hours of a job on a named machine are expected: those of the nearest published results."""

from collections.abc import Collection, Mapping

from cm4vllm.assets.dummy import known_model
from cm4vllm.assets.model_sizes import catalogue_name
from cm4vllm.campaign.planning.minutes import Rate
from cm4vllm.campaign.published.published_rates import base_model, nearest_rate, published_rates, weights_words
from cm4vllm.campaign.settings import Job
from cm4vllm.rules import Mode, Scenario


def expected_rates(job: Job, without: Collection[str] = ()) -> Mapping[Scenario, Rate]:
    """Return the samples/s that each scenario's runs may be expected to have on the machine of a plan.

    A scenario of which nothing is published on such accelerators is left out. `without` names published runs that do
    not count.
    """
    model = _model(job)
    if job.machine is None or not model:
        return {}
    machine, rates = job.machine, {}
    settings = job.settings
    accelerator = machine.gpus[0].name if machine.gpus else machine.title
    for scenario in job.scenarios:
        rate = nearest_rate(
            [rate for rate in published_rates() if rate.name not in without or not rate.name],
            accelerator_name=accelerator,
            accelerators=_used(job),
            model=base_model(model),
            weights=weights_words(settings.launch.server.quantization or settings.quantize, model),
            scenario=scenario,
            alike=_alike(job, scenario),
            round_name=job.round.name,
        )
        if rate is not None:
            rates[scenario] = rate
    return rates


def _model(job: Job) -> str:
    """Return the catalogue's name of the job's model; empty for another one, and for one without weights."""
    if job.sources.dummy:
        return known_model(job.sources.location)
    return catalogue_name(job.sources.kind, job.sources.location)


def _used(job: Job) -> int:
    """Return the number of GPUs that the job's servers use on the machine; all where it does not say how many."""
    if job.machine is None or not job.machine.gpus:
        return 0
    server, servers = job.settings.launch.server, job.settings.launch.servers
    given = server.workers * servers
    return given if given > 1 else len(job.machine.gpus) * job.machine.nodes


def _alike(job: Job, scenario: Scenario) -> tuple[Scenario, ...]:
    """Return the scenarios whose rate is near: that without limits, and that with the widest ones.

    A scenario with narrower limits has a rate of its own.
    """
    every = {other: job.terms(other, Mode.PERFORMANCE) for other in job.benchmark.scenarios}
    limits = {
        other: terms.limits.waiting[1]
        for other, terms in every.items()
        if terms.paced and terms.limits is not None and terms.limits.waiting is not None
    }
    free = [other for other, terms in every.items() if terms.at_once]
    near = (*free, *([max(limits, key=lambda other: limits[other])] if limits else ()))
    return near if scenario in near else ()

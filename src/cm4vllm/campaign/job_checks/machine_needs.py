"""Needs of a job's runs against this machine's limits, as far as they are known before anything is started."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cm4vllm.campaign.planning.run_targets import given_target, run_name
from cm4vllm.campaign.rehearsal.profile import read_profile
from cm4vllm.campaign.settings import Job
from cm4vllm.common.units import four_digits
from cm4vllm.hardware.readiness import MachineLimits
from cm4vllm.loadgen.limits import Demand, Load, highest_rate, load_of, needs
from cm4vllm.loadgen.settings import in_flight_of, longest_answer
from cm4vllm.loadgen.user_conf import REHEARSAL_SAMPLES, user_conf
from cm4vllm.records.vllm.given_options import OptionValue
from cm4vllm.records.vllm.server_needs import api_processes, ring_buffer_bytes
from cm4vllm.rules import Mode, Scenario
from cm4vllm.serving.launch_settings import asked_options
from cm4vllm.serving.probing.server_requests import base_urls

#: A rate that bounds nothing: where no rate is known, what does not depend on it is found with this one, in queries/s.
_ANY_RATE = 1e9


def machine_notes(job: Job, limits: MachineLimits) -> tuple[str, ...]:
    """Return the needs of the job's runs on the machine: those of the largest run, and the rates that fit.

    Raises LimitTooLow for a run that the machine's limits do not allow.
    """
    options = _server_options(job)
    known: list[Demand] = []
    notes: list[str] = []
    for scenario in job.scenarios:
        for mode in job.modes:
            load, rate = _load(job, scenario, mode, options), given_target(job, scenario)
            demand = _demand(job, scenario, mode, options, load, rate)
            need = needs(demand, limits)
            if load.at(rate) is not None:
                known.append(need)
            else:
                notes.extend(_rate_notes(demand, load, limits))
    if known:
        most = max(known, key=lambda known_need: known_need.most_files)
        allowed = "no limit is set" if limits.open_files is None else f"{limits.open_files:,} are allowed (ulimit -Hn)"
        notes.insert(0, f"this machine: {most.words}; {allowed}")
    return tuple(notes)


def _server_options(job: Job) -> dict[str, OptionValue]:
    """Return the options of the servers that the job starts, none where they run already."""
    if job.settings.api_server:
        return {}
    options = asked_options(job.settings.launch)
    if job.settings.rehearse:
        options = {"max-num-seqs": read_profile(job.settings.rehearse).server.max_num_seqs, **options}
    return options


def _load(job: Job, scenario: Scenario, mode: Mode, options: Mapping[str, OptionValue]) -> Load:
    terms, settings = job.terms(scenario, mode), job.settings
    conf = ""
    if terms.paced:
        conf = user_conf(
            terms,
            job.execution_mode,
            target_qps=given_target(job, scenario) or _ANY_RATE,
            test_query_count=settings.test_query_count,
            max_test_duration_s=settings.max_test_duration,
        ).text
    samples = min(settings.test_query_count or REHEARSAL_SAMPLES, terms.samples) if job.rehearsal else terms.samples
    return load_of(
        terms,
        conf,
        samples=samples,
        max_tokens=longest_answer(terms, fixed=job.sources.dummy and not settings.rehearse),
        max_in_flight=settings.max_in_flight or in_flight_of(options) * _servers(job),
    )


def _demand(
    job: Job, scenario: Scenario, mode: Mode, options: Mapping[str, OptionValue], load: Load, rate: float | None
) -> Demand:
    urls = base_urls(job.settings.api_server) if job.settings.api_server else []
    open_ = load.at(rate)
    return Demand(
        title=f"the {run_name(scenario, mode)} run",
        open=1 if open_ is None else open_,
        why=load.words(rate),
        at_once=job.terms(scenario, mode).at_once,
        servers=_servers(job),
        api_processes=0 if job.settings.api_server else api_processes(options),
        tcp=not urls or not all(url.startswith("unix:") for url in urls),
        ring_buffer_bytes=0 if job.settings.rehearse or job.settings.container else ring_buffer_bytes(options),
        workers=job.settings.num_workers or 0,
    )


def _servers(job: Job) -> int:
    return len(base_urls(job.settings.api_server)) if job.settings.api_server else job.settings.replicas or 1


def _rate_notes(demand: Demand, load: Load, limits: MachineLimits) -> Iterator[str]:
    """Yield the highest rate that fits, where the run's rate is not known yet and the machine bounds it."""

    def at(rate: float) -> Demand:
        return replace(demand, open=load.at(rate) or demand.open)

    rate, _ = highest_rate(at, limits)
    if rate < math.inf:
        fits = needs(at(rate), limits)
        yield (
            f"this machine: {demand.title}, whose rate is measured before it, may have {fits.open:,} requests open at "
            f"once, with {fits.files_in_words}: a rate above about {four_digits(rate)} queries/s is refused"
        )

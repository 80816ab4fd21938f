"""A plan for another machine: which one is meant, what must be at hand there, and the line that makes such a plan."""

from collections.abc import Iterator

from msgspec.structs import replace

from cm4vllm.campaign.published.published_results import published_run, published_runs
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import CmError, ModelError, UsageError
from cm4vllm.hardware.named_machine import NamedMachine, named_machine, published_machine, with_gpu_memory
from cm4vllm.records.vllm.server_needs import local_workers
from cm4vllm.serving.clusters.placement import gpu_groups
from cm4vllm.serving.installation.vllm_choice import VENDORS, gpus_for
from cm4vllm.serving.launch_settings import asked_options, wanted_device


def with_machine(asked: CampaignSettings, *, prepare: bool = False) -> tuple[CampaignSettings, NamedMachine | None]:
    """Return the machine that --machine names, and settings of a job on it; None and the settings without it.

    What is to `prepare` for a device that this machine lacks is for another one, of which no more is known. Raises
    UsageError for a name that stands for no machine, and for a job that has no machine to plan.
    """
    if not asked.machine:
        if asked.gpu_memory_gib is not None:
            raise UsageError(
                f"--gpu_memory={asked.gpu_memory_gib:g} is given without --machine",
                cause="the memory of this machine's GPUs is asked of their driver",
                remedy="name the machine of the plan: --machine=8xNAME; or leave it out",
            )
        wanted = wanted_device(asked.launch)
        if prepare and wanted and not asked.api_server and not gpus_for(wanted) and wanted in VENDORS:
            title = f"a machine with GPUs of {VENDORS[wanted].name}"
            return asked, NamedMachine(title=title, nodes=1, gpus=(), device=wanted)
        return asked, None
    if asked.rehearse:
        raise UsageError(
            "--machine cannot be given with --rehearse",
            cause="a rehearsal runs on this machine, whatever the profile of its simulated server describes",
            remedy="leave one of them out",
        )
    machine = _machine(asked)
    _require_gpus(asked, machine)
    device = asked.device or machine.device
    return replace(asked, device=device), machine


def _machine(asked: CampaignSettings) -> NamedMachine:
    for name, run in published_runs().items():
        if asked.machine in (name, run.system):
            machine = published_machine(run.accelerator, run.accelerators)
            return with_gpu_memory(machine, asked.gpu_memory_gib)
    return named_machine(asked.machine, gpu_memory_gib=asked.gpu_memory_gib, device=asked.device)


def _require_gpus(asked: CampaignSettings, machine: NamedMachine) -> None:
    """Refuse servers with more workers than the machine has GPUs."""
    workers = local_workers(asked_options(asked.launch))
    if machine.gpus and workers and not asked.api_server:
        every = [gpu for _ in range(machine.nodes) for gpu in machine.gpus]
        try:
            gpu_groups(every, {}, asked.launch.servers, workers)
        except UsageError as error:
            raise UsageError(
                error.what.replace("this machine", machine.title), cause=error.cause, remedy=error.remedy
            ) from error


def with_other_machine(error: CmError, asked: CampaignSettings) -> CmError:
    """Return the error of a job that this machine cannot run; a published result is planned for its own machine."""
    if asked.published and not asked.machine and isinstance(error, (UsageError, ModelError)):
        run = published_run(asked.published)
        name = f"{run.accelerators}x{run.accelerator.removeprefix('NVIDIA ')}" if run.accelerators else asked.published
        error.remedy = (
            f"plan it for the machine that was published: cm run script --tags=run-mlperf,inference,_vllm "
            f"--published={asked.published} --plan --machine={name.replace(' ', '-')}\nor {error.remedy}"
        )
    return error


def needs_there(job: Job) -> tuple[str, ...]:
    """Return notes on what must be at hand on the machine of the plan before the job runs there."""
    if needs := list(_needs(job)):
        return (f"at hand there: {'; '.join(needs)}",)
    return ()


def _needs(job: Job) -> Iterator[str]:
    yield from job.sources.model_notes
    if job.graders:
        yield "bubblewrap (bwrap), in which answers that are programs are run"
    if job.machine is not None and job.machine.nodes > 1:
        yield f"the flags for several nodes: --nodes={job.machine.nodes} with --tp_size, --pp_size and --dp_size"

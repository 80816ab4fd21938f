"""Published results that can be measured again: what was run, by what settings, and the figures (published_runs/)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from cm4vllm.campaign.planning.step_environment import differing, with_values
from cm4vllm.campaign.settings import CampaignSettings
from cm4vllm.common.errors import ModelError, UsageError, nearest
from cm4vllm.common.records import Record
from cm4vllm.common.settings import env_keys
from cm4vllm.records.known_hardware import accelerator
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import Scenario, catalogue
from cm4vllm.serving.fit.layout import ENOUGH_REQUESTS, GIB, UTILISATION, Asked, Fit, advise
from cm4vllm.serving.installation.install import OLDEST_RELEASE
from cm4vllm.serving.installation.vllm_choice import Choice
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings

LAYOUTS_DIFFER = (
    f"why the layouts differ: the advisor takes the smallest group of GPUs whose KV cache holds {ENOUGH_REQUESTS} "
    "requests of full length, and makes replicas of that group, because the GPUs of one group wait for each other. A "
    "larger group leaves each GPU more memory for the cache, and shortens the time of a token"
)
SEQUENCES_DIFFER = (
    "why the sequences differ: the advisor counts requests of full length, which always fit. --max-num-seqs is an "
    "upper limit: shorter requests leave room for more, and vLLM preempts those for which the cache has no room"
)

#: A quantisation that the server makes when it starts, in place of the checkpoint's own precision.
_AT_START = ("fp8",)

Settings = Mapping[str, bool | int | float | str]


def fit_lines(settings: Settings, gpu: str, gpus: int) -> Iterator[str]:
    """Yield the advisor's layout for a published run, the run's own layout, and the reason of their difference.

    `settings` are those of the published run, as fields of the campaign's and the server's settings. Nothing is given
    for a run on processors.
    """
    if not gpus:
        return
    asked = _advisor_question(settings, gpu, gpus)
    if isinstance(asked, str):
        yield f"no advice on the layout: {asked}"
        return
    try:
        advised = advise(asked)
    except ModelError as error:
        yield f"by the fit advisor's calculation it does not fit: {error.what}"
        return
    yield (
        f"fit advisor, for {gpus} x {asked.memory_bytes / GIB:g} GiB and requests of up to "
        f"{asked.max_model_len:,} tokens: {_layout(advised)}, {advised.max_num_seqs:,} sequences each"
    )
    yield from _layout_notes(settings, asked, advised)


def _advisor_question(settings: Settings, gpu: str, gpus: int) -> Asked | str:
    """Return the question to the advisor; in words the facts that it lacks."""
    name = str(settings.get("vllm_model_name", ""))
    model_key = next((key for key, model in catalogue().models.items() if name in (key, model.hub)), "")
    if not model_key:
        return f"the architecture of {name} is not in the catalogue"
    known = accelerator(gpu)
    if known is None or not known.memory_gb:
        return f"the memory of {gpu} is not in the table of known accelerators"
    architecture = read_architecture(catalogue().config(model_key))
    quantised = str(settings.get("quantization", ""))
    longest = architecture.max_positions or 0
    return Asked(
        name=model_key,
        architecture=architecture,
        gpus=gpus,
        memory_bytes=known.memory_gb[0] * GIB,
        precision=quantised if quantised in _AT_START else catalogue().model(model_key).precision,
        max_model_len=min(int(settings.get("max_model_len", longest)), longest),
        kv_dtype="fp8" if str(settings.get("kv_cache_dtype", "")).startswith("fp8") else "bf16",
        utilisation=float(settings.get("gpu_memory_utilization", UTILISATION)),
        max_num_batched_tokens=int(settings.get("max_num_batched_tokens", 2048)),
    )


def _layout_notes(settings: Settings, asked: Asked, advised: Fit) -> Iterator[str]:
    """Yield the capacity of the published layout, and explain each difference."""
    sequences = int(settings.get("max_num_seqs", 0))
    if asked.gpus > 1 and not settings.keys() & {"tp_size", "pp_size", "dp_size", "replicas"}:
        yield "the layout of the published run is not known"
        return
    tensor, pipeline = int(settings.get("tp_size", 1)), int(settings.get("pp_size", 1))
    try:
        own = advise(replace(asked, tensor_parallel=tensor, pipeline_parallel=pipeline))
    except ModelError as error:
        yield f"by the advisor's calculation the published layout does not fit: {error.what}"
        return
    limit = f", at most {sequences:,} sequences each" if sequences else ", vLLM's own number of sequences"
    yield (
        f"published: {_layout(own)}{limit}; by the advisor's calculation the KV cache of each replica holds "
        f"{own.kv_tokens:,} tokens: {own.kv_tokens // asked.max_model_len:,} requests of full length"
        + (f", or {sequences:,} requests of {own.kv_tokens // sequences:,} tokens" if sequences else "")
    )
    if (own.tensor_parallel, own.pipeline_parallel) != (advised.tensor_parallel, advised.pipeline_parallel):
        yield LAYOUTS_DIFFER
    if sequences and sequences != own.max_num_seqs:
        yield SEQUENCES_DIFFER


def _layout(fit: Fit) -> str:
    parts = {"tensor": fit.tensor_parallel, "pipeline": fit.pipeline_parallel, "data": fit.data_parallel}
    return " x ".join(f"{name} {size}" for name, size in parts.items() if size > 1) or "one GPU"


_FOLDER = Path(__file__).with_name("published_runs")


class PublishedResult(Record, frozen=True, kw_only=True):
    """Published figures of one scenario: samples/s and tokens/s of LoadGen's log, p99 latencies, ROUGE in percent."""

    scenario: Scenario
    tokens_per_second: float
    samples_per_second: float
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    rouge1: float
    rouge2: float
    rougeL: float

    @property
    def words(self) -> str:
        latencies = (
            f", TTFT p99 {self.ttft_p99_ms:,.0f} ms, TPOT p99 {self.tpot_p99_ms:.1f} ms"
            if self.ttft_p99_ms is not None and self.tpot_p99_ms is not None
            else ""
        )
        return (
            f"{self.scenario} {self.tokens_per_second:,.1f} tokens/s, {self.samples_per_second:.3f} "
            f"{'queries' if latencies else 'samples'}/s{latencies}, ROUGE-1 {self.rouge1}, -2 {self.rouge2}, "
            f"-L {self.rougeL}"
        )


class PublishedRun(Record, frozen=True, kw_only=True):
    """A published result. `settings` are fields of CampaignSettings and ServerSettings, as it was measured with.

    `differences` are the points in which a run with these settings differs, and those that its files do not state.
    `accelerators` is 0 for a run on processors, which `accelerator` then names. `vllm` is empty where the release is
    not stated.
    """

    source: str
    submitter: str
    system: str
    accelerator: str
    accelerators: int
    round: str
    division: str
    vllm: str
    settings: dict[str, bool | int | float | str]
    results: list[PublishedResult]
    differences: list[str] = []

    @property
    def hardware(self) -> str:
        return f"{self.accelerators} x {self.accelerator}" if self.accelerators else self.accelerator

    @property
    def software(self) -> str:
        return f"vLLM {self.vllm}" if self.vllm else "vLLM of a release that is not stated"

    @property
    def notes(self) -> Iterator[str]:
        """The differences of a run with these settings, and lines of the fit advisor for the model on these GPUs."""
        yield from self.differences
        if self.vllm and not _can_be_measured(self.vllm):
            yield (
                f"vLLM {self.vllm} does not return token ids, and cannot be measured for that reason: the default "
                "release is taken instead; the oldest one that can be measured is "
                f"--vllm_version={'.'.join(map(str, OLDEST_RELEASE))}"
            )
        yield from fit_lines(self.settings, self.accelerator, self.accelerators)


@cache
def published_runs() -> Mapping[str, PublishedRun]:
    """Return the published results by name."""
    return {
        path.stem: msgspec.yaml.decode(path.read_bytes(), type=PublishedRun) for path in sorted(_FOLDER.glob("*.yaml"))
    }


def published_run(name: str) -> PublishedRun:
    """Return the published result of this name. Raises UsageError."""
    if name not in published_runs():
        raise UsageError(
            f"--published={name} is not known",
            remedy=nearest(name, published_runs(), f"known are {', '.join(published_runs())}"),
        )
    return published_runs()[name]


def published_settings(asked: CampaignSettings) -> CampaignSettings:
    """Return settings with those of the published result that they name, where they have no value of their own.

    A value that is a setting's default counts as none. A server that runs already has its options. Raises UsageError.
    """
    if not asked.published:
        return asked
    run, campaign = published_run(asked.published), env_keys(CampaignSettings)
    server = {**env_keys(ServerSettings), "replicas": env_keys(LaunchSettings)["replicas"]}
    values: dict[str, bool | int | float | str] = {
        campaign["round"]: run.round,
        **{campaign.get(field) or server[field]: value for field, value in run.settings.items()},
    }
    if asked.model_source:  # another model in its place
        values.pop(campaign["vllm_model_name"], None)
        if asked.model_source.startswith("_dummy"):  # which has no weights to quantise
            values.pop(campaign["quantize"], None)
    if asked.api_server:  # it has its release and its options already
        own = {*server.values()} - {campaign["vllm_model_name"]}
        values = {key: value for key, value in values.items() if key not in own}
    elif _can_be_measured(run.vllm):
        values[env_keys(Choice)["version"]] = run.vllm
    given = differing(asked)
    return with_values(asked, {key: value for key, value in values.items() if key not in given})


def published_notes(asked: CampaignSettings) -> tuple[str, ...]:
    """Return the facts of the requested published result, and how a run here with its settings differs from it."""
    if not asked.published:
        return ()
    run = published_run(asked.published)
    return (
        f"published: {run.submitter}, {run.hardware}, {run.software}, {run.round}, "
        f"{run.division} division ({run.source})",
        *(f"published: {result.words}" for result in run.results),
        *run.notes,
        *(
            ["published in the closed division; here it is run in the open one"]
            if run.division != asked.division
            else []
        ),
    )


def _can_be_measured(release: str) -> bool:
    return bool(release) and tuple(map(int, release.split("."))) >= OLDEST_RELEASE

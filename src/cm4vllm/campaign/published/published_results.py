"""Published results that can be measured again: what was run, by what settings, and the figures (published_runs/)."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec

from cm4vllm.campaign.planning.step_environment import differing, with_values
from cm4vllm.campaign.published.published_fit import fit_lines
from cm4vllm.campaign.settings import CampaignSettings
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.records import Record
from cm4vllm.common.settings import env_keys
from cm4vllm.rules import Scenario
from cm4vllm.serving.installation.install import OLDEST_RELEASE
from cm4vllm.serving.installation.vllm_choice import Choice
from cm4vllm.serving.options.arguments import ServerSettings

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
    run, campaign, server = published_run(asked.published), env_keys(CampaignSettings), env_keys(ServerSettings)
    values: dict[str, bool | int | float | str] = {
        campaign["round"]: run.round,
        **{campaign.get(field) or server[field]: value for field, value in run.settings.items()},
    }
    if asked.model_source:  # another model in its place
        values.pop(campaign["vllm_model_name"], None)
        if asked.model_source.startswith("_dummy"):  # which has no weights to quantise
            values.pop(campaign["quantize"], None)
    if asked.api_server:
        # It has its release and its options already.
        values = {
            key: value
            for key, value in values.items()
            if key == campaign["vllm_model_name"] or key not in server.values()
        }
    elif _can_be_measured(run.vllm):
        values[env_keys(Choice)["version"]] = run.vllm
    given = differing(asked)
    return with_values(asked, {key: value for key, value in values.items() if key not in given})


def published_notes(asked: CampaignSettings) -> tuple[str, ...]:
    """Return the published facts of the result that is asked for, and the differences of a run with its settings."""
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

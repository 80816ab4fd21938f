"""Published results that can be measured again: what was run, by what settings, and the figures (published_runs/)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any

import msgspec

from cm4vllm.campaign.published_fit import LAYOUTS_DIFFER, SEQUENCES_DIFFER, fit_lines
from cm4vllm.campaign.settings import CampaignSettings
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.records import Record
from cm4vllm.common.settings import env_keys
from cm4vllm.rules import Scenario
from cm4vllm.serving.arguments import ServerSettings
from cm4vllm.serving.install import OLDEST_RELEASE

__all__ = [
    "PublishedResult",
    "PublishedRun",
    "published_env",
    "published_notes",
    "published_page",
    "published_run",
    "published_runs",
]

_FOLDER = Path(__file__).with_name("published_runs")
#: The environment key of --published, and that of the release of vLLM.
_NAME, _VLLM = "CM_MLPERF_PUBLISHED", "CM_VLLM_WANTED_VERSION"
_SERVER = "CM_MLPERF_INFERENCE_API_SERVER"
_ROUND = env_keys(CampaignSettings)["round"]


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
    def fit(self) -> tuple[str, ...]:
        """Lines of the fit advisor for the model on these GPUs, beside the published figures."""
        return tuple(fit_lines(self.settings, self.accelerator, self.accelerators))


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


def published_env(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of the published result that `env` names, where `env` has no value of its own.

    A value that is a setting's default counts as none. A server that runs already has its options. Raises UsageError.
    """
    if not (name := str(env.get(_NAME) or "")):
        return {}
    run, campaign, server = published_run(name), env_keys(CampaignSettings), env_keys(ServerSettings)
    defaults = {key: str(getattr(CampaignSettings(), field)) for field, key in campaign.items()}
    values = {
        _ROUND: run.round,
        **{campaign.get(field) or server[field]: _text(value) for field, value in run.settings.items()},
    }
    if source := str(env.get(campaign["model_source"]) or ""):  # another model in its place
        values.pop(campaign["vllm_model_name"], None)
        if source.startswith("_dummy"):  # which has no weights to quantise
            values.pop(campaign["quantize"], None)
    if env.get(_SERVER):
        # It has its release and its options already.
        values = {
            key: value
            for key, value in values.items()
            if key in (campaign["vllm_model_name"],) or key not in server.values()
        }
    elif _can_be_measured(run.vllm):
        values[_VLLM] = run.vllm
    return {key: value for key, value in values.items() if str(env.get(key) or "") in ("", defaults.get(key, ""))}


def published_notes(env: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the published facts of the result that `env` names, and the differences of a run with its settings."""
    if not (name := str(env.get(_NAME) or "")):
        return ()
    run = published_run(name)
    return (
        f"published: {run.submitter}, {run.hardware}, {run.software}, {run.round}, "
        f"{run.division} division ({run.source})",
        *(f"published: {result.words}" for result in run.results),
        *_differences(run),
        *run.fit,
        *(
            ["published in the closed division; here it is run in the open one"]
            if run.division != str(env.get(env_keys(CampaignSettings)["division"]) or "open")
            else []
        ),
    )


def published_page() -> str:
    """Return docs/published.md."""
    return "\n".join(_lines()) + "\n"


_INTRODUCTION = """\
`--published=NAME` sets benchmark, round, model, rates, the release of vLLM and the server's options as they were
published. Your own flags override them, and so does a model among the tags: with `_dummy` the benchmark's model is
rehearsed with random weights. A flag with its default value (`_r6.1`, `--model=llama3.1-8b`) overrides nothing, because
it cannot be distinguished from one that is not given. With `--api_server` the release and the options of the server are
left out: that server runs already. The plan and the run show what was published. This project measured no number below.

Each section has the settings (flags of the same name, but for `extra`, `--extra_args`, and `kv_cache_gib`,
`--kv_cache_space`), the published figures, and in what a run of cm4vllm differs. Two of its lines compare layouts: that
which the fit advisor ([models.md](models.md#what-fits)) suggests for these GPUs, and the published one. In both,
"tensor 2 x data 2" is two replicas of two GPUs each.
""".splitlines()


def _lines() -> Iterator[str]:
    yield "# Published results that can be measured again"
    yield ""
    yield "Generated from `src/cm4vllm/campaign/published_runs/` by `python -m cm4vllm.campaign.published_results`."
    yield ""
    yield "    cm run script --tags=run-mlperf,inference,_vllm --published=NAME --plan"
    yield ""
    yield from _INTRODUCTION
    for why in (LAYOUTS_DIFFER, SEQUENCES_DIFFER):
        yield ""
        yield from _wrapped(f"{why[0].upper()}{why[1:]}.")
    for name, run in published_runs().items():
        yield ""
        yield f"## {name}"
        yield ""
        yield from _wrapped(
            f"{run.submitter}, {run.hardware}, {run.software}, {run.round}, {run.division} division. "
            f"Source: {run.source}."
        )
        yield ""
        yield "| setting | value |"
        yield "|---|---|"
        yield from (f"| {field} | `{_text(value)}` |" for field, value in run.settings.items())
        yield ""
        yield "| scenario | tokens/s | samples/s | TTFT p99 (ms) | TPOT p99 (ms) | ROUGE-1 | ROUGE-2 | ROUGE-L |"
        yield "|---|---|---|---|---|---|---|---|"
        for result in run.results:
            latencies = " | ".join(
                f"{value:,.1f}" if value is not None else "-" for value in (result.ttft_p99_ms, result.tpot_p99_ms)
            )
            yield (
                f"| {result.scenario} | {result.tokens_per_second:,} | {result.samples_per_second} | {latencies} | "
                f"{result.rouge1} | {result.rouge2} | {result.rougeL} |"
            )
        yield ""
        for line in (*_differences(run), *run.fit):
            if line not in (LAYOUTS_DIFFER, SEQUENCES_DIFFER):
                yield from _wrapped(f"- {line}", "  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _can_be_measured(release: str) -> bool:
    return bool(release) and tuple(map(int, release.split("."))) >= OLDEST_RELEASE


def _differences(run: PublishedRun) -> Iterator[str]:
    yield from run.differences
    if run.vllm and not _can_be_measured(run.vllm):
        oldest = ".".join(map(str, OLDEST_RELEASE))
        yield (
            f"vLLM {run.vllm} does not return token ids, and cannot be measured for that reason: the default release "
            f"is taken instead; the oldest one that can be measured is --vllm_version={oldest}"
        )


def _text(value: bool | int | float | str) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(published_page(), end="")

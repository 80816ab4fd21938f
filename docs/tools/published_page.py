"""docs/published.md, the published results that can be measured again.

`python docs/tools/published_page.py > docs/published.md`
"""

from textwrap import wrap

from cm4vllm.campaign.published.published_results import (
    LAYOUTS_DIFFER,
    SEQUENCES_DIFFER,
    PublishedResult,
    PublishedRun,
    published_runs,
)
from cm4vllm.common.settings import setting_text

_HEAD = """\
# Published results that can be measured again

Generated from `src/cm4vllm/campaign/published/published_runs/` by
`python docs/tools/published_page.py > docs/published.md`.

    cm run script --tags=run-mlperf,inference,_vllm --published=NAME --plan --machine=NAME

`--published=NAME` sets benchmark, round, model, rates, the release of vLLM and the server's options as they were
published. Your own flags override them, and so does a model among the tags: with `_dummy` the benchmark's model is
rehearsed with random weights. A flag with its default value (`_r6.1`, `--model=llama3.1-8b`) overrides nothing, because
it cannot be distinguished from one that is not given. With `--api_server` the release and the options of the server are
left out: that server runs already. The plan and the run show what was published. This project measured no number below.

Each section has the settings (flags of the same name, but for `extra`, `--extra_args`, and `kv_cache_gib`,
`--kv_cache_space`), the published figures, and in what a run of cm4vllm differs. Two of its lines compare layouts: that
which the fit advisor ([models.md](models.md#what-fits)) suggests for these GPUs, and the published one. In both,
"tensor 2 x data 2" is two replicas of two GPUs each.
"""
_FIGURES = """\
| scenario | tokens/s | samples/s | TTFT p99 (ms) | TPOT p99 (ms) | ROUGE-1 | ROUGE-2 | ROUGE-L |
|---|---|---|---|---|---|---|---|"""
#: Lines of the fit advisor that stand once, before all sections.
_REASONS = (LAYOUTS_DIFFER, SEQUENCES_DIFFER)


def published_page() -> str:
    """Return docs/published.md."""
    reasons = [_wrap(f"{why[0].upper()}{why[1:]}.") for why in _REASONS]
    sections = map(_section, published_runs(), published_runs().values())
    return _HEAD + "\n" + "\n\n".join([*reasons, *sections]) + "\n"


def _section(name: str, run: PublishedRun) -> str:
    about = (
        f"{run.submitter}, {run.hardware}, {run.software}, {run.round}, {run.division} division. Source: {run.source}."
    )
    settings = (f"| {field} | `{setting_text(value)}` |" for field, value in run.settings.items())
    notes = (_wrap(f"- {note}", "  ") for note in run.notes if note not in _REASONS)
    parts = [
        f"## {name}",
        _wrap(about),
        "\n".join(["| setting | value |", "|---|---|", *settings]),
        "\n".join([_FIGURES, *map(_row, run.results)]),
        "\n".join(notes),
    ]
    return "\n\n".join(parts)


def _row(result: PublishedResult) -> str:
    latencies = " | ".join("-" if ms is None else f"{ms:,.1f}" for ms in (result.ttft_p99_ms, result.tpot_p99_ms))
    return (
        f"| {result.scenario} | {result.tokens_per_second:,} | {result.samples_per_second} | {latencies} | "
        f"{result.rouge1} | {result.rouge2} | {result.rougeL} |"
    )


def _wrap(text: str, indent: str = "") -> str:
    return "\n".join(wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


if __name__ == "__main__":
    print(published_page(), end="")

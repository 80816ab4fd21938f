"""Dataset files that the flags name, read before anything is started: their samples, their prompts for the model."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cm4vllm.assets.samples.dataset_files import Requirements, check_file, checked_rows
from cm4vllm.assets.samples.prompt_tokens import misread, tokenised
from cm4vllm.campaign.asset_sources import AssetInputs
from cm4vllm.records.weights.checkpoint import read_checkpoint
from cm4vllm.rules import BenchmarkTerms, Mode, Terms, audit
from cm4vllm.serving.launch_settings import LaunchSettings, chosen_server
from cm4vllm.serving.options.arguments import require_context


def require_given_datasets(
    assets: AssetInputs,
    launch: LaunchSettings,
    benchmark: BenchmarkTerms,
    runs: Sequence[Terms],
    *,
    model: str,
    valid: bool,
    tests: Sequence[str] = (),
) -> tuple[str, ...]:
    """Read the files for `runs` of a `model` (the variation that gives it), and return notes on their prompts.

    A `valid` run takes the benchmark's number of samples alone, a rehearsal any. `tests` are the compliance tests that
    are made. Raises DatasetError, ModelError.
    """
    notes: list[str] = []
    for path, required, modes in _given(assets, benchmark, tests, valid=valid):
        if benchmark.media is not None:
            check_file(path, required)
            continue
        rows, folder = checked_rows(path, required), _folder(model)
        if folder is not None and (why := misread(rows, folder)):
            notes.append(f"{path.name}: its prompts were tokenised for another model ({why}): they are tokenised again")
            rows = tokenised(rows, folder, path.name, why)
        answers = [run.generation.max_tokens for run in runs if run.mode in modes]
        if answers:
            _require_room(launch, folder, max(len(row["tok_input"]) for row in rows) + max(answers))
    return tuple(notes)


def other_prompts(path: Path, model: str) -> str:
    """Return in words that a file's prompts were tokenised for another model; empty where it is not known, or not so.

    Raises DatasetError, ModelError.
    """
    folder = _folder(model)
    return "" if folder is None else misread(checked_rows(path, Requirements()), folder)


def _given(
    assets: AssetInputs, benchmark: BenchmarkTerms, tests: Sequence[str], *, valid: bool
) -> Iterator[tuple[Path, Requirements, tuple[Mode, ...]]]:
    """Yield each file, its requirements, and the modes of the runs that read it."""
    if name := assets.dataset_path:
        modes = (Mode.ACCURACY,) if benchmark.performance_samples else tuple(Mode)
        yield Path(name), Requirements.evaluation(benchmark, valid), modes
    if name := assets.performance_dataset_path:
        yield Path(name), Requirements.performance(benchmark, valid), (Mode.PERFORMANCE,)
    if name := assets.compliance_dataset_path:
        own = [made for made in (audit(test, benchmark.name) for test in tests) if made.own_dataset]
        for required in [Requirements.compliance(made, benchmark) for made in own] or [Requirements()]:
            yield Path(name), required, (Mode.PERFORMANCE,)


def _folder(model: str) -> Path | None:
    """Return the folder of a model that is on this machine already; None for one that a step provides."""
    kind, _, location = model.partition(".")
    return Path(location) if kind == "_path" else None


def _require_room(launch: LaunchSettings, folder: Path | None, longest: int) -> None:
    """Refuse a prompt that with its answer, together `longest` tokens, is longer than the context, where it is known.

    A given server reports its context when it is asked.
    """
    context = chosen_server(launch).max_model_len
    if context is None and folder is not None and not launch.api_server:
        context = read_checkpoint(folder).max_positions
    require_context(context, longest, folder.name if folder is not None else "")

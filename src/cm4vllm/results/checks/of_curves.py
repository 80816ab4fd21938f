"""The checks of a curve of MLPerf Endpoints: what the official checker passes without a finding."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.endpoints.curves import Curve, Point
from cm4vllm.results.endpoints.endpoints_harness import count, impossible_in_summary, number, part
from cm4vllm.results.endpoints.summary_figures import contradictions, missing_figures
from cm4vllm.rules import EndpointsBenchmark, EndpointsRules, SeedSet

_LARGEST_SEED = 2**63 - 1
#: A stated window may be longer than the run by as much as its figures are rounded.
_ROUNDING_S = 0.01
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@check(
    "CURVE-MODEL",
    source="§3.2; the official checker only warns that an unknown name has no accuracy thresholds",
    remedy="name the benchmark model in point.yaml; a rehearsal of another model is no submission",
    stage=Stage.CURVE,
    each=whole,
)
def known_model(curve: Curve) -> Iterator[Fault]:
    """The points name one benchmark model of MLPerf Endpoints."""
    if curve.benchmark is None and curve.points:
        yield Fault(
            "the model is no benchmark model: no accuracy was checked",
            curve.name,
            "model_name",
            curve.model,
            ", ".join(benchmark.name for benchmark in curve.rules.benchmarks),
        )


@check(
    "CURVE-DATASET",
    source="§6.4; the official checker counts samples only where `dataset` is one of its words",
    remedy="measure the whole dataset, and name it as the benchmark does",
    stage=Stage.CURVE,
    each=whole,
)
def whole_dataset(curve: Curve) -> Iterator[Fault]:
    """Each point names the dataset of its benchmark and answers each sample of it."""
    if (benchmark := curve.measurable) is None:
        return
    for point in curve.points:
        if point.declared.get("dataset") != benchmark.dataset:
            yield Fault(
                "the dataset has another name than the benchmark's: samples were not counted",
                f"{point.name}/point.yaml",
                "dataset",
                point.declared.get("dataset", ""),
                benchmark.dataset,
            )
        completed = count(point.summary, "n_samples_completed") or 0
        if completed < benchmark.samples:
            yield Fault(
                "not each sample of the dataset was answered",
                point.name,
                "n_samples_completed",
                f"{completed:,}",
                f"{benchmark.samples:,} at least",
            )
        elif completed % benchmark.samples:
            yield Fault(
                "the samples are no whole passes over the dataset",
                point.name,
                "n_samples_completed",
                f"{completed:,}",
                f"a multiple of {benchmark.samples:,}",
            )


@check(
    "POINT-WHOLE",
    source="§6.4; the client exits with 0 and `complete: true` after an interrupt, also in an accuracy run",
    remedy="make the run again",
    stage=Stage.CURVE,
    each=whole,
)
def whole_run(curve: Curve) -> Iterator[Fault]:
    """Each run issued the samples that it was configured with, and all were answered."""
    for point in curve.points:
        wanted = count(part(part(point.config, "settings"), "runtime"), "n_samples_to_issue")
        issued, completed = point.samples_issued, count(point.summary, "n_samples_completed")
        failed = count(point.summary, "n_samples_failed")
        if wanted is not None and issued is not None and issued < wanted:
            yield Fault("the run ended early", point.name, "n_samples_issued", f"{issued:,}", f"{wanted:,}")
        if issued is not None and completed is not None and completed < issued:
            yield Fault("samples were not answered", point.name, "n_samples_completed", f"{completed:,}", f"{issued:,}")
        asked = count(part(point.declared, "runtime_settings"), "min_sample_count")
        if asked is not None and completed is not None and completed < asked:
            expected = f"{asked:,}, min_sample_count"
            yield Fault(
                "fewer samples than are declared", point.name, "n_samples_completed", f"{completed:,}", expected
            )
        if point.summary.get("state", "complete") != "complete":
            yield Fault("the run calls itself incomplete", point.name, "state", point.summary["state"], "complete")
        if failed:
            yield Fault("requests failed", point.name, "n_samples_failed", f"{failed:,}", "0")
        if point.summary and point.summary.get("complete") is not True:
            yield Fault("the run calls itself incomplete", point.name, "complete", point.summary.get("complete"), True)
        yield from (
            Fault(
                "samples of the accuracy run were not answered",
                score.source.file,
                "response_counts",
                f"{score.answered:,}",
                f"{score.samples:,}",
            )
            for score in {score.dataset: score for score in point.scores}.values()
            if score.answered is not None and score.answered < score.samples
        )


@check(
    "POINT-IMPOSSIBLE",
    source="a design rule of cm4vllm; the official checker compares none of them with another",
    remedy="publish the summary as the client wrote it, or make the run again",
    stage=Stage.CURVE,
    each=whole,
)
def possible_figures(curve: Curve) -> Iterator[Fault]:
    """The client's figures are those of one run: above 0, each distribution in order, and none contradicts another."""
    return (
        Fault(value.what, point.name, value.key, value.value, value.expected)
        for point in curve.points
        for value in chain(impossible_in_summary(point.summary), contradictions(point.summary))
    )


@check(
    "POINT-FIGURES",
    source="§4.1, §8.3; the official checker takes most of them for 0",
    remedy="publish the summary as the client wrote it, of a run with streaming",
    stage=Stage.CURVE,
    each=whole,
)
def stated_figures(curve: Curve) -> Iterator[Fault]:
    """The client's summary has the figures of a point: samples, time, tokens, latency, and of streams TTFT and TPOT."""
    return (
        Fault("a figure is missing", point.name, field, "none", "a number above 0")
        for point in curve.points
        if point.summary
        for field in missing_figures(point.summary, streamed=point.offline != "dedicated")
    )


@check(
    "POINT-WINDOW",
    source="§4.4; the official checker compares the claim with itself alone",
    remedy="compute the window from the client's events: run,mlperf,endpoints,point does",
    stage=Stage.CURVE,
    each=whole,
)
def claimed_window(curve: Curve) -> Iterator[Fault]:
    """A claimed window of the steady state has the passes, samples and seconds that its run has."""
    for point in curve.concurrency_points:
        yield from _window_beyond_its_run(point, curve.benchmark)
        if point.steady_state.get("status") == "windowable":
            yield from _unofficial_window(point, curve.rules, curve.benchmark)


def _window_beyond_its_run(point: Point, benchmark: EndpointsBenchmark | None) -> Iterator[Fault]:
    """Yield where a window has more samples or seconds than its run, or more samples than its passes."""
    window, file = part(point.steady_state, "window"), f"{point.name}/point.yaml"
    samples, size = count(window, "n_samples"), count(window, "super_pass_size")
    begin, end = count(window, "super_pass_start"), count(window, "super_pass_end")
    completed = count(point.summary, "n_samples_completed")
    if size and benchmark and benchmark.samples not in (0, size):
        expected = benchmark.samples
        yield Fault("a pass has another size than the dataset", file, "window.super_pass_size", size, expected)
    if samples is not None and completed is not None and samples > completed:
        yield Fault("the window has more samples than its run", file, "window.n_samples", samples, completed)
    if samples is not None and size and begin is not None and end is not None and samples > (end - begin + 1) * size:
        most = (end - begin + 1) * size
        yield Fault("the window has more samples than its passes", file, "window.n_samples", samples, most)
    seconds, duration = number(window, "duration_s"), point.figures.value("duration")
    if seconds is not None and duration is not None and seconds > duration + _ROUNDING_S:
        yield Fault("the window is longer than its run", file, "window.duration_s", seconds, f"{duration:.1f} at most")


def _unofficial_window(point: Point, rules: EndpointsRules, benchmark: EndpointsBenchmark | None) -> Iterator[Fault]:
    """Yield why a window whose figures are claimed as official ones is none; the last of its passes may be a part."""
    window, file = part(point.steady_state, "window"), f"{point.name}/point.yaml"
    for key in ("n_samples", "super_pass_size", "duration_s"):
        if not number(window, key):
            yield Fault("the claimed window is not stated", file, f"window.{key}", window.get(key, "none"), "a number")
    least, verdict = rules.window.passes, str(point.steady_state.get("verdict", ""))
    samples, size = count(window, "n_samples"), count(window, "super_pass_size")
    completed, seconds = count(point.summary, "n_samples_completed"), number(window, "duration_s")
    if samples is not None and size and samples <= (least - 1) * size:
        yield Fault("the window is too short for its status", file, "window.n_samples", samples, f"{least} passes")
    # The blocks that are left out at the start come before those of the window.
    passes = least - 1 + rules.window.warm_up.least
    if benchmark and completed is not None and completed <= passes * benchmark.samples:
        expected = f"more than {passes * benchmark.samples:,}"
        yield Fault("the run has fewer passes than a window needs", file, "status", f"{completed:,} samples", expected)
    needed = rules.least_seconds(point.concurrency or 1)
    if seconds is not None and seconds < needed - _ROUNDING_S:
        yield Fault("the window is shorter than its status says", file, "window.duration_s", seconds, f"{needed:g}")
    if verdict == "not found":
        yield Fault("a window that was not found is official", file, "verdict", verdict, "another status")


@check(
    "CURVE-OFFLINE",
    source="§5.7.2; the official checker lets it cover one",
    remedy="add a point at fixed concurrency in the region",
    stage=Stage.CURVE,
    each=whole,
)
def offline_fills_no_region(curve: Curve) -> Iterator[Fault]:
    """A dedicated Offline run fills no region."""
    values = [point.concurrency for point in curve.concurrency_points if point.concurrency is not None]
    if len(curve.concurrency_points) == len(curve.points) or not values or curve.c_max is None:
        return
    yield from (
        Fault(
            "the dedicated Offline run alone lies in a region",
            curve.name,
            region.name,
            ", ".join(map(str, values)),
            f"a point from {region.start} to {region.end}",
        )
        for region in curve.rules.regions(c_min=min(values), c_max=curve.c_max).required
        if not any(value in region for value in values)
    )


@check(
    "SCORE-FRACTION",
    source="the official checker reads a percentage of at most 1 as a fraction (context.py)",
    remedy="state the score as the client computed it",
    stage=Stage.CURVE,
    each=whole,
)
def scores_in_percent(curve: Curve) -> Iterator[Fault]:
    """Scores of an accuracy run are stated in the unit of the benchmark's targets."""
    if (benchmark := curve.measurable) is None:
        return
    targets = {target.label.lower(): target for target in benchmark.targets}
    for point in curve.points:
        for score in point.scores:
            target = targets.get(score.metric.lower())
            if target is not None and target.reference > 1 and 0 < score.value <= 1:
                yield Fault(
                    f"{score.metric} is at most 1, and is taken for a fraction",
                    score.source.file,
                    score.source.field,
                    score.value,
                    f"a number such as {target.reference:g}",
                )


@check(
    "POINT-SEEDS",
    source="§4.6; vLLM takes a seed of at most 2^63 - 1",
    remedy="run the client with the seeds of the set; leave the model's seed out of model_params",
    stage=Stage.CURVE,
    each=whole,
)
def seeds(curve: Curve) -> Iterator[Fault]:
    """Each point declares a seed set and its seeds, the client ran with them, and none is too large for a server."""
    sets: Mapping[str, SeedSet] = {entry.name: entry for entry in curve.rules.seed_sets}
    for point in curve.points:
        file, name = f"{point.name}/config.yaml", point.declared.get("seed_set")
        expected = sets.get(name) if isinstance(name, str) else None
        if point.declared and not (isinstance(name, str) and name.strip()):
            yield Fault(
                "no seed set is declared", f"{point.name}/point.yaml", "seed_set", name or "none", ", ".join(sets)
            )
        yield from _declared_seeds(point, expected)
        yield from _used_seeds(point, expected)
        model_seed = part(point.config, "model_params").get("seed")
        if isinstance(model_seed, int) and model_seed > _LARGEST_SEED:
            yield Fault("the seed is too large for a server", file, "model_params.seed", model_seed, _LARGEST_SEED)


def _declared_seeds(point: Point, expected: SeedSet | None) -> Iterator[Fault]:
    """Compare the seeds in point.yaml with those of the set; of an unknown set they are only there."""
    declared = part(part(point.declared, "runtime_settings"), "runtime")
    for key, value in (
        ("scheduler_rng_seed", expected.scheduler if expected else None),
        ("sample_index_rng_seed", expected.sample_index if expected else None),
        ("model_seed", expected.model if expected else None),
    ):
        stated = count(declared, key)
        if point.declared and (stated is None or value not in (None, stated)):
            wrong = "a seed is not declared" if stated is None else "another seed is declared than that of the set"
            field = f"runtime_settings.runtime.{key}"
            yield Fault(wrong, f"{point.name}/point.yaml", field, declared.get(key, "none"), value or "that of the set")


def _used_seeds(point: Point, expected: SeedSet | None) -> Iterator[Fault]:
    """Compare the client's seeds with those of the set; of an unknown set, or of none, with the declared ones."""
    declared = part(part(point.declared, "runtime_settings"), "runtime")
    used = part(part(point.config, "settings"), "runtime")
    for key, value in (
        ("scheduler_random_seed", expected.scheduler if expected else count(declared, "scheduler_rng_seed")),
        ("dataloader_random_seed", expected.sample_index if expected else count(declared, "sample_index_rng_seed")),
    ):
        stated = count(used, key)
        if point.config and (stated is None or value not in (None, stated)):
            wrong = "the client's seed is not stated" if stated is None else "the client ran with another seed"
            yield Fault(wrong, f"{point.name}/config.yaml", key, used.get(key, "none"), value or "that of the set")


@check(
    "CURVE-SOFTWARE",
    source="§4.3, §8.5: one system, one benchmark model, one dataset; not checked officially",
    remedy="measure all points of the curve with the same software",
    stage=Stage.CURVE,
    each=whole,
)
def one_software(curve: Curve) -> Iterator[Fault]:
    """All points of a curve were measured with one client, one model and one software stack."""
    return (
        Fault(f"it was measured with another {name} than {before.name}", after.name, name, value, other)
        for before, after in pairwise(curve.points)
        for name, value in _software(after).items()
        if (other := _software(before).get(name)) and value and value != other
    )


@check(
    "POINT-CLIENT",
    source="§2.1: the reference client, unmodified",
    remedy="run the client from a checkout, as get,mlperf,endpoints installs it",
    severity=Severity.WARNING,
    stage=Stage.CURVE,
    each=whole,
)
def known_client(curve: Curve) -> Iterator[Fault]:
    """Each run was made by the reference client from a checkout, so that its commit is recorded."""
    return (
        Fault("the commit of the client is not recorded", point.name, "git_sha", stated or "none", "a commit")
        for point in curve.points
        if point.summary and not _COMMIT.fullmatch(str(stated := point.summary.get("git_sha")))
    )


def _software(point: Point) -> dict[str, str]:
    nodes = point.system.get("node_types")
    node = nodes[0] if isinstance(nodes, list) and nodes and isinstance(nodes[0], dict) else {}
    return {
        "client": str(point.summary.get("git_sha") or ""),
        "model": str(part(point.config, "model_params").get("name") or ""),
        "serving framework": str(point.system.get("serving_framework") or ""),
        "driver": str(node.get("driver") or ""),
        "operating system": str(node.get("operating_system") or ""),
        "software stack": str(node.get("other_software_stack") or ""),
    }

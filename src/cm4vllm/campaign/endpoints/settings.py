"""The settings of a job of MLPerf Endpoints: which curve is measured, on which servers, and where its files go."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from msgspec.structs import replace

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.campaign.asset_sources import AssetInputs, Sources, sources
from cm4vllm.campaign.live.page_address import Address
from cm4vllm.campaign.planning.steps import ScheduledJob, reruns
from cm4vllm.campaign.settings import JobSettings
from cm4vllm.common import input_types
from cm4vllm.common.clock import present
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import typed_path
from cm4vllm.common.settings import Key
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.endpoints.curve_plan import require_coverage
from cm4vllm.endpoints.curve_search import given_points
from cm4vllm.endpoints.point import require_dataset_file
from cm4vllm.endpoints.registration import require_registrable
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.rules import (
    EndpointsBenchmark,
    EndpointsRules,
    ExecutionMode,
    RulesInputs,
    SubmissionTarget,
    endpoints_rules,
)

#: The ends of a rehearsal's curve, and the samples of a pass over the stand-in's dataset, where none are given.
_REHEARSAL_C_MIN, _REHEARSAL_C_MAX, _REHEARSAL_PASS = 1, 40, 64
_FORM = "CONCURRENCY[,CONCURRENCY...]: OPTIONS[; ...], for example '23,40: --max-num-seqs=64'"


class EndpointsSettings(JobSettings, frozen=True, kw_only=True):
    """The inputs of the entry recipe."""

    benchmark: input_types.EndpointsModel = "llama3_1-8b"
    c_min: input_types.CurveMin = 0
    c_max: input_types.CurveMax = 0
    points: input_types.CurvePoints = ""
    point_args: input_types.PointArgs = ""
    extra_args: input_types.ExtraArgs = ""
    count: input_types.CurvePointCount = 0
    pass_samples: input_types.PassSamples = 0
    cohort: input_types.EndpointsCohort = ""
    offline: input_types.CurveOffline = "elected"
    submitter_file: input_types.SubmitterFile = ""
    register: Annotated[str, Key("CM_MLPERF_ENDPOINTS_REGISTER")] = ""
    endpoints_commit: input_types.EndpointsCommit = ""
    endpoints_python: input_types.EndpointsPython = ""
    endpoints_src: input_types.EndpointsSource = ""
    rules: RulesInputs = RulesInputs()


@dataclass(frozen=True, kw_only=True)
class EndpointsJob(ScheduledJob):
    """The settings, understood. `given` are the points of --points; `c_max` is 0 where a search finds it.

    `options` are further options of vLLM for single points, by their concurrency.
    """

    settings: EndpointsSettings
    rules: EndpointsRules
    target: SubmissionTarget
    benchmark: EndpointsBenchmark
    sources: Sources
    given: tuple[int, ...]
    options: Mapping[int, str]
    c_min: int
    c_max: int

    @property
    def title(self) -> str:
        return f"MLPerf Endpoints {self.rules.version}, {self.benchmark.name}"

    @property
    def notices(self) -> list[str]:
        over = [f"COHORT OVER: NOT SUBMITTABLE; {self.target.over}"] if self.target.over else []
        return [REHEARSAL_NOTICE, *over] if self.rehearsal else []

    @property
    def points(self) -> int:
        """Runs of the curve: points at fixed concurrency, and a dedicated Offline run."""
        fixed = len(self.given) or self.settings.count or self.rules.curve.least_points
        return fixed + (self.settings.offline == "dedicated")

    @property
    def is_stand_in(self) -> bool:
        """Return True where the tiny model is measured, on its own dataset."""
        return self.sources.model == "_tiny"

    @classmethod
    def of(cls, settings: EndpointsSettings) -> EndpointsJob:
        """Check `settings` against the rules. Raises UsageError at the first that does not fit."""
        mode = ExecutionMode.parse(settings.execution_mode)
        settings = replace(settings, rules=settings.rules.absolute())
        rules = settings.rules.chosen()
        _require_named_client(settings, rules)
        benchmark = rules.benchmark(settings.benchmark)
        asset_sources = sources(
            AssetInputs(
                model=benchmark.benchmark,
                model_source=settings.model_source,
                vllm_model_name=settings.vllm_model_name,
                api_server=settings.api_server,
            )
        )
        if asset_sources.model != "_tiny":
            require_dataset_file(benchmark, settings.dataset_path)
        elif settings.dataset_path:
            raise UsageError(
                "--dataset_path has no effect: the tiny model is measured on its own dataset",
                remedy="name a model (--vllm_model_name) or a server (--api_server), or leave it out",
            )
        given = given_points(settings.points)
        rehearsal = mode is ExecutionMode.TEST
        require_registrable(settings.register, rehearsal=rehearsal)
        c_min = given[0] if given else settings.c_min or _REHEARSAL_C_MIN
        c_max = given[-1] if given else settings.c_max or (_REHEARSAL_C_MAX if rehearsal else 0)
        _require_curve(rules, settings, given, c_min, c_max)
        target = _target(rules, settings, given)
        if target.over and not rehearsal:
            raise UsageError(
                "a result that is measured now cannot be submitted",
                cause=target.over,
                remedy="give newer rules: the seed sets that MLCommons has published since (seedset.yaml of "
                "mlcommons/endpoints_policies) with --seed_sets=FILE, or all rules with --rules=FILE, which "
                "get,mlperf,rules makes from a newer release of the official checker",
            )
        return cls(
            settings=settings,
            rules=rules,
            target=target,
            benchmark=benchmark,
            sources=asset_sources,
            execution_mode=mode,
            out=typed_path(settings.output_dir).absolute() / "endpoints" / mode,
            attempts=settings.attempts,
            given=given,
            options=point_options(settings.point_args, given, served=bool(settings.api_server)),
            c_min=c_min,
            c_max=c_max,
            rerun=reruns(settings.rerun),
            serve=Address.parse(settings.serve) if settings.serve else None,
            notes=(*_target_notes(rules, target), *_notes(settings, given, rehearsal=rehearsal)),
        )

    @property
    def pass_samples(self) -> int:
        """Samples of a pass over the stand-in's dataset; 0 for all."""
        return self.settings.pass_samples or (_REHEARSAL_PASS if self.rehearsal and self.is_stand_in else 0)


def _require_named_client(settings: EndpointsSettings, rules: EndpointsRules) -> None:
    """Raise UsageError where rules accept only newer clients than this version: rules are data and start none."""
    newest = rules.client.commits[-1]
    if not settings.endpoints_commit and newest not in endpoints_rules().client.commits:
        raise UsageError(
            f"these rules ask for the reference client at {newest[:12]}, which this version was not tried with",
            cause="a file of rules is data: it starts no program that was not named",
            remedy=f"name it with --endpoints_commit={newest}, or name an older one that the rules accept",
        )


def _require_curve(
    rules: EndpointsRules, settings: EndpointsSettings, given: tuple[int, ...], c_min: int, c_max: int
) -> None:
    """Raise UsageError for a curve that the rules do not allow."""
    bounds, count = rules.curve, settings.count
    if count and not bounds.least_points <= count <= bounds.most_points:
        raise UsageError(
            f"--point_count={count} is not allowed",
            cause=f"a curve has {bounds.least_points} to {bounds.most_points} points ({bounds.source})",
        )
    if c_max:
        curve = rules.regions(c_min=c_min, c_max=c_max)
        if given:
            require_coverage(rules, curve, given)


def _target(rules: EndpointsRules, settings: EndpointsSettings, given: tuple[int, ...]) -> SubmissionTarget:
    """Return the cohort and the seeds of a job, whose checks pass on the day on which it can end at the earliest."""
    points = given or (1,) * (settings.count or rules.curve.least_points)
    kept = typed_path(settings.output_dir).glob(f"endpoints/{settings.execution_mode}/points/*/{POINT_FILE}")
    points = points[len(list(kept)) :]
    least_s = sum(map(rules.least_seconds, points)) if settings.execution_mode == ExecutionMode.VALID else 0
    return rules.target(settings.cohort, (present() + timedelta(seconds=least_s)).date())


def _target_notes(rules: EndpointsRules, target: SubmissionTarget) -> list[str]:
    """Return what the plan says of rules, cohort and seeds."""
    calendar = rules.calendar
    return [
        f"{rules.title}: cohort {target.cohort} of {calendar.day_of(target.cohort)}, whose checks pass by "
        f"{calendar.last_day_of(target.cohort)}; seed set {target.seeds.name}",
        *([f"cohort over: not submittable; {target.over}"] if target.over else []),
    ]


def _notes(settings: EndpointsSettings, given: tuple[int, ...], *, rehearsal: bool) -> list[str]:
    if not rehearsal or given or settings.c_max:
        return []
    return [
        f"a rehearsal's curve goes from concurrency {settings.c_min or _REHEARSAL_C_MIN} to {_REHEARSAL_C_MAX}; "
        "--c_min and --c_max give others, and with --execution_mode=valid C_max is searched for"
    ]


def point_options(text: str, points: Collection[int], *, served: bool) -> dict[int, str]:
    """Return the options of each point that has any, by its concurrency.

    `points` are those of --points; `served` says that the server is not started by the job. Raises UsageError.
    """
    if not text.strip():
        return {}
    if served:
        raise UsageError(
            "--point_args has no effect with --api_server", cause="the job does not start that server, nor restart it"
        )
    if not points:
        raise UsageError(
            "--point_args needs --points", cause="points are placed by the rates of the server that they are run on"
        )
    options: dict[int, str] = {}
    for part in filter(str.strip, text.split(";")):
        named, colon, words = part.partition(":")
        if not colon or not words.strip():
            raise UsageError(f"--point_args: {part.strip()!r} names no options", remedy=f"give {_FORM}")
        for word in named.split(","):
            if (point := whole_number(word)) not in points or point is None:
                raise UsageError(
                    f"--point_args names {word.strip()!r}, which is none of --points={','.join(map(str, points))}",
                    remedy=f"give {_FORM}",
                )
            try:
                options[point] = shlex.join(shlex.split(words))
            except ValueError as error:
                raise UsageError(f"--point_args: {words.strip()!r} cannot be read", cause=str(error)) from error
    return options

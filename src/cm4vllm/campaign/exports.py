"""Exports of the recipes of a job, where a result of an earlier command stands in for the recipe."""

from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.settings import Key, Settings


class JobExports(Settings, frozen=True, kw_only=True):
    """The folder of a job's results, and its page."""

    results_dir: input_types.ResultsDir
    summary: Annotated[str, Key("CM_MLPERF_SUMMARY")]


class RunExports(Settings, frozen=True, kw_only=True):
    """The record of a LoadGen run."""

    record: Annotated[str, Key("CM_MLPERF_RUN_RECORD")]


class SearchExports(Settings, frozen=True, kw_only=True):
    """The record of a search for a rate, and the folder of the full-length run that passed in it, empty for none."""

    record: Annotated[str, Key("CM_MLPERF_SEARCH_RECORD")] = ""
    result: Annotated[str, Key("CM_MLPERF_SEARCH_RESULT")] = ""


class ScoresExports(Settings, frozen=True, kw_only=True):
    """The scores of an accuracy run."""

    record: Annotated[str, Key("CM_MLPERF_ACCURACY_RECORD")]


class VerdictExports(Settings, frozen=True, kw_only=True):
    """The verdict on a compliance test."""

    record: Annotated[str, Key("CM_MLPERF_COMPLIANCE_RECORD")]


class CurveExports(Settings, frozen=True, kw_only=True):
    """The record of a curve's points."""

    curve: input_types.EndpointsCurve


class PointExports(Settings, frozen=True, kw_only=True):
    """The record of a point of a curve."""

    record: Annotated[str, Key("CM_MLPERF_ENDPOINTS_POINT_RECORD")]

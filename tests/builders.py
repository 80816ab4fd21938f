"""Records and files for tests of several packages; what a test does not give has a value that no test looks at."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.planning.steps import Step
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.files import sha256_of
from cm4vllm.records.accuracy import Score
from cm4vllm.records.assets import DatasetRecord, QuantizationRecord
from cm4vllm.records.campaign import CampaignRecord
from cm4vllm.records.metrics import MetricsSample
from cm4vllm.records.searches.rate_search import Boundary, SearchRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import Terms


def job_of(**fields: Any) -> Job:
    """Return the job that settings with these fields ask for."""
    return Job.of(CampaignSettings(**fields))


def steps_of(**fields: Any) -> dict[str, Step]:
    """Return the steps of such a job by their names, in the order of its schedule."""
    return {step.name: step for step in schedule(job_of(**fields))}


def campaign_record(**values: Any) -> CampaignRecord:
    """Return the record of a rehearsal of nobody, with other `values`."""
    fields = {
        "command": "cm run script --tags=run-mlperf,inference,_vllm",
        "cm_version": "4.2.0",
        "cm4vllm_version": "0.1.0",
        "division": "open",
        "submitter": "Nobody",
        "round": "v6.1",
        "benchmark": "llama3.1-8b",
        "execution_mode": "test",
        "started_at": "2026-01-01T00:00:00+00:00",
    }
    return CampaignRecord(**{**fields, **values})


def server_record(**values: Any) -> ServerRecord:
    """Return the record of a server that this machine started, with other `values`."""
    fields = {"endpoint": "http://127.0.0.1:8000", "model_name": "m", "max_model_len": 100, "version": "0.32.0"}
    return ServerRecord(**{**fields, "owned": True, **values})


def quantization_record(**values: Any) -> QuantizationRecord:
    """Return the record of how a model was quantised, with other `values`."""
    fields = {
        **dict.fromkeys(("scheme", "weights", "activations"), "int8"),
        **{
            "kv_cache": "not quantised",
            "formula": "x",
            "layers": 14,
            "layer_kinds": ["q_proj"],
            "ignored": ["lm_head"],
        },
        **{"base_model": "base", "base_sha256": "1" * 64, "starting_weights": "base/model.safetensors", "tools": {}},
    }
    return QuantizationRecord(**{**fields, **values})


def write_dataset(folder: Path, prompts: Iterable[list[int]]) -> Path:
    """Write a dataset of these prompts, whose samples are of three sources in turn, and return its path."""
    sources = ("OpenOrca", "GSM8K", "MBXP")
    rows = [
        {"input": "text", "tok_input": ids, "output": f"answer {place}", "dataset": sources[place % 3]}
        for place, ids in enumerate(prompts)
    ]
    path = folder / "dataset.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def short_dataset(folder: Path, prompts: list[list[int]]) -> DatasetRecord:
    """Write a dataset of these prompts and return its record."""
    path = write_dataset(folder, prompts)
    facts = {"samples": len(prompts), "max_input_tokens": max(map(len, prompts)), "sentences": "punkt-untrained"}
    return DatasetRecord(name="short", path=str(path), source="made by the test", sha256=sha256_of(path), **facts)


def scores_of(run_terms: Terms, values: dict[str, float], *, samples: int) -> list[Score]:
    """Return the scores of these values by a run's targets; `samples` were answered."""
    whole = samples == run_terms.samples
    return [
        Score(
            metric=target.metric,
            label=target.label,
            value=values[target.label],
            lower=target.lower,
            upper=target.upper,
            met=target.met(values[target.label], whole=whole),
        )
        for target in run_terms.targets
    ]


def metrics_sample(**values: Any) -> MetricsSample:
    """Return what a server's metrics show at one moment: 0 for all but these values."""
    return MetricsSample(**{**dict.fromkeys(MetricsSample.__struct_fields__, 0), **values})


def search_record(**values: Any) -> SearchRecord:
    """Return the record of a search for the rate of a Server run, with other `values`."""
    fields = {
        "scenario": "Server",
        "benchmark": "llama3.1-8b",
        "confirmed": True,
        "lowest_failing": None,
        "low": values["rate"],
        "high": None,
        "binding": "TPOT",
        "cause": "",
        "boundary": Boundary.UNKNOWN,
        "precision": 0.01,
        "start": 4.0,
        "start_source": "the test",
        "stopped": "",
        "cost_s": 48.0,
    }
    return SearchRecord(**{**fields, **values})

"""The record of a campaign, for tests that need one beside runs."""

from typing import Any

from cm4vllm.records.campaign import CampaignRecord


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

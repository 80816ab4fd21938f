"""run.json: the record of one LoadGen run, beside its logs."""

from __future__ import annotations

from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.common.records import Record
from cm4vllm.rules.scenarios import Mode, Scenario
from cm4vllm.serving.records import ServerRecord

__all__ = ["ClientRecord", "RunRecord", "RunSettings"]

#: The name of the record's file in a run's folder.
RUN_FILE = "run.json"


class RunSettings(Record, frozen=True, kw_only=True):
    """All that one LoadGen run depends on: the input of the process that runs LoadGen.

    `user_conf` is the text of user.conf. `samples` is the size of the query sample library: the whole dataset, or its
    first samples in a rehearsal. `max_in_flight` bounds concurrent requests in the Offline scenario alone.
    `stream_interval` says how answers are asked for: 0 whole, k as a stream with a chunk for every k tokens, of which
    the first always comes alone.
    """

    rehearsal: bool
    round: str
    benchmark: str
    loadgen_name: str
    scenario: Scenario
    mode: Mode
    user_conf: str
    samples: int
    max_tokens: int
    min_tokens: int
    max_in_flight: int
    stream_interval: int = 1
    target_qps: float
    target_qps_source: str
    model: ModelRecord
    dataset: DatasetRecord
    server: ServerRecord


class ClientRecord(Record, frozen=True, kw_only=True):
    """What the client saw. `failures` holds one line for each kind of failure, with its count."""

    requests: int
    completed: int
    failed: int
    retries: int
    prompt_tokens: int
    completion_tokens: int
    failures: dict[str, int] = {}


class RunRecord(Record, frozen=True, kw_only=True):
    """One LoadGen run that ended. It exists only where the run's logs are whole.

    `notice` is REHEARSAL_NOTICE in a rehearsal and empty otherwise. `files` maps each log's name to the SHA-256 it had
    when the run ended, before any truncation. `versions` names the packages that took part.
    """

    notice: str
    settings: RunSettings
    settings_sha256: str
    started_at: str
    ended_at: str
    duration_s: float
    loadgen_version: str
    versions: dict[str, str]
    client: ClientRecord
    files: dict[str, str]

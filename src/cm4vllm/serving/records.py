"""What is known of the server that a run measured."""

from __future__ import annotations

from cm4vllm.common.records import Record

__all__ = ["ServerRecord"]


class ServerRecord(Record, frozen=True, kw_only=True):
    """A vLLM server. `owned` tells whether this run started it; then `argv`, `env`, `log` and `supervisor_pid` are set.

    `endpoint` is its base URL without a path, `model_name` the name it serves, `version` what its /version says.
    """

    endpoint: str
    model_name: str
    max_model_len: int
    version: str
    owned: bool
    argv: list[str] = []
    env: dict[str, str] = {}
    packages: dict[str, str] = {}
    log: str = ""
    supervisor_pid: int | None = None
    started_at: str = ""
    ready_after_s: float | None = None

"""Containers of servers whose supervisor is gone, found by their label, and removed.

They have ended with the supervisor (in_container/first_process.py); an engine that was killed too has not removed them.
"""

from __future__ import annotations

import json
from typing import Any

from cm4vllm.common.containers import ask_engine, engines
from cm4vllm.serving.containers.server_container import LABEL, pid_namespace
from cm4vllm.serving.orphans import supervisor_spec

__all__ = ["remove_leftovers"]


def remove_leftovers(engine_name: str) -> list[str]:
    """Remove the containers whose supervisor is gone, and return their names."""
    engine = engines()[engine_name]
    if not (engine.listing and engine.details and engine.removal):
        return []
    listed = ask_engine(engine, *(word.format(LABEL) for word in engine.listing))
    names = listed.output.split() if listed.ok else []
    described = ask_engine(engine, *engine.details, *names) if names else None
    try:
        containers: list[dict[str, Any]] = json.loads(described.output) if described and described.ok else []
    except ValueError:
        return []
    left = [str(container.get("Name", "")).lstrip("/") for container in containers if _is_left(container)]
    return [name for name in left if ask_engine(engine, *engine.removal, name).ok]


def _is_left(container: dict[str, Any]) -> bool:
    """Say whether no supervisor owns a container; one of another namespace of process IDs is not seen here."""
    label = str(((container.get("Config") or {}).get("Labels") or {}).get(LABEL, ""))
    namespace, _, supervisor = label.partition(".")
    return namespace == pid_namespace() and supervisor.isdigit() and supervisor_spec(int(supervisor)) is None

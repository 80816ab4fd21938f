"""Prints what the reference client in a checkout can do, as JSON: client_abilities.py CHECKOUT.

A module that this commit of the client lacks stands for nothing that it can do.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path


def main(checkout: str) -> int:
    """Print the abilities."""
    sys.path.insert(0, str(Path(checkout) / "src"))
    printed = {
        "steady_state": bool(_names_of(_detector)) and "steady_state" in _names_of(_settings),
        "rulesets": _names_of(_rulesets),
        "datasets": _names_of(_datasets),
    }
    print(json.dumps(printed))
    return 0


def _names_of(source: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return sorted(source())
    except (ImportError, AttributeError):
        return []


def _detector() -> Iterable[str]:
    return dir(importlib.import_module("inference_endpoint.metrics.steady_state_diagnostics"))


def _settings() -> Iterable[str]:
    return list(importlib.import_module("inference_endpoint.config.schema").Settings.model_fields)


def _rulesets() -> Iterable[str]:
    return list(importlib.import_module("inference_endpoint.config.ruleset_registry").list_rulesets())


def _datasets() -> Iterable[str]:
    return list(importlib.import_module("inference_endpoint.dataset_manager").Dataset.PREDEFINED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

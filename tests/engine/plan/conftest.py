"""The scripts that ran, beside those that a plan names."""

import pytest

from cm4vllm.engine.run import execution


@pytest.fixture
def ran(monkeypatch):
    """Return a list that notes each script that runs, with whether the cache had it, in the order of their starts."""
    seen = []
    original = execution.perform

    def perform(run):
        place = len(seen)
        seen.append(None)
        done = original(run)
        seen[place] = (run.task.script.alias, run.task.variations.names, done.cached)
        return done

    monkeypatch.setattr(execution, "perform", perform)
    return seen

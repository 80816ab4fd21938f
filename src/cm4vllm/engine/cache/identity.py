"""What the cache knows a run by, and the tags that people find its entry by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cm4vllm.common.redaction import is_secret_name
from cm4vllm.engine.cache.digests import recipe_digest
from cm4vllm.engine.cache.entries import Identity
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.run.environment import Env, substitute
from cm4vllm.engine.run.scope import Scope
from cm4vllm.engine.run.task import Task

__all__ = ["cache_tags", "identity_of"]


def identity_of(task: Task, scope: Scope, is_secret: Callable[[str], bool] = is_secret_name) -> Identity:
    """Return what the cache knows this run by: all that it declares to depend on, as it stands before it runs.

    Versions are left out: entries are compared by their own. So are secrets.
    """
    bare = task.of_version(Wanted())
    if len(bare.layers) != len(task.layers):
        scope = Scope.of(task.but(layers=bare.layers))
    script = task.script
    declared = set(script.input_mapping.values())
    for layer in bare.layers:
        declared |= {*layer.env, *layer.default_env, *layer.const}
    inputs = {key: scope.env[key] for key in declared if key in scope.env and not is_secret(key)
              and not key.startswith(("CM_TMP_", "CM_VERSION"))}
    made_by = dict.fromkeys(module for layer in bare.layers for module in layer.made_by)
    extra = [tag for tag in cache_tags(task, scope.env) if tag not in script.tags and not tag.startswith("_")]
    return Identity(script.uid or script.folder, recipe_digest(script, task.variations.names, made_by),
                    task.variations.names, inputs, tuple(extra))


def cache_tags(task: Task, env: Env) -> list[str]:
    """Return the tags of an entry that are known before the run: the script's, its variations, name and extra tags."""
    tags = [*task.script.tags, *(f"_{name}" for name in task.variations.names)]
    tags += [*substitute(list(task.request.extra_cache_tags), env), *_split(env.get("CM_EXTRA_CACHE_TAGS"))]
    if env.get("CM_NAME"):
        tags.append(f"name-{str(env['CM_NAME']).strip().lower()}")
    for key, prefix in task.script.cache_tags_from_env:
        tags += [f"deps-{prefix}{value}" for value in _split(env.get(key))]
    return list(dict.fromkeys(tags))


def _split(value: Any) -> list[str]:
    return [part.strip() for part in str(value or "").split(",") if part.strip()]

"""The key of a run in the cache: all dependencies that it declares, and a digest of the recipe."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import cm4vllm
from cm4vllm.common.digests import content_digest, digest_of
from cm4vllm.common.errors import RecipeError
from cm4vllm.common.secrets.secret_names import is_secret_name
from cm4vllm.engine.format.dependency import split_tags
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.run.environment import Env, substitute
from cm4vllm.engine.run.request import Task
from cm4vllm.engine.run.scope import Scope

# Keys of a meta that change how a script is found, shown or wrapped, but not what it makes.
_DESCRIPTIVE = frozenset(
    {
        "alias",
        "uid",
        "automation_alias",
        "automation_uid",
        "tags",
        "tags_help",
        "shared_tags",
        "name",
        "category",
        "category_sort",
        "developers",
        "copyright",
        "input_description",
        "print_env_at_the_end",
        "print_files_if_script_error",
        "warnings",
        "docker",
        "docker_input_mapping",
        "gui",
        "tests",
        "sort",
        "variation_groups_order",
        "cache",
        "can_force_cache",
        "min_cm_version",
        "strict_input",
        "variations",
        "inputs",
        "inputs_of",
        "input_groups",
        "variations_of",
        "input_changes",
        "removed_inputs",
        "examples",
        "data",
    }
)
_NO_PART_OF_A_RECIPE = frozenset({"_cm.yaml", "_cm.json", "__pycache__", "docs", "tests", "dockerfiles"})

_PACKAGE = os.path.dirname(os.path.abspath(cm4vllm.__file__))


class Identity(Value):
    """Identity of a script's run, versions aside: runs with equal identities are the same. `recipe` is a digest."""

    script: str
    recipe: str
    variations: tuple[str, ...]
    inputs: Mapping[str, Any]
    tags: tuple[str, ...]

    def key(self) -> str:
        """Return the digest of the whole key."""
        parts = [self.script, self.recipe, sorted(self.variations), dict(self.inputs), sorted(self.tags)]
        return digest_of(json.dumps(parts, sort_keys=True).encode())


def identity_of(task: Task, scope: Scope, is_secret: Callable[[str], bool] = is_secret_name) -> Identity:
    """Return the identity of this run in the cache: all declared dependencies, as they are before it runs.

    Versions are left out: entries are compared by their own. So are secrets.
    """
    bare = task.of_version(Wanted())
    if len(bare.layers) != len(task.layers):
        scope = Scope.of(task.but(layers=bare.layers))
    script = task.script
    declared = set(script.input_mapping.values())
    for layer in bare.layers:
        declared |= {*layer.env, *layer.default_env, *layer.const}
    inputs = {
        key: scope.env[key]
        for key in declared
        if key in scope.env and not is_secret(key) and not key.startswith(("CM_TMP_", "CM_VERSION"))
    }
    made_by = dict.fromkeys(module for layer in bare.layers for module in layer.made_by)
    extra = [tag for tag in cache_tags(task, scope.env) if tag not in script.tags and not tag.startswith("_")]
    return Identity(
        script.uid or script.folder,
        recipe_digest(script, task.variations.names, made_by),
        task.variations.names,
        inputs,
        tuple(extra),
    )


def cache_tags(task: Task, env: Env) -> list[str]:
    """Return the tags of an entry that are known before the run: the script's, its variations, name and extra tags."""
    tags = [*task.script.tags, *(f"_{name}" for name in task.variations.names)]
    tags += [*substitute(list(task.request.extra_cache_tags), env), *split_tags(env.get("CM_EXTRA_CACHE_TAGS"))]
    if env.get("CM_NAME"):
        tags.append(f"name-{str(env['CM_NAME']).strip().lower()}")
    for key, prefix in task.script.cache_tags_from_env:
        tags += [f"deps-{prefix}{value}" for value in split_tags(env.get(key))]
    return list(dict.fromkeys(tags))


def recipe_digest(script: ScriptMeta, variations: Collection[str], made_by: Iterable[str] = ()) -> str:
    """Return a digest of what a script does with these variations: its effective meta, the files beside it, and the
    modules of this package that make what it keeps.

    Texts for people (README, descriptions) and variations that are off do not count. Raises RecipeError when a module
    does not exist.
    """
    meta = {key: value for key, value in script.raw.items() if key not in _DESCRIPTIVE}
    meta["variations"] = {name: script.variations.get(name) for name in variations}
    parts = [json.dumps(meta, sort_keys=True, default=str)]
    parts += [
        f"{os.path.relpath(path, script.folder)}\0{content_digest(path)}"
        for path in sorted(_recipe_files(script.folder))
    ]
    parts += [f"{module}\0{_code_digest(module, script)}" for module in made_by]
    return digest_of(os.fsencode("\n".join(parts)))


def module_file(module: str) -> str:
    """Return the file of a module of this package, or of a data file as `rules/catalogue.yaml`; it may not exist."""
    if "/" in module:
        return os.path.join(_PACKAGE, *module.split("/"))
    return os.path.join(_PACKAGE, *module.removeprefix("cm4vllm.").split(".")) + ".py"


def _code_digest(module: str, script: ScriptMeta) -> str:
    """Return a digest of a module's lines; empty ones and comments do not count."""
    try:
        with open(module_file(module), "rb") as file:
            lines = [line for line in file if not line.isspace() and not line.lstrip().startswith(b"#")]
    except OSError as error:
        raise RecipeError(
            f"made_by of {script.title()} names {module}, which cannot be read", cause=str(error)
        ) from error
    return digest_of(b"".join(lines))


def _recipe_files(folder: str) -> Iterator[str]:
    """Yield the files of a script's folder that decide what it makes: no README, no docs, no bytecode."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _NO_PART_OF_A_RECIPE or entry.name.endswith((".md", ".pyc")) or entry.name[0] == ".":
                continue
            if entry.is_dir():
                yield from _recipe_files(entry.path)
            elif entry.is_file():
                yield entry.path

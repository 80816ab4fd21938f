"""The scripts that an action names: their pages (--help, `cm show script`), their paths, their test inputs.

cmind's own search compares each artifact of its index with all before it, reads the metas that it finds with YAML's
slow parser, and reads every meta of every repository when nothing has the tags. This search finds the same scripts
without that work.
"""

import fnmatch
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from cm4vllm.common.errors import CmError, NotFoundError
from cm4vllm.common.progress import page
from cm4vllm.engine.format.dependency import PHASES, Dependency, Raw, split_tags
from cm4vllm.engine.format.meta import ScriptMeta, load_script
from cm4vllm.engine.format.script_catalogue import Catalogue, slim
from cm4vllm.engine.format.variations import are_defined
from cm4vllm.engine.plan.chain import has_hook, runs_scripts, source_text_of
from cm4vllm.engine.run.hooks import Hooks
from cm4vllm.engine.run.request import Request, Task, candidates
from cm4vllm.engine.run.scope import Scope
from cm4vllm.engine.tools.input_lists import Row, input_lists

Result = dict[str, Any]


def find_scripts(automation: Any, i: Result) -> Result:
    """Return, as cmind's artifacts, the scripts that have all the tags and none of the tags with a leading dash.

    Without tags, or with a name or one of the flags of cmind's reindexing, cmind's own search answers.
    """
    words = split_tags(i.get("tags"))
    wanted = {word for word in words if not word.startswith("-")}
    if not wanted or i.get("parsed_artifact") or i.get("skip_index_search") or i.get("force_index_add"):
        from cmind.automation import Automation

        answer: Result = Automation.search(automation, i)
        return answer
    excluded = {word[1:] for word in words if word.startswith("-")}
    scripts: list[Any] = []
    catalogue = Catalogue(automation.cmind)
    folders = catalogue.indexed_folders(wanted) or [
        (summary.path, summary.repo) for summary in catalogue.summaries if wanted <= set(summary.tags)
    ]
    for folder, repo in folders:
        meta = catalogue.metas.read(folder)
        artifact = _artifact(automation.cmind, folder, repo)
        artifact.original_meta, artifact.meta = meta, dict(meta)
        if meta.get("_base"):
            loaded: Result = artifact.load(ignore_inheritance=bool(i.get("ignore_inheritance")))
            if loaded["return"]:
                return loaded
        if excluded.isdisjoint(tags := artifact.meta.get("tags") or ()) and wanted <= set(tags):
            scripts.append(artifact)
    catalogue.metas.keep()
    slim(automation.cmind)
    if i.get("out") == "con":
        for artifact in scripts:
            page(str(artifact.path))
    return {"return": 0, "list": scripts}


def _artifact(cmind: Any, folder: str, repo: str) -> Any:
    """Return cmind's object for the script in a folder, with its repository."""
    from cmind.artifact import Artifact

    artifact = Artifact(cmind=cmind, path=folder)
    if repo in cmind.repos.extra_info:
        artifact.repo_path = cmind.repos.extra_info[repo].path
        artifact.repo_meta = cmind.repos.extra_info[repo].meta
    return artifact


def asked_scripts(catalogue: Catalogue, i: Mapping[str, Any]) -> list[ScriptMeta]:
    """Return the scripts that an action's input names: `--tags=a,b`, `alias`, `repo:alias`, `ali*`, or tags as words.

    Without any, all scripts. Raises NotFoundError when nothing matches.
    """
    artifact = str(i.get("artifact") or "").strip()
    if not artifact and not i.get("tags"):
        return catalogue.all()
    if i.get("tags") or " " in artifact:
        return _fitting_scripts(catalogue, Request.of(i, ""))
    repo, _, name = artifact.rpartition(":")
    if "*" in name:
        scripts = [
            script
            for script in catalogue.all()
            if fnmatch.fnmatchcase(script.alias, name) and (not repo or script.repo == repo)
        ]
        if not scripts:
            raise NotFoundError(f"no scripts were found with the name {artifact!r}")
        return scripts
    try:
        return _fitting_scripts(catalogue, Request.of(i, ""))
    except NotFoundError:
        if repo:
            raise
        return _fitting_scripts(catalogue, Request.of({"tags": name}, ""))


def _fitting_scripts(catalogue: Catalogue, request: Request) -> list[ScriptMeta]:
    scripts = candidates(catalogue, request)
    return [script for script in scripts if are_defined(script, request.variations)] or scripts


def test_scripts(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Run the test inputs of the scripts with these tags, or of all scripts. The first failure ends it."""
    scripts = asked_scripts(Catalogue(automation.cmind), i)
    done: list[str] = []
    for script in scripts:
        print(script.folder)
        for given in (script.raw.get("tests") or {}).get("run_inputs") or []:
            result = automation.run({"quiet": True, **given, "artifact": script.uid})
            if result["return"]:
                return dict(result)
            done.append(script.alias)
    return {"return": 0, "scripts": [script.alias for script in scripts], "runs": done}


#: Columns of a page where the terminal does not say how many it has.
_WIDTH = 100
_GENERAL = """\
cm run script --tags=<tag>,<tag>,_<variation>,... [--<input>=<value> ...]

  --help               with tags: the script's inputs and outputs
  --plan, --graph      what a run would do, as a tree or a Mermaid graph; nothing is run
  --env.KEY=value      set an environment key     --const.KEY=value   the same; nothing overrides it
  --adr.<name>.tags=_x change the dependency <name>    --version=, --version_min=, --version_max=
  --new, --renew       make a second cache entry, make the existing one again        --skip_cache
  --quiet, -s, -v      ask nothing, print nothing, print more       -j  print the result as JSON

cm find script         where scripts are, by --tags= or name
cm show script         their inputs, variations and outputs
cm plan script         what a run would do
cm lint script         probable mistakes in their metas
cm test script         run the inputs that their metas give for tests
cm add script <name>   create a script from a template
cm docker script       build and run one in a container; dockerfile: only write the Dockerfile
cm doctor script       problems of the CM home and this machine, with remedies

cm show cache          what is cached, with sizes and ages; also cm find cache and cm rm cache, by --tags="""


def script_help(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print the page of each script asked for, or how to ask; return cmind's result."""
    if i.get("tags") or i.get("artifact"):
        catalogue = Catalogue(automation.cmind)
        scripts, read = asked_scripts(catalogue, i), catalogue.metas.read
        page("\n\n".join(describe(script, input_values(script, {"tags": i.get("tags")}, read)) for script in scripts))
    else:
        page(_GENERAL)
    return {"return": 0}


def input_values(script: ScriptMeta, given: Mapping[str, Any], read: Callable[[str], Raw]) -> dict[str, list[str]]:
    """Return the values of each input whose recipe has the hook `values`.

    The hook gets the environment of the script as `given` asks for it, since tags and other inputs may decide about the
    values. `read` reads the meta in a folder: an input may be described by another script beside this one.
    """
    request = Request.of({**given, "tags": given.get("tags") or list(script.tags), "artifact": script.uid}, "")
    try:
        env = Scope.of(Task.of(script, request)).env
    except CmError:
        env = {}  # variations or values that this script does not take
    by_flag: dict[str, list[str]] = {}
    for alias in dict.fromkeys(
        str(entry.get("of") or script.alias)
        for entry in script.input_description.values()
        if isinstance(entry, Mapping)
    ):
        described_by = (
            script if alias == script.alias else load_script(str(script.path.with_name(alias)), script.repo, read)
        )
        if has_hook(source_text_of(described_by), "values"):
            with suppress(CmError):  # what cannot be known is left out
                answer = Hooks(described_by).call("values", {"env": {**env}})
                by_flag |= {flag: [str(value) for value in values] for flag, values in answer.get("values", {}).items()}
    return by_flag


def describe(script: ScriptMeta, values: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """Return a page about a script: purpose, examples, inputs, variations by group, dependencies and what it gives.

    `values` are what inputs take, beside those that the meta says.
    """
    typed = script.tags_help.strip().strip('"') or ",".join(script.tags)
    head = [
        f"{script.alias}  ({script.uid}, of {script.repo or 'an unregistered repository'})",
        *_wrap(script.purpose, "  ", "  "),
        "",
        *(line for example in script.examples or [typed] for line in command_lines(example, "  ", _terminal_width())),
        "",
        f"  path      {script.path}",
        *_wrap(", ".join(script.tags), "  tags      ", " " * 12),
        f"  cached    {'yes' if script.cache else 'when asked for' if script.can_force_cache else 'no'}",
    ]
    if script.layer.default_version or script.versions:
        listed = ", ".join(script.versions)
        known = f" (known: {listed})" if listed else ""
        head += _wrap(f"{script.layer.default_version or 'any'}{known}", "  versions  ", " " * 12)
    more = runs_scripts(source_text_of(script))
    lists = input_lists(script, values)
    width = _left_width(row for rows in lists.values() for row in rows)
    parts = [
        *((f"inputs: {title}".removesuffix(": "), _columns(rows, width)) for title, rows in lists.items()),
        ("variations", _columns(variations_of(script))),
        ("depends on", _dependencies(script)),
        ("runs further scripts", [f"  cm plan script --tags={typed} lists them"] if more else []),
        ("brings", [f"  {_brought(bring)}" for bring in script.layer.brings]),
        ("gives", [f"  {key}" for key in _exports(script)]),
    ]
    shown = (line for title, lines in parts if lines for line in ("", f"  {title}", *(f"  {line}" for line in lines)))
    return "\n".join([*head, *shown])


def _exports(script: ScriptMeta) -> list[str]:
    layer = script.layer
    state = [f"{key} (state: shown by --out=json)" for key in layer.new_state_keys]
    return [*layer.new_env_keys, *state] or ["files alone: no environment key"]


def command_lines(example: str, indent: str, width: int) -> list[str]:
    """Return an example as it can be typed, a long one in several lines."""
    lines = _wrap(f"cm run script --tags={example}", indent, f"{indent}    ", width - 2)
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _wrap(text: str, first: str, rest: str, width: int = 0) -> list[str]:
    """Return the lines of a text, at most `width` wide (0: the terminal), after `first` and then `rest`."""
    return textwrap.wrap(
        text,
        width or _terminal_width(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _terminal_width() -> int:
    return max(shutil.get_terminal_size((_WIDTH, 24)).columns, 60)


def variations_of(script: ScriptMeta) -> list[Row]:
    """Return name and variations of each group; the ones of no group come last."""
    groups: dict[str, list[str]] = {}
    for name, raw in script.variations.items():
        if "," not in name:  # combinations are not asked for: they come with their parts
            mark = " (default)" if raw.get("default") else f" (is _{raw['alias']})" if raw.get("alias") else ""
            groups.setdefault(str(raw.get("group") or ""), []).append(f"_{name}{mark}")
    ordered = sorted(groups.items(), key=lambda item: (item[0] == "", item[0]))
    free = "any of" if len(groups) > 1 else ""
    return [(f"{group}:" if group else free, ", ".join(names)) for group, names in ordered]


def _dependencies(script: ScriptMeta) -> list[str]:
    """Return the lines that list the dependencies of a script, each with its phase."""
    texts = dict.fromkeys(
        ("" if phase == "deps" else f"{phase}: ") + _dependency(dependency)
        for phase in PHASES
        for dependency in script.layer.deps[phase]
    )
    width = _terminal_width() - 4
    return [f"  {line}" for text in texts for line in _wrap(text, "", "    ", width)]


def _dependency(dependency: Dependency) -> str:
    conditions = dependency.conditions
    conditional = any((conditions.enable_all, conditions.enable_any, conditions.skip_all, conditions.skip_any))
    names = f" [{', '.join(sorted(dependency.names))}]" if dependency.names else ""
    return ",".join(dependency.tags) + names + (" (conditional)" if conditional else "")


def _brought(bring: Any) -> str:
    return " ".join(filter(None, [bring.how, bring.what or bring.package or bring.requirements]))


def _columns(rows: Sequence[Row], width: int = 0) -> list[str]:
    """Return the lines of two aligned columns, the first `width` wide (0: as its words are); the second is wrapped."""
    width = width or _left_width(rows)
    whole = max(_terminal_width() - 4, width + 44)
    return [line for left, right in rows for line in _wrap(right, f"  {left:<{width}}  ", f"  {'':<{width}}  ", whole)]


def _left_width(rows: Iterable[Row]) -> int:
    return min(max((len(left) for left, _ in rows), default=0), 34)

"""Plan of a run, made without writing, and without running any code of a script but its hook `plan`.

The tree is walked as a run walks it, over the same tasks and scopes. The exports of a script that runs are not known:
its keys become facts (`planned_task.py`), and each value that depends on a fact says so. These exports are known: of a
script without customize.py and run.sh those in its meta, of a cache entry those that it holds, of a customize.py with
a hook `plan` those that the hook states (`chain.py`).
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import require_writable
from cm4vllm.engine.cache.entries import Cache, Damaged, finished_entries
from cm4vllm.engine.cache.reuse import identity_of
from cm4vllm.engine.format.dependency import PHASES, Amendment, Dependency, amendments_of, both
from cm4vllm.engine.format.meta import Bring, Layer, ScriptMeta
from cm4vllm.engine.format.variations import are_defined
from cm4vllm.engine.plan.chain import PlannedStep, has_hook, may_end_early, runs_scripts, source_text_of, warnings_of
from cm4vllm.engine.plan.planned_task import (
    Brought,
    Exports,
    Node,
    PlannedTask,
    Status,
    brought_by,
    decide,
    facts_in,
    in_words,
    unknown,
)
from cm4vllm.engine.run.environment import merge_into
from cm4vllm.engine.run.flags import flag, require_inputs
from cm4vllm.engine.run.hooks import rewording, working_in
from cm4vllm.engine.run.python_packages import listed_once, missing_of
from cm4vllm.engine.run.request import Request, candidates, select, without_replaced_variations
from cm4vllm.engine.run.scope import complete, remarks, with_amendments
from cm4vllm.engine.run.session import DEEPEST, Session, depends_on_itself

#: The mark in place of a branch that is not entered again.
_TOLD_ABOVE = "its dependencies are shown above"
#: The reason of an entry that depends on a script which only the run decides about.
_MADE_BEFORE = "whether it was made before"
#: The reason of an entry that a shell file of the script decides about.
_JUDGED = "what its validate_cache.sh says of the entry"
#: Why a script is in the tree that another's own code runs.
_STEP = "step"


@dataclass(frozen=True, slots=True)
class _Made:
    """An entry that will be there once a node before has run."""

    script: str
    asked: str
    certain: bool
    exports: Exports


def plan(session: Session, request: Request) -> Node:
    """Return the plan of a run of `request`. Raises CmError when it is not clear which script is meant."""
    planner = _Planner(session, request.adr)
    root = Node(tags=request.title(), why="asked for")
    planner.fill(root, lambda: request, certain=True)
    if root.error is not None:
        raise root.error
    root.notes += warnings_of(session.catalogue, request, session.near)
    return root


class _Planner:
    def __init__(self, session: Session, adr: Iterable[Amendment] = ()) -> None:
        """Take the session whose scripts are planned, and the changes of dependencies that hold for all of them."""
        self.session = session
        self.adr = adr
        self.cache = Cache(session.automation.cmind)
        #: The packages that are missing: a plan installs none, and asks again for each recipe that needs them.
        self.missing: Callable[[Path], list[str]] = cache(missing_of)
        self.made: dict[str, _Made] = {}
        #: Scripts of which an entry will be made under a key that only the run can tell.
        self.made_unseen: set[str] = set()
        self.stack: list[PlannedTask] = []
        #: Whether the plan is one for another machine, of whose cache and packages nothing is known.
        self.is_elsewhere = False
        #: The scripts that were entered before.
        self.seen: set[tuple[Path, tuple[str, ...], Status]] = set()
        #: The script that sets a fact, by its key.
        self.setters: dict[str, str] = {}

    def fill(
        self, node: Node, asked: Callable[[], Request], *, certain: bool, added: frozenset[str] = frozenset()
    ) -> Exports:
        """Fill in the node of a request, with all nodes below it, and return its exports.

        `added` are facts whose values, if there are any, become tags.
        """
        try:
            request = self.without_replaced_variations(asked())
            node.tags = in_words(request.title())
            if facts := added | self.open_facts(request):
                node.open_facts = self.words(facts)
                node.brings = self.possibly_brought(request)
                return Exports.of_patterns(self.patterns_of_any(request))
            node.script = select(self.session.catalogue, request, self.near)
            return self.fill_known(node, asked, certain=certain)
        except CmError as error:
            if facts := facts_in(str(error)):
                node.status, node.open_facts = Status.OPEN, self.words(facts)
                return Exports.of_patterns(["*"])
            node.status, node.error = Status.FAILS, error
            return Exports()

    @property
    def near(self) -> str:
        """The folder of scripts to prefer: that of the script whose dependencies are planned."""
        return os.path.dirname(self.stack[-1].script.folder) if self.stack else self.session.near

    def without_replaced_variations(self, request: Request) -> Request:
        """Return a request without the variations that amendments have replaced, where its script is known."""
        return (
            request
            if facts_in(request.tags)
            else without_replaced_variations(self.session.catalogue, request, self.near)
        )

    def open_facts(self, request: Request) -> frozenset[str]:
        """Return the facts without which it is not known which script is meant."""
        facts = facts_in([request.tags, request.excluded_tags, request.excluded_variations])
        if facts or not (in_variations := facts_in(request.variations)):
            return facts
        scripts = candidates(self.session.catalogue, request)
        return frozenset() if any(are_defined(script, request.variations) for script in scripts) else in_variations

    def patterns_of_any(self, request: Request) -> list[str]:
        """Return the patterns of the keys that any of the possible scripts may export."""
        if facts_in(request.tags):
            return ["*"]
        scripts = candidates(self.session.catalogue, request)
        raws = [raw for script in scripts for raw in (script.raw, *script.variations.values())]
        return [str(key) for raw in raws for key in raw.get("new_env_keys") or ()]

    def possibly_brought(self, request: Request) -> tuple[Brought, ...]:
        """Return the things that any of the scripts that may be meant brings, in any of its variations."""
        if facts_in(request.tags):
            return ()
        brought: dict[Brought, None] = {}
        for script in candidates(self.session.catalogue, request):
            layers = [script.layer, *(Layer.of(raw) for name, raw in script.variations.items() if "#" not in name)]
            for layer in layers:
                brought |= dict.fromkeys(brought_by(script, layer.brings, request.wanted, self.missing, request.env))
        return tuple(brought)

    def fill_known(self, node: Node, asked: Callable[[], Request], *, certain: bool) -> Exports:
        """Fill in a node whose script is known, and what is below it; return what the script exports."""
        assert node.script is not None  # noqa: S101 the caller has set it
        globs: list[str] = []
        if self.stack:
            globs = self.stack[-1].all_globs
            self.stack[-1].learn(node.script.vocabulary)
        frame = PlannedTask(self.without_replaced_variations(asked()), node.script, globs)
        node.variations = tuple(map(in_words, frame.task.variations.names))
        node.asked = "" if str(frame.wanted) == "any" else in_words(str(frame.wanted))
        node.notes += remarks(frame.task, frame.env)
        node.status, node.open_facts, key = self.settle(node, frame)
        seen = (node.script.path, node.variations, node.status)
        has_more = any(layer.deps[phase] for layer in frame.task.layers for phase in PHASES)
        if not certain and has_more and seen in self.seen and node.status is not Status.CACHED:
            # Below what need not happen nothing is exact, and a tree of such branches has no end.
            node.notes.append(_TOLD_ABOVE)
            return frame.exports(runs_code=True)
        self.check_circle(frame)
        self.seen.add(seen)
        self.stack.append(frame)
        try:
            exports = self.below(node, frame, certain=certain)
        finally:
            self.stack.pop()
        if key:
            self.made[key] = _Made(frame.script.uid, frame.wanted.pip_text(), certain, exports)
        for key in {*exports.open, *exports.assured}:
            self.setters[key] = node.script.title()
        return exports

    def check_circle(self, frame: PlannedTask) -> None:
        """Raise an error if a script would need itself with the same variations and environment."""
        same = [
            other
            for other in self.stack
            if other.script is frame.script and other.task.variations.names == frame.task.variations.names
        ]
        if any(other.env == frame.env for other in same) or len(self.stack) >= DEEPEST:
            raise depends_on_itself([other.script for other in [*self.stack, frame]])

    # --- cached or not -----------------------------------------------------------------------------------------------

    def settle(self, node: Node, frame: PlannedTask) -> tuple[Status, tuple[str, ...], str]:
        """Return a node's status, what it depends on where that is open, and the key of the entry that it makes."""
        if not frame.is_kept:
            return Status.RUN, (), ""
        if flag(frame.request.inputs, "new", "renew"):
            return Status.MAKE, (), ""
        identity, wanted, uid = identity_of(frame.asked, frame.scope), frame.wanted, frame.script.uid
        if facts := facts_in([identity.variations, identity.inputs, identity.tags, wanted.pip_text()]):
            may_be_there = self.may_be_there(frame.script)
            self.made_unseen.add(uid)
            return (Status.OPEN, self.words(facts), "") if may_be_there else (Status.MAKE, (), "")
        key = identity.key()
        if not self.is_elsewhere and (entry := self.cache.find(key, wanted)) is not None:
            try:
                entry.result()
            except Damaged as damage:
                node.notes.append(f"its cache entry has changed since it was made: {damage}")
            else:
                node.entry = entry
                is_judged = (frame.script.path / "validate_cache.sh").is_file()
                return (Status.OPEN, (_JUDGED,), "") if is_judged else (Status.CACHED, (), "")
        if (made := self.made.get(key)) is not None:
            if made.certain and (not wanted or made.asked == wanted.pip_text()):
                return Status.REUSED, (), ""
            return Status.OPEN, ("its version" if made.certain else _MADE_BEFORE,), ""
        return (Status.OPEN, (_MADE_BEFORE,), "") if uid in self.made_unseen else (Status.MAKE, (), key)

    def may_be_there(self, script: ScriptMeta) -> bool:
        """Return True if the cache has, or will have by now, any entry of this script."""
        made = self.made_unseen | {made.script for made in self.made.values()}
        kept = () if self.is_elsewhere else finished_entries(self.cache.root)
        return script.uid in made or any(entry.script_uid == script.uid for entry in kept)

    # --- what is below -----------------------------------------------------------------------------------------------

    def below(self, node: Node, frame: PlannedTask, *, certain: bool) -> Exports:
        """Fill in what is below a node by its status, and return what its script exports."""
        if node.status in (Status.REUSED, Status.CACHED):
            for phase in PHASES:
                self.dependencies(node, frame, phase, certain=certain, only_dynamic=True)
            return self.kept_exports(node, frame)
        if not facts_in(str(frame.wanted)):
            node.version = in_words(frame.settle_version())
        brings = [bring for layer in frame.task.layers for bring in layer.brings]
        node.brings = brought_by(frame.script, brings, frame.wanted, self.missing, frame.env)
        if node.status is Status.MAKE:
            require_writable(Path(self.cache.root), "CM_REPOS")
        certain = certain and node.status is not Status.OPEN
        source = source_text_of(frame.script)
        if has_hook(source, "before_deps"):
            node.notes += self.before_deps(frame)
        require_inputs(self.session.catalogue, frame.script, frame.env)
        self.dependencies(node, frame, "deps", certain=certain)
        is_known = has_hook(source, "plan") and self.code(node, frame, certain=certain)
        if source and not is_known:
            if runs_scripts(source):
                node.notes.append("its customize.py may run further scripts, which are not known before the run")
            frame.blur()
        early_end = ("only if preprocess does not skip it",) if may_end_early(source) else ()
        self.dependencies(node, frame, "prehook_deps", certain=certain, only_if=early_end)
        runs_shell = any(frame.script.path.glob(f"{frame.task.script_name or 'run'}*.sh"))
        if runs_shell:
            frame.blur()
        for phase in ("posthook_deps", "post_deps"):
            self.dependencies(node, frame, phase, certain=certain, only_if=early_end)
        return frame.exports(runs_code=(bool(source) and not is_known) or runs_shell)

    def kept_exports(self, node: Node, frame: PlannedTask) -> Exports:
        """Return what an entry of the cache exports, or one that this plan has already made."""
        if node.entry is not None:
            return Exports(known=node.entry.result()["new_env"])
        return self.made[identity_of(frame.asked, frame.scope).key()].exports

    # --- what its own code does --------------------------------------------------------------------------------------

    def before_deps(self, frame: PlannedTask) -> list[str]:
        """Let a script refuse and complete its inputs, where their values are known; return its notes on the run.

        Of a step of a larger job that gets what earlier steps export, that job has checked the inputs.
        """
        if facts_in([frame.env.get(key) for key in frame.script.input_mapping.values()]):
            return []
        env = frame.known_env
        result = self.call_hook(frame, "before_deps", env)
        frame.env.update(env)
        complete(frame.scope)
        frame.learn(frame.vocabulary)
        return list(map(str, result.get("notes") or ()))

    def call_hook(self, frame: PlannedTask, hook: str, env: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call a hook of a script as a run would. Raises what the run would raise there."""
        with working_in(frame.request.folder), rewording(frame.script, frame.request):
            given = {"env": env, "input": dict(frame.request.inputs), "automation": self.session.automation}
            return self.session.hooks_of(frame.script).call(hook, given)

    def code(self, node: Node, frame: PlannedTask, *, certain: bool) -> bool:
        """Apply what the hook `plan` of a script states; return True if it states what the code changes."""
        said = self.call_hook(frame, "plan", frame.known_env)
        if said.get("elsewhere"):
            self.is_elsewhere, self.missing = True, listed_once()
        steps = [PlannedStep.of(raw) for raw in said.get("steps") or ()]
        node.takes = str(said.get("takes") or "")
        if "brings" in said:
            brings = [Bring.of(entry) for entry in said["brings"]]
            node.brings = brought_by(frame.script, brings, frame.wanted, self.missing, frame.env)
        merge_into(frame.env, said.get("env") or {})
        if "adr" in said:
            frame.request = frame.request.but(adr=amendments_of(said["adr"]))
        for step in steps:
            self.step(node, frame, step, certain=certain)
        return "env" in said or "steps" in said

    def step(self, node: Node, frame: PlannedTask, step: PlannedStep, *, certain: bool) -> None:
        """Add the node of a script that the code runs, and take what it returns."""
        entry = step.entry.with_change({"env": {key: unknown(key) for key in step.unknown}})
        entry = with_amendments(entry, frame.request.adr, frame.env)
        self.setters.update(step.unknown)
        conditions = (f"only if {step.only_if}",) if step.only_if else ()
        child = Node(
            tags=in_words(",".join(entry.tags)),
            why=_STEP,
            parent=frame.script.title(),
            name=step.name,
            names=tuple(sorted(entry.names)),
            data=step.data,
            only_if=conditions,
            notes=[*step.notes, *self.changes_typed_for(entry.names)],
            env={key: in_words(str(value)) for key, value in entry.env.items()},
        )
        node.children.append(child)
        exports = self.fill(child, lambda: self.asked_by_code(frame, entry), certain=certain and not conditions)
        if child.script is not None and child.status not in (Status.CACHED, Status.REUSED):
            child.brings += brought_by(child.script, step.brings, frame.wanted, self.missing, frame.env)
        frame.take(exports, certain=certain and not conditions)

    def asked_by_code(self, frame: PlannedTask, entry: Dependency) -> Request:
        """Return the request of a hook: with its whole environment and the adr of its caller."""
        asked = frame.asked_of(entry, "post_deps")
        return asked.but(
            const={},
            state={},
            adr=frame.request.adr,
            wanted=entry.wanted,
            is_dependency=False,
            inputs={**asked.inputs, "env": asked.env, "quiet": True},
        )

    def dependencies(
        self,
        node: Node,
        frame: PlannedTask,
        phase: str,
        *,
        certain: bool,
        only_dynamic: bool = False,
        only_if: tuple[str, ...] = (),
    ) -> None:
        """Add the nodes of the dependencies that may take part in a phase, and take what each returns."""
        for dependency in frame.scope.phases[phase]:
            taken, truth = frame.with_certain_changes(dependency)
            truth = both(truth, decide(taken.conditions, frame.env))
            if truth is False or (only_dynamic and not taken.dynamic):
                continue
            facts = truth if isinstance(truth, frozenset) else ()
            conditions = (*only_if, *(f"depends on {fact}" for fact in self.words(facts)))
            child = Node(
                tags=in_words(",".join(taken.tags)),
                why=phase,
                parent=frame.script.title(),
                names=tuple(sorted(taken.names)),
                added_by=frame.origin(dependency, phase),
                only_if=conditions,
                notes=self.changes_typed_for(taken.names),
                env={key: in_words(str(value)) for key, value in taken.env.items()},
            )
            node.children.append(child)
            asked = partial(frame.asked_of, taken, phase)
            child_certain = certain and not conditions
            exports = self.fill(child, asked, certain=child_certain, added=frame.added_by_facts(taken))
            frame.take(exports, certain=child_certain)

    def changes_typed_for(self, names: Collection[str]) -> list[str]:
        """Return a line for each change that was typed for one of these names."""
        return [
            f"--adr.{given.name}: {', '.join(f'{key}={in_words(str(value))}' for key, value in given.change.items())}"
            for given in self.adr
            if given.name in names
        ]

    def words(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return each fact in words, with the script that sets it."""
        return tuple(f"{key}, which {self.setters[key]} sets" if key in self.setters else key for key in sorted(keys))

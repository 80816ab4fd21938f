"""Every message of the package that names a flag names one that the command at hand accepts.

The command at hand is the main job where it reaches the module, by a recipe that it runs, and else each recipe whose
customize.py does. A message may name another command first (`cm run script --tags=a,b --flag`, or the tags alone as in
`--flag of a,b`): then that one must accept the flag.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.engine.format.dependency import PHASES
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.run.flags import ENGINE_FLAGS
from recipes import recipes
from syntax import nodes_of
from test_architecture import MODULES, imports_of, module

pytestmark = pytest.mark.xdist_group("source")

ROOT = Path(__file__).resolve().parents[1]
MAIN = "run-mlperf-inference-app"
#: The entry of the benchmark with a package of its own.
ENDPOINTS = "run-mlperf-endpoints"
#: Flags of cm have underscores; a hyphen inside is another program's: vLLM's, pip's, docker's.
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_]*)(?![\w-]|-\w)")
COMMAND = re.compile(r"--tags=([^\s;)]+)|\b(?:of|to) ((?:\w[\w-]*,)+\w[\w-]*)")
#: Other programs, whose flags follow their names in the same message.
OTHER_PROGRAM = re.compile(
    r"\b(?:docker run|podman run|nvidia-ctk|vllm serve|pip|"
    r"python3? -m|cloudflared|kubectl|git|pacman|cm (?:pull|add) repo|inference-endpoint)\b"
)
DOCKERFILE = re.compile(r"^(?:FROM|RUN|WORKDIR|COPY|ENTRYPOINT|ARG) ", re.MULTILINE)
VALUE = "\N{REPLACEMENT CHARACTER}"


def accepted_by(script: ScriptMeta) -> set[str]:
    return {*script.input_mapping, *script.input_description, *ENGINE_FLAGS}


def answering(tags: str) -> list[ScriptMeta]:
    """Return the recipes with these tags; variations and placeholders aside."""
    words = {word for word in tags.split(",") if word and word[0] not in "_<#-." and VALUE not in word}
    return [script for script in recipes().values() if words and words <= set(script.tags)]


# --- which recipe reaches which module --------------------------------------------------------------------------------


@cache
def own_modules(name: str) -> frozenset[str]:
    """Return the modules of the package that the customize.py of a recipe imports, directly or in turn."""
    customize = ROOT / "script" / name / "customize.py"
    waiting = [*imports_of(nodes_of(customize), "")] if customize.is_file() else []
    seen: set[str] = set()
    while waiting:
        if (reached := waiting.pop()) not in seen:
            seen.add(reached)
            waiting += module(reached).imported
    return frozenset(seen)


def runs(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the recipes that a recipe runs, itself included."""
    if name in seen:
        return set()
    script = recipes()[name]
    layers = [script.layer, *(script.variation(key, key).layer for key in script.variations)]
    below = {name}
    asked = [",".join(dep.tags) for layer in layers for phase in PHASES for dep in layer.deps[phase]]
    for tags in [*asked, *(main_job_steps() if name == MAIN else ())]:
        for other in answering(tags):
            below |= runs(other.path.name, seen | {name})
    return below


def main_job_steps() -> set[str]:
    """Return the tags of all steps that the main job may take."""
    jobs = [
        Job.of(
            CampaignSettings(
                execution_mode="valid", quantize="int8", model_source="_hf.owner/name", compliance="TEST06"
            )
        ),
        Job.of(CampaignSettings(api_server="http://127.0.0.1:1")),
        Job.of(CampaignSettings(search="max-num-seqs:8..64")),
    ]
    return {step.tags for job in jobs for step in schedule(job)}


@cache
def in_the_main_job() -> frozenset[str]:
    return frozenset(runs(MAIN))


@cache
def commands_at_hand(name: str) -> list[ScriptMeta]:
    if "endpoints" in name.split("."):
        return [recipes()[ENDPOINTS]]
    reaching = [recipe for recipe in recipes() if name in own_modules(recipe)]
    if not reaching or set(reaching) & in_the_main_job():
        return [recipes()[MAIN]]
    return [recipes()[recipe] for recipe in reaching]


# --- what the messages name -------------------------------------------------------------------------------------------


def text_of(node: ast.AST) -> str:
    """Return a text, a formatted one or a sum of them with a sign in place of each value; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else VALUE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of what a module says to people: its texts with a space, docstrings aside, and all remedies.

    Dockerfiles are written for another program.
    """
    nodes = nodes_of(path)
    documents = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    remedies = {
        id(part)
        for node in nodes
        if isinstance(node, ast.keyword) and node.arg in ("remedy", "elsewhere")
        for part in ast.walk(node.value)
    }
    inner: set[int] = set()
    for node in nodes:
        text = text_of(node)
        if not text or id(node) in documents or id(node) in inner:
            continue
        inner |= {id(part) for part in ast.walk(node)}
        if (" " in text.strip() or id(node) in remedies) and not DOCKERFILE.search(text):
            yield getattr(node, "lineno", 0), text


def refused(name: str, text: str) -> list[str]:
    """Return the flags in a message that neither the command at hand nor the one named in the same clause accepts."""
    flags = []
    for clause in re.split(r"[,;]\s|\n", text):
        named = [tags for match in COMMAND.finditer(clause) for tags in filter(None, match.groups())]
        if any(VALUE in tags for tags in named):
            continue  # which recipe it is, only the run knows
        accepting = [script for tags in named for script in answering(tags)] or commands_at_hand(name)
        for match in FLAG.finditer(clause):
            if (
                match[1] not in ENGINE_FLAGS
                and not OTHER_PROGRAM.search(clause[: match.start()])
                and not all(match[1] in accepted_by(script) for script in accepting)
            ):
                flags.append(f"--{match[1]} ({', '.join(script.alias for script in accepting)})")
    return flags


def test_the_check_finds_a_flag_of_another_recipe():
    refused_by = partial(refused, "serving.server")
    assert refused_by("give it more seconds with --node_ip") == ["--node_ip (run-mlperf-inference-app)"]
    assert refused_by("give --node_ip of run,ray-cluster, or --port") == []
    assert refused_by("cm run script --tags=get,ml-model --ready_timeout=9") == ["--ready_timeout (get-ml-model)"]
    assert refused_by("start `vllm serve --node_ip`, or lower --max-num-seqs") == []


def test_a_message_names_only_flags_that_the_command_at_hand_accepts():
    assert [
        f"{path}:{line}: {flag}: {text!r}"
        for name, path in MODULES.items()
        for line, text in messages(path)
        for flag in refused(name, text)
    ] == []

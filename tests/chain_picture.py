"""The recipes and what they declare as dependencies, drawn: python tests/chain_picture.py > docs/pictures/chain.svg

An arrow goes from a recipe to one that its `_cm.yaml` names as a dependency, in the recipe itself or in a variation.
"""

from cm4vllm.campaign.planning.steps import RECIPES
from cm4vllm.engine.format.dependency import Dependency
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.plan.chain import dependencies_of, plain_tags
from cm4vllm.engine.run.request import parse_tags
from layered_picture import Look, drawn, floors, routed
from recipes import recipes

#: Dependencies of nearly all recipes, which would hide the others.
LEFT_OUT = {"get-generic-python-lib", "get-python3", "detect-os"}
LOOK = Look(
    box=(176, 46), gap=18, floor=100, style=".name{font-size:11px}.step{fill:#fdf3d8}.maybe{stroke-dasharray:5 4}"
)
#: Characters of a line in a box, and recipes in a row.
LINE, ROW = 25, 7


def answering(tags: tuple[str, ...]) -> list[str]:
    """Return the recipes that tags name."""
    words = set(parse_tags(tags)[0])
    return [name for name, script in recipes().items() if words <= set(script.tags)]


def graph() -> dict[str, dict[str, str]]:
    """Return the recipes that each recipe declares: '' for a dependency without conditions, else 'maybe'."""
    edges_of: dict[str, dict[str, str]] = {name: {} for name in recipes() if name not in LEFT_OUT}
    for name, edges in edges_of.items():
        for place, _, _, _, dependency in dependencies_of(recipes()[name]):
            for other in answering(tuple(plain_tags(dependency))):
                if other not in LEFT_OUT:
                    maybe = "maybe" if place or _is_conditional(dependency) else ""
                    edges[other] = edges.get(other, maybe) and maybe
    return edges_of


def _is_conditional(dependency: Dependency) -> bool:
    conditions = dependency.conditions
    return any((conditions.enable_all, conditions.enable_any, conditions.skip_all, conditions.skip_any))


def steps() -> set[str]:
    """Return the recipes that are steps of the main job."""
    return {name for tags in RECIPES.values() for name in answering(tuple(tags.split(",")))} | {
        "run-mlperf-inference-app"
    }


def rows(edges: dict[str, dict[str, str]], steps: set[str]) -> list[list[str]]:
    """Return the recipes by rows from the lowest on; steps without dependencies, and no part of any, come last."""
    targets = {other for others in edges.values() for other in others}
    linked = {name: others for name, others in edges.items() if others or name in targets}
    level = floors(linked)
    linked_rows = [[name for name in linked if level[name] == floor] for floor in range(max(level.values()) + 1)]
    alone = sorted(name for name in steps if name not in linked)
    return [*linked_rows, *(alone[at : at + ROW] for at in range(0, len(alone), ROW))]


def lines(script: ScriptMeta) -> list[str]:
    """Return the tags of a recipe in lines of LINE characters."""
    written = [""]
    for word in script.title().split(","):
        if written[-1] and len(f"{written[-1]}{word},") > LINE:
            written.append("")
        written[-1] += f"{word},"
    return [line if number < len(written) else line[:-1] for number, line in enumerate(written, 1)]


def picture() -> str:
    """Return the SVG document."""
    edges, of_job = graph(), steps()
    boxes = rows(edges, of_job)
    arrows = {(name, other): kind for row in boxes for name in row for other, kind in sorted(edges[name].items())}
    placed, ways = routed(boxes, arrows)
    return drawn(
        "The recipes of cm4vllm, each above those that it declares as dependencies",
        placed,
        ways,
        {name: lines(recipes()[name]) for row in boxes for name in row},
        look=LOOK,
        classes=dict.fromkeys(of_job, "step"),
        notes=[
            "Yellow: run-mlperf,inference and the steps of its schedule. Dashed: under a condition, as where its "
            "record is not given, or in a variation.",
            "Not drawn: get,python3, get,generic-python-lib and detect,os, on which nearly all depend, and recipes "
            "without dependencies that are no steps.",
        ],
    )


if __name__ == "__main__":
    print(picture(), end="")

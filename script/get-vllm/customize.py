"""Chooses the vLLM for what was detected; the recipe install,vllm has it."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.installation.vllm_choice import Choice, require_chosen

    require_chosen(Choice.of(i["env"]))
    return {"return": 0}


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from cm4vllm.serving.installation.vllm_choice import Choice, choose, note_kernels

    note_kernels(Path(i["env"].get("CM_VLLM_INSTALLATION", "")))
    return {"return": 0, "env": choose(Choice.of(i["env"]))}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.installation.vllm_choice import Choice, choose, print_choice

    choice = Choice.of(i["env"])
    print_choice(choice)
    i["env"].update(choose(choice))
    return {"return": 0}


def postprocess(i: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from cm4vllm.serving.installation.install import PROVED_BY
    from cm4vllm.serving.installation.vllm_choice import prove_here

    if not i["env"].get(PROVED_BY):
        prove_here(Path(i["env"]["CM_VLLM_INSTALLATION"]))
    return {"return": 0}

"""`--help` of every recipe: it fits 100 columns and has purpose, inputs, variations, examples and exports."""

import re
from pathlib import Path

import pytest
import yaml

from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.engine.format.inputs import INPUT_TITLES, INPUT_TYPES
from cm4vllm.engine.tools.help import describe
from recipes import recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPES = [path.name for path in sorted((ROOT / "script").iterdir()) if (path / "_cm.yaml").is_file()]


def page(name: str, monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    return describe(recipe(name)).splitlines()


def too_long(lines: list[str]) -> list[str]:
    """Return the lines of more than 100 columns; the folder of the recipe is this machine's."""
    return [line for line in lines if len(line) > 100 and not line.startswith("  path ")]


def part(lines: list[str], title: str) -> list[str]:
    """Return the lines of a part of the page, which an empty line ends."""
    if f"  {title}" not in lines:
        return []
    rest = lines[lines.index(f"  {title}") + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


def input_part(lines: list[str]) -> list[str]:
    """Return the lines of all lists of inputs."""
    titles = [line.strip() for line in lines if line.startswith("  inputs")]
    return [line for title in titles for line in part(lines, title)]


def page_faults(name, lines):
    """Yield what a page of help lacks or has too much of."""
    script = recipe(name)
    yield from (f"too long: {line}" for line in too_long(lines))
    if lines[1] != f"  {script.purpose}" or not script.purpose:
        yield "no purpose"
    if not any(line.startswith("  cm run script --tags=") for line in lines):
        yield "no example"
    if not part(lines, "gives"):
        yield "nothing that it gives"
    shown = [re.split(r"[= ]", line[6:])[0] for line in input_part(lines) if line.startswith("    --")]
    known = {*script.input_mapping, *script.input_description}
    yield from (f"--{flag}: {shown.count(flag)} times" for flag in known if shown.count(flag) != 1)
    grouped = {word for line in part(lines, "variations") for word in line.replace(",", " ").split()}
    yield from {f"_{variation}" for variation in script.variations if "," not in variation} - grouped


def input_faults(name, lines):
    """Yield the inputs of a recipe that its page does not explain."""
    script, shown = recipe(name), " ".join(" ".join(lines).split())
    for flag in script.input_mapping:
        entry = script.input_description.get(flag)
        if not isinstance(entry, dict) or not entry["desc"] or entry["type"] not in INPUT_TYPES:
            yield f"--{flag} is not described"
        elif "same_as" not in entry:
            expected = [*entry.get("choices", ()), entry.get("default", "")]
            yield from (f"--{flag}: {word}" for word in expected if str(word) not in shown)


@pytest.mark.parametrize("faults", [page_faults, input_faults])
def test_every_page_is_whole_and_fits_and_explains_every_input(faults, monkeypatch):
    lacking = {name: list(faults(name, page(name, monkeypatch))) for name in RECIPES}
    assert {name: lacks for name, lacks in lacking.items() if lacks} == {}


def test_every_input_belongs_to_a_group():
    assert {
        f"{name} --{flag}": entry.get("group")
        for name in RECIPES
        for flag, entry in recipe(name).input_description.items()
        if entry.get("group") not in INPUT_TITLES
    } == {}


def test_the_help_of_the_main_job_begins_with_what_a_new_user_needs(monkeypatch):
    lines = page("run-mlperf-inference-app", monkeypatch)
    first = [re.split(r"[= ]", line[6:])[0] for line in part(lines, "inputs: to begin with") if line[4:6] == "--"]
    assert first == (
        "model scenario execution_mode api_server output_dir submitter division tp_size find_target_qps plan".split()
    )
    titles = [line.strip() for line in lines if line.startswith("  inputs")]
    assert titles == ["inputs: to begin with", *(f"inputs: {title}" for title in INPUT_TITLES.values())]


def test_a_long_line_is_found(monkeypatch):
    assert too_long(page("run-mlperf-inference-app", monkeypatch, columns=140))


def test_a_long_example_can_be_pasted(monkeypatch):
    example = max(recipe("find-mlperf-inference-target-qps").examples, key=len)
    lines = page("find-mlperf-inference-target-qps", monkeypatch)
    first = next(place for place, line in enumerate(lines) if line.startswith("  cm run") and line.endswith(" \\"))
    last = next(place for place in range(first, len(lines)) if not lines[place].endswith("\\"))
    pasted = " ".join(line.rstrip("\\").strip() for line in lines[first : last + 1])
    assert pasted == f"cm run script --tags={example}"


# --- the fit advisor and generate,kubernetes-manifests as a user calls them


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            "llama-2-70b-chat-fp8 --gpus=4 --gpu_memory=79.6 --tp_size=4 --gpu_memory_utilization=0.95 "
            "--max_num_seqs=1024",
            ["--max-model-len 2048 --max-num-seqs 1024 --tensor-parallel-size 4"],
        ),
        ("llama-2-70b-chat --gpus=2 --gpu_memory=24", ["does not fit 2 x 24.0 GiB", "weights 64.24 GiB", "remedy"]),
        ("llama-2-70b-chat-fp9", ["llama-2-70b-chat-fp8"]),
    ],
    ids=["fits", "does not fit", "unknown"],
)
def test_a_layout_is_advised_for_a_model_that_is_not_here(cm, flags, words):
    done = cm("run", "script", "--tags=advise,vllm-fit", "--quiet", *f"--vllm_model_name={flags}".split())
    if len(words) > 1:
        done.refused_with(ModelError.exit_code, *words)
    elif "fp9" in flags:
        done.refused_with(UsageError.exit_code, *words)
    else:
        assert done.code == 0 and words[0] in done.output, done.output


def test_the_recipe_writes_checked_manifests_and_refuses_a_pod_without_an_image(cm, tmp_path):
    words = ("run", "script", "--tags=generate,kubernetes-manifests", "--vllm_model_name=owner/name", "--quiet")
    flags = ("--tp_size=2", f"--output_dir={tmp_path}")
    cm(*words, *flags).refused_with(20, "image")
    assert not (tmp_path / "manifests.yaml").exists()
    done = cm(*words, *flags, "--image=example.org/v:1")
    assert done.code == 0, done.output
    deployment, service = yaml.safe_load_all((tmp_path / "manifests.yaml").read_text())
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert service["kind"] == "Service"
    assert "Deployment: fits the schema of Kubernetes" in done.output

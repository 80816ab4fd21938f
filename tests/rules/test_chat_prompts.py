"""The prompts of samples with pictures are those of the references, to the last character."""

import ast
import json
import subprocess
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.rules import chat_prompts

COMMIT, TASK = "b66003e1", "multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl/task.py"
ROW = {
    "title": "Kettle {red}",
    "description": 'It\'s "new"; <script>if (a) { b() }</script>\n```json',
    "categories": ["Home > Kettles & Co", 'It\'s > a "b"', "é > c"],
}
PUBLISHED = {
    "product_title": ROW["title"],
    "product_description": ROW["description"],
    "potential_product_categories": ROW["categories"],
}


def prompt(name):
    return next(prompt_of_round for prompt_of_round in chat_prompts() if prompt_of_round.name == name)


def schema(system):
    """Return the schema that a system's text shows, as a class that gives it."""
    text = system.split("```json\n")[1].split("\n```\n")[0]
    assert text == json.dumps(json.loads(text), indent=2)
    return SimpleNamespace(model_json_schema=lambda: json.loads(text))


class Picture:
    format = "PNG"

    def save(self, file: BytesIO, format: str) -> None:
        file.write(b"picture")


def function(source, name):
    """Return a function of a source, without its module."""
    tree = ast.parse(source)
    *_, node_found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    node_found.decorator_list = []
    node_found.returns = None
    for argument in (*node_found.args.args, *node_found.args.kwonlyargs):
        argument.annotation = None
    return ast.Module([node_found], [])


def test_v60_asks_as_the_reference_of_mlcommons_inference(official_file):
    ours = prompt("v6.0")
    module = {
        "BytesIO": BytesIO,
        "base64": __import__("base64"),
        "json": json,
        "ProductMetadata": schema(ours.system),
        "LoadedSample": SimpleNamespace,
    }
    exec(compile(function(official_file(COMMIT, TASK), "formulate_loaded_sample"), TASK, "exec"), module)
    messages = module["formulate_loaded_sample"]({**PUBLISHED, "product_image": Picture()}).messages
    system, user = ours.messages(ROW)
    assert messages[0] == {"role": "system", "content": system}
    assert messages[1]["content"][0] == {"type": "text", "text": user}
    assert messages[1]["content"][1]["image_url"]["url"].startswith("data:image/PNG;base64,")


def test_v61_asks_as_the_client_of_mlperf_endpoints():
    data = "shared/data/upstream/mlcommons-endpoints.git"
    git = next((parent / data for parent in Path(__file__).parents if (parent / data).is_dir()), None)
    if git is None:
        pytest.skip("mlcommons/endpoints is not on this machine")
    path = "src/inference_endpoint/dataset_manager/predefined/shopify_product_catalogue/presets.py"
    words = ["git", f"--git-dir={git}", "show", f"HEAD:{path}"]
    source = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    ours = prompt("v6.1")
    module = {"json": json, "ProductMetadata": schema(ours.system)}
    exec(compile(function(source, "process_row"), path, "exec"), module)
    listed = {**PUBLISHED, "potential_product_categories": json.dumps(ROW["categories"])}
    row = module["process_row"](None, {**listed, "product_image_base64": "YQ==", "product_image_format": "PNG"})
    system, user = ours.messages(ROW)
    assert (row["system"], row["prompt"][0]["text"]) == (system, user)

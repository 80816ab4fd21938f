"""One CM home with cm4vllm and cm4mlops: what each engine does with the recipes of the other repository.

Needs CM4MLOPS=<checkout of cm4mlops>.
"""

import json
import os
import subprocess
import sys

import pytest
import yaml
from tests.engine.conformance.conftest import Engine, engine_alone
from tests.engine.conftest import ROOT

#: The recipes that need no package, and so have no dependency that refuses.
ALONE = ["detect-os", "get-python3", "get-mlperf-inference-src", "fetch-mlperf-inference-src"]
PLANNED = ["get,ml-model,bert-large", "get,ml-model,resnet50", "get,dataset,squad"]
#: Tags of other recipes that both have, and of one that cm4mlops has alone.
ASKED = ["get,python3", "get,sys-utils-cm"]
TAKEN = ["detect,os", "get,mlperf,inference,src", "get,cmake", *PLANNED, *ASKED]
RUN = ["run", "script"]
KEYS = ["detect,os", "get,python3", "get,generic-python-lib,_package.numpy"]
#: Command lines whose flags or variations one of two recipes with the same tags has, and what the other lacks.
FITTING = {
    "--tags=run-mlperf,inference,_performance-only --framework=onnxruntime": "has no input --framework",
    "--tags=run-mlperf,inference --imagenet_path=data": "has no input --imagenet_path",
    "--tags=run-mlperf,inference,_dashboard": "has no variation _dashboard",
}
OTHER = "mlcommons@cm4mlops:detect-os"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@pytest.fixture(scope="module")
def theirs_first(cm4mlops, tmp_path_factory):
    """Return a home in which the repository of cm4mlops comes first, and so its engine runs."""
    return Engine(tmp_path_factory.mktemp("theirs"), cm4mlops, ROOT)


@pytest.fixture(scope="module")
def answers(cm4mlops, theirs_first, tmp_path_factory):
    """Return the answers by home: of each order of the two, of cm4mlops alone, and of it with our engine alone."""
    folder = tmp_path_factory.mktemp("shared")
    keys = {tags: [{"tags": tags}] for tags in KEYS}
    plans = {f"plan {tags}": [[*RUN, f"--tags={tags}", "--plan", "-j"]] for tags in PLANNED}
    fitting = {words: [[*RUN, *words.split(), "--plan"]] for words in FITTING}
    both = {"both": [[*RUN, "--tags=detect,os"], [*RUN, OTHER]]}
    refused = {name: [[*RUN, f"cm4vllm:{name}", "--quiet"]] for name in ALONE}
    taken = {tags: [[*RUN, f"--tags={tags}", "--quiet", "--fake_run", "--fake_deps"]] for tags in TAKEN}
    ours_alone = Engine(folder / "engine", engine_alone(folder / "engine only"), cm4mlops)
    return {
        "ours first": Engine(folder / "ours", ROOT, cm4mlops).answers({**keys, **plans, **fitting, **both}),
        "theirs first": theirs_first.answers({**refused, **taken}),
        "theirs alone": Engine(folder / "alone", cm4mlops).answers(keys),
        "our engine": ours_alone.answers(plans),
    }


def test_recipes_of_both_repositories_give_the_keys_of_cm4mlops(answers):
    ours, alone = answers["ours first"], answers["theirs alone"]
    for tags in KEYS:
        for part in ("new_env", "new_state"):
            # pip's own version comes from a dependency that our recipe does not have.
            missing = {key for key in alone[tags][0][part] if "_PIP_" not in key} - set(ours[tags][0][part])
            assert not missing, (tags, missing)
    given, expected = ours["detect,os"][0]["new_env"], alone["detect,os"][0]["new_env"]
    assert {key: given[key] for key in expected} == expected


def steps(node):
    return [node["tags"], node["variations"], [steps(child) for child in node["children"]]]


@pytest.mark.parametrize("tags", PLANNED)
def test_a_plan_of_cm4mlops_names_the_same_steps(answers, tags):
    plans = []
    for name in ("ours first", "our engine"):
        (answer,) = answers[name][f"plan {tags}"]
        assert answer["return"] == 0, answer["error"]
        plans.append(json.loads(answer["output"][answer["output"].index('{\n  "plan"') :])["plan"])
    assert steps(plans[0]) == steps(plans[1])


def check_refusal(text):
    assert "another script engine" in text
    assert "CM_REPOS" in text and f"cm add repo --path={ROOT}" in text
    assert "repos.json" in text and "cm reindex repo" in text


@pytest.mark.parametrize("name", ALONE)
def test_each_recipe_without_packages_refuses_the_other_engine(answers, name):
    (answer,) = answers["theirs first"][name]
    assert answer["return"] == 3, answer["output"]
    check_refusal(answer["error"])


def test_the_command_line_tells_the_refusal_without_a_traceback(theirs_first):
    env = {**os.environ, "CM_REPOS": str(theirs_first.home), "CM_CORE_SKIP_INTERNAL_REPOS": "yes"}
    env |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    theirs_first.work.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "cmind.cli", *RUN, f"cm4vllm:{ALONE[0]}", "--quiet"]
    done = subprocess.run(words, cwd=theirs_first.work, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    check_refusal(done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("tags", TAKEN)
def test_the_engine_of_cm4mlops_takes_its_own_recipes_first(answers, tags):
    (answer,) = answers["theirs first"][tags]
    error = answer["error"] or ""
    assert "another script engine" not in answer["output"] + error
    assert "cm4vllm" not in error.replace(str(ROOT), "").replace("cm4vllm-", ""), error


def test_every_recipe_that_answers_to_tags_of_cm4mlops_comes_after_its_own(cm4mlops):
    def asked(meta):
        if isinstance(meta, dict):
            for key, value in meta.items():
                if str(key).endswith("deps") and isinstance(value, list):
                    yield from (
                        dep["tags"] for dep in value if isinstance(dep, dict) and isinstance(dep.get("tags"), str)
                    )
                yield from asked(value)
        elif isinstance(meta, list):
            for value in meta:
                yield from asked(value)

    theirs = [yaml.load(path.read_text(), LOADER) for path in cm4mlops.glob("script/*/_cm.*") if path.suffix != ".md"]
    requests = {tags for meta in theirs for tags in asked(meta)} | {",".join(map(str, meta["tags"])) for meta in theirs}
    words = [{tag.strip() for tag in tags.split(",") if tag.strip()[:1] not in "_-"} for tags in requests]
    for path in ROOT.glob("script/*/_cm.yaml"):
        meta = yaml.load(path.read_text(), LOADER)
        if any(tags and tags <= set(meta["tags"]) for tags in words):
            assert meta.get("sort") == 1, path


@pytest.mark.parametrize(("words", "lacking"), FITTING.items())
def test_flags_and_variations_decide_whose_script_is_meant_and_the_plan_says_so(answers, words, lacking):
    printed = answers["ours first"][words][0]["output"]
    told = "run-mlperf-inference-app of mlcommons@cm4mlops is run, because run-mlperf-inference-app of cm4vllm"
    assert f"{told} {lacking}" in printed
    assert "cm run script cm4vllm:run-mlperf-inference-app" in printed


def test_where_both_fit_the_engine_takes_its_own_and_names_the_other(answers):
    own, other = answers["ours first"]["both"]
    assert own["return"] == other["return"] == 0
    line = f"note: detect-os of cm4vllm is run; that of mlcommons@cm4mlops: cm run script {OTHER}"
    assert line in own["output"]
    assert "note:" not in other["output"]

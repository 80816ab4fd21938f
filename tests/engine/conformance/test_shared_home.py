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


@pytest.fixture(scope="module")
def homes(cm4mlops, tmp_path_factory):
    """Return a home of each order of the two repositories, one of cm4mlops alone, one of it with our engine alone."""
    folder = tmp_path_factory.mktemp("shared")
    return {
        "ours first": Engine(folder / "ours", ROOT, cm4mlops),
        "theirs first": Engine(folder / "theirs", cm4mlops, ROOT),
        "theirs alone": Engine(folder / "alone", cm4mlops),
        "our engine": Engine(folder / "engine", engine_alone(folder / "engine only"), cm4mlops),
    }


def cm(home, *words, package=True):
    env = {**os.environ, "CM_REPOS": str(home.home), "CM_CORE_SKIP_INTERNAL_REPOS": "yes"}
    env |= {"PYTHONPATH": str(ROOT / "src") if package else "", "PYTHONDONTWRITEBYTECODE": "1"}
    home.work.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "cmind.cli", *words],
        cwd=home.work,
        env=env,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


def test_recipes_of_both_repositories_give_the_keys_of_cm4mlops(homes):
    cases = {tags: [{"tags": tags}] for tags in ("detect,os", "get,python3", "get,generic-python-lib,_package.numpy")}
    ours, alone = (homes[name].answers(cases) for name in ("ours first", "theirs alone"))
    for tags in cases:
        for part in ("new_env", "new_state"):
            # pip's own version comes from a dependency that our recipe does not have.
            missing = {key for key in alone[tags][0][part] if "_PIP_" not in key} - set(ours[tags][0][part])
            assert not missing, (tags, missing)
    given, expected = ours["detect,os"][0]["new_env"], alone["detect,os"][0]["new_env"]
    assert {key: given[key] for key in expected} == expected


def steps(node):
    return [node["tags"], node["variations"], [steps(child) for child in node["children"]]]


@pytest.mark.parametrize("tags", PLANNED)
def test_a_plan_of_cm4mlops_names_the_same_steps(homes, tags):
    plans = []
    for name in ("ours first", "our engine"):
        done = cm(homes[name], "run", "script", f"--tags={tags}", "--plan", "-j")
        assert done.returncode == 0, done.stderr
        plans.append(json.loads(done.stdout[done.stdout.index('{\n  "plan"') :])["plan"])
    assert steps(plans[0]) == steps(plans[1])


@pytest.mark.parametrize("name", ALONE)
def test_each_recipe_without_packages_refuses_the_other_engine(homes, name):
    done = cm(homes["theirs first"], "run", "script", f"cm4vllm:{name}", "--quiet")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "another script engine" in done.stderr
    assert "CM_REPOS" in done.stderr and f"cm add repo --path={ROOT}" in done.stderr
    assert "repos.json" in done.stderr and "cm reindex repo" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("tags", ["detect,os", "get,mlperf,inference,src", "get,cmake", *PLANNED, *ASKED])
def test_the_engine_of_cm4mlops_takes_its_own_recipes_first(homes, tags):
    done = cm(homes["theirs first"], "run", "script", f"--tags={tags}", "--quiet", "--fake_run", "--fake_deps")
    assert "another script engine" not in done.stdout + done.stderr
    assert "cm4vllm" not in done.stderr.replace(str(ROOT), "").replace("cm4vllm-", ""), done.stderr


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

    theirs = [yaml.safe_load(path.read_text()) for path in cm4mlops.glob("script/*/_cm.*") if path.suffix != ".md"]
    requests = {tags for meta in theirs for tags in asked(meta)} | {",".join(map(str, meta["tags"])) for meta in theirs}
    words = [{tag.strip() for tag in tags.split(",") if tag.strip()[:1] not in "_-"} for tags in requests]
    for path in ROOT.glob("script/*/_cm.yaml"):
        meta = yaml.safe_load(path.read_text())
        if any(tags and tags <= set(meta["tags"]) for tags in words):
            assert meta.get("sort") == 1, path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tags=run-mlperf,inference,_performance-only", "--framework=onnxruntime"], "has no input --framework"),
        (["--tags=run-mlperf,inference", "--imagenet_path=data"], "has no input --imagenet_path"),
        (["--tags=run-mlperf,inference,_dashboard"], "has no variation _dashboard"),
    ],
)
def test_flags_and_variations_decide_whose_script_is_meant_and_the_plan_says_so(homes, words, expected):
    done = cm(homes["ours first"], "run", "script", *words, "--plan")
    assert (
        f"run-mlperf-inference-app of mlcommons@cm4mlops is run, because run-mlperf-inference-app of cm4vllm {expected}"
        in (done.stdout)
    )
    assert "cm run script cm4vllm:run-mlperf-inference-app" in done.stdout


def test_where_both_fit_the_engine_takes_its_own_and_names_the_other(homes):
    done = cm(homes["ours first"], "run", "script", "--tags=detect,os")
    assert done.returncode == 0
    line = "note: detect-os of cm4vllm is run; that of mlcommons@cm4mlops: cm run script mlcommons@cm4mlops:detect-os"
    assert line in done.stdout
    other = cm(homes["ours first"], "run", "script", "mlcommons@cm4mlops:detect-os")
    assert other.returncode == 0 and "note:" not in other.stdout

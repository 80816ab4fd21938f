"""Public scripts run under this engine, unchanged, and give what they give under the engine that they were written for.

Needs CM4MLOPS=<checkout of cm4mlops>. Its engine is run here, in a home of its own, and its answers are recorded live.
"""

import re

import pytest
from tests.engine.conformance.conftest import Engine, engine_alone

#: Requests that work without a network, by name; those of a name run one after the other in one home.
CASES = {
    "detect-os": [{"tags": "detect,os"}],
    "detect-cpu": [{"tags": "detect,cpu"}],
    "detect-sudo": [{"tags": "detect,sudo"}],
    "python3": [{"tags": "get,python3"}, {"tags": "get,python3"}],
    "numpy": [{"tags": "get,generic-python-lib,_package.numpy"}, {"tags": "get,generic-python-lib,_package.numpy"}],
    "gcc": [{"tags": "get,gcc"}, {"tags": "get,gcc"}],
    "cmake": [{"tags": "get,cmake"}, {"tags": "get,cmake"}],
    "javac": [{"tags": "get,javac"}],
    # Its folder goes unquoted into the command line of venv: pip would take six seconds of a processor.
    "venv": [{"tags": "install,python-venv", "name": "test", "const": {"CM_VIRTUAL_ENV_DIR": "test --without-pip"}}],
    "hello-world": [{"tags": "print,hello-world"}],
    "hello-world-env": [{"tags": "print,native,hello-world", "env": {"CM_ENV_TEST3": "T3"}}],
    "hello-world-python": [{"tags": "print,hello-world,python"}],
    "dummy": [{"tags": "test,dummy"}],
    "conditions": [{"tags": "test,deps,conditions"}],
    "conditions-123": [{"tags": "test,deps,conditions", "test1": "yes", "test2": "yes", "test3": "yes"}],
    "pipeline": [{"tags": "test,cm-script,pipeline"}],
    "combination": [{"tags": "test-scripts,_v1,_v2"}],
    "sys-utils": [{"tags": "get,sys-utils-cm"}],
    "git-repo": [{"tags": "get,git,repo", "env": {"CM_GIT_URL": "https://github.invalid/none"}}],
    "download": [{"tags": "download,file,_cmutil", "url": "https://host.invalid/x.bin"}],
    "unknown": [{"tags": "nonexistent,script,tags"}],
    "unknown-variation": [{"tags": "get,python3,_nonexistent"}],
    "version-unmet": [{"tags": "get,gcc", "version_min": "99.0"}],
    "fake": [{"tags": "detect,cpu", "fake_run": True}],
    "fake-deps": [{"tags": "detect,cpu", "fake_deps": True}],
    "print-deps": [{"tags": "detect,cpu", "print_deps": True}],
    "extra-tags": [{"tags": "get,python3", "extra_cache_tags": "test-extra-tag,ci-run"}],
    "adr": [{"tags": "detect,cpu", "adr": {"detect-os": {"tags": "detect,os"}}}],
}

#: Facts that change from one moment to the next, and where the incumbent's own engine puts a value of its own.
VOLATILE = re.compile(
    r"CM_HOST_(MEMORY|DISK|SYSTEM|CPU_(ON|MAX_|MIN_|MHZ|PROC|START|WRITE|BOGO|CURRENT|SCALING))|"
    r"CM_HOST_SYSTEM_NAME|CM_TMP_PIP_VERSION_STRING"
)
#: Where the answers differ: exit codes of ours and theirs. docs/engine.md says why of each.
DIFFERENT_CODES = {"unknown": (16, 1), "unknown-variation": (20, 16), "fake-deps": (0, 1)}
#: A bug of the incumbent (top-level `const` is ignored) that this engine does not have.
DIFFERENT_ENV = {"combination": {"CM_CVAR1": "orig"}}


@pytest.fixture(scope="module")
def both(cm4mlops, tmp_path_factory):
    """Return the answers of both engines to all cases, by name."""
    folder = tmp_path_factory.mktemp("public")
    repository = engine_alone(folder / "engine")

    return {
        "ours": Engine(folder / "ours", repository, cm4mlops).answers(CASES),
        "theirs": Engine(folder / "theirs", cm4mlops).answers(CASES),
    }


def env_of(answer):
    env = answer["new_env"] or {}
    return {
        key: re.sub(r"cache/[0-9a-f]{16}", "cache/(entry)", str(value))
        for key, value in env.items()
        if not VOLATILE.match(key)
    }


def finished(answer):
    """Return the entries that a search finds; theirs keeps those of runs that failed, as `tmp`."""
    return [entry for entry in answer["entries"] if "tmp" not in entry["tags"]]


@pytest.mark.parametrize("name", [name for name in CASES if name not in DIFFERENT_CODES])
def test_same_answers(both, name):
    for ours, theirs in zip(both["ours"][name], both["theirs"][name], strict=True):
        assert ours["return"] == theirs["return"], ours["error"]
        assert env_of(ours) == {**env_of(theirs), **DIFFERENT_ENV.get(name, {})}
        assert set(ours["new_state"] or {}) == set(theirs["new_state"] or {})
        assert finished(ours) == finished(theirs)


@pytest.mark.parametrize("name", DIFFERENT_CODES)
def test_known_differences(both, name):
    assert (both["ours"][name][0]["return"], both["theirs"][name][0]["return"]) == DIFFERENT_CODES[name]


@pytest.mark.parametrize("name", ["conditions", "conditions-123", "pipeline", "hello-world", "hello-world-env"])
def test_same_output_in_the_same_order(both, name):
    ours, theirs = (both[side][name][0]["output"].split("\n") for side in ("ours", "theirs"))
    assert [line for line in ours if not re.match(r"\[\d\d:\d\d\.\d\]", line)] == theirs

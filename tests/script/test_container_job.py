"""The main job with vLLM in a container of podman: a rehearsal to the tree, and what kill -9 leaves."""

import json
import os
import time
from pathlib import Path

import pytest

from cm4vllm.campaign.ledger import State, read_ledger
from host_container import host_container

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("vllm-3")]

FIRST_START_S = 900
INFERENCE = os.environ.get("INFERENCE_GIT", "")


@pytest.fixture(scope="module")
def host(start_cm, tmp_path_factory):
    """Yield the image; vLLM's own environment in this CM home is mounted into its containers."""
    mounted = Path(os.environ["CM_REPOS"])
    with host_container(tmp_path_factory.mktemp("image"), mounted) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.env.items():
            patch.setenv(name, value)
        done = start_cm()("run", "script", "--tags=get,vllm,_cpu", "--quiet", "-j", timeout_s=FIRST_START_S)
        assert done.code == 0, done.output
        python = json.loads(done.output[done.output.index("{\n") :])["new_env"]["CM_VLLM_PYTHON_BIN_WITH_PATH"]
        yield made, python


@pytest.fixture
def flags(host, cm):
    made, python = host
    return (
        f"--container={made.image}",
        f"--container_python={python}",
        f"--container_args={made.options}",
        "--output_dir=results",
        "--submitter=Tester",
        *([f"--inference_src={INFERENCE}"] if INFERENCE else []),
    )


def test_a_rehearsal_to_the_tree(host, flags, cm):
    made, _ = host
    flags = (*flags, "--scenario=Offline")
    plan = cm.main_job(*flags, "--plan")
    assert plan.code == 0, plan.output
    assert f"{made.image}: on this machine, sha256:" in plan.output
    assert "podman run --rm --network=host" in plan.output
    done = cm.main_job(*flags, timeout_s=FIRST_START_S + 300)
    assert done.code == 0, done.output
    out = cm.cwd / "results" / "test"
    server = json.loads((out / "server" / "server.json").read_text())
    container = server["container"]
    assert container["engine"] == "podman"
    assert container["digest"] == "sha256:" + made.podman("image", "inspect", "--format", "{{.Id}}", made.image)
    assert server["argv"][1:5] == ["-P", "-m", "vllm.entrypoints.cli.main", "serve"]
    digest, version = container["digest"], f"podman {container['engine_version']}"
    (system,) = (out / "submission/open/Tester/systems").glob("*.json")
    for key in (digest, version):
        assert key in json.loads(system.read_text())["sw_notes"]
    (readme,) = out.glob("submission/open/Tester/results/*/*/Offline/README.md")
    assert digest in readme.read_text()
    published = readme.read_text().replace(" \\\n    ", " ")  # a command has one flag a line
    assert "podman run --rm" in published
    assert '--volume="${VOLUME:?}:${VOLUME:?}:ro"' in published
    left_out = {state.last.step for state in read_ledger(out).of_last_run if state.last.state is not State.DONE}
    assert left_out <= (set() if INFERENCE else {"checker source", "checkers"})
    assert made.containers() == []
    again = cm.main_job(*flags, timeout_s=300)
    assert again.code == 0, again.output
    assert "kept" in again.output


def test_kill_9_leaves_nothing(host, flags, cm):
    made, _ = host
    running = cm.start_main_job(*flags, "--scenario=Server", "--server_target_qps=20", tags=",_performance-only")
    running.wait_for("] Server performance run", FIRST_START_S)
    assert len(made.containers()) == 1
    running.process.kill()
    running.process.wait()
    deadline = time.monotonic() + 15
    while made.containers():
        assert time.monotonic() < deadline, made.podman("ps", "--all")
        time.sleep(0.1)
    running.no_orphans()

"""The tests of real launchers over two nodes made for them: by ssh, and in an allocation of Slurm."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import peer
import test_node_servers

from cm4vllm.common.errors import UsageError
from cm4vllm.serving.clusters.launchers import SshLauncher
from cm4vllm.serving.clusters.placement import node_layout
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.server import NodeLaunch, start_all, stop
from cm4vllm.serving.supervision.death_reasons import death_reason
from namespace_cluster import namespace_cluster

pytestmark = [pytest.mark.long, pytest.mark.timing]
ROOT = Path(__file__).parents[4]
TESTS = [
    sys.executable,
    *"-m pytest -q -p no:cacheprovider".split(),
    str(Path(__file__).with_name("test_real_launchers.py")),
]
#: Seconds for all of them, 10 seeded kills included.
TESTS_S = 500


def environment(cluster, nodes: str) -> dict[str, str]:
    """Return the environment of the tests of launchers, without the lock of tests side by side: this test holds it."""
    env = {**os.environ, **cluster.env, "CLUSTER_NODES": nodes}
    return {name: value for name, value in env.items() if name != "CM4VLLM_TESTS_LOCK"}


def passed(output: str) -> bool:
    return " passed" in output and "failed" not in output and "skipped" not in output


def test_the_tests_of_launchers_pass_over_ssh(tmp_path):
    with namespace_cluster(tmp_path, "ssh") as cluster:
        env = environment(cluster, ",".join(cluster.nodes))
        done = subprocess.run(TESTS, env=env, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_S, check=False)
        output = done.stdout
        assert passed(output), output
        cluster.wait_until_empty()


def test_the_tests_of_launchers_pass_in_an_allocation_of_slurm(tmp_path):
    with namespace_cluster(tmp_path, "slurm") as cluster:
        log = tmp_path / "tests.log"
        env = environment(cluster, "2")
        job = ["sbatch", "--wait", "--nodes=2", "--exclusive", f"--output={log}", f"--wrap={shlex.join(TESTS)}"]
        subprocess.run(job, env=env, cwd=ROOT, capture_output=True, timeout=TESTS_S, check=False)
        output = log.read_text()
        assert passed(output), output
        cluster.wait_until_empty()


def test_the_installation_is_copied_to_a_node_that_does_not_share_it(tmp_path, monkeypatch):
    private, folder = tmp_path / "installed", tmp_path / "cluster"
    folder.mkdir()
    python = installed(private / "vllm")
    with namespace_cluster(folder, "ssh", private=private) as cluster:
        monkeypatch.setenv("PATH", cluster.env["PATH"])
        start = NodeLaunch(SshLauncher(cluster.nodes), node_layout(2, tp_size=2, pp_size=1, dp_size=1))
        settings = ServerSettings(model="m", name=peer.MODEL, tp_size=2, host="10.214.0.11")
        parts = [(settings, tmp_path / "server")]
        with pytest.raises(UsageError, match="cmnode2 has no vLLM"):
            start_all(python, parts, timeout_s=60, argv=test_node_servers.ARGV, nodes=start)
        copying = replace(start, install=True)
        (record,) = start_all(python, parts, timeout_s=60, argv=test_node_servers.ARGV, nodes=copying)
        assert death_reason(record) is None
        stop(record)
        cluster.wait_until_empty()


def installed(folder: Path) -> Path:
    """Make a Python whose environment has a package of the name vllm, and return it."""
    info = folder / "site" / "vllm-0.32.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python

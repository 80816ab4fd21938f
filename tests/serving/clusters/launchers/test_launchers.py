"""Launchers: which is chosen for --nodes, the commands that they run, and what they refuse."""

import subprocess
import sys

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.serving.clusters.launchers import LocalLauncher, SlurmLauncher, SshLauncher, chosen_launcher

#: A program in scontrol's place, which prints what Slurm 22.05 does for a job on n1 and n2.
SCONTROL = """#!/bin/sh
case "$*" in
  "show hostnames n[1-2]") printf 'n1\\nn2\\n' ;;
  "show node --oneliner n2") echo "NodeName=n2 Arch=x86_64 NodeAddr=127.0.0.2 NodeHostName=n2" ;;
  *) exit 1 ;;
esac
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put small programs in the place of those of ssh and Slurm."""
    for name, text in {"ssh": "#!/bin/sh\nexit 0\n", "srun": "#!/bin/sh\nexit 0\n", "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.mark.parametrize("nodes", ["", "1", " 1 "])
def test_one_node_needs_no_launcher(nodes):
    assert chosen_launcher("auto", nodes, {}) is None


def test_the_launcher_follows_from_the_place_of_the_command(programs):
    assert chosen_launcher("auto", "a,b", {}) == SshLauncher(("a", "b"))
    assert chosen_launcher("auto", "2", ALLOCATION) == SlurmLauncher(("n1", "n2"))
    assert chosen_launcher("auto", "n2", ALLOCATION) == SlurmLauncher(("n2",))
    assert chosen_launcher("local", "3", ALLOCATION) == LocalLauncher(("node1", "node2", "node3"))


@pytest.mark.parametrize(
    ("launcher", "nodes", "environ", "message"),
    [
        ("auto", "2", {}, "does not name the nodes"),
        ("local", "", {}, "has no nodes"),
        ("slrum", "", {}, "is not usable"),
        ("local", "0", {}, "not usable"),
        ("local", "-2", {}, "not usable"),
        ("local", "²", {}, "not usable"),
        ("auto", "①", {}, "not usable"),
        ("ssh", "9" * 5000, {}, "not usable"),
        ("slurm", "٣", ALLOCATION, "not usable"),
        ("local", "a,,b", {}, "twice or an empty"),
        ("local", "a,a", {}, "twice or an empty"),
        ("ssh", "-oProxyCommand=x,b", {}, "not the name of a host"),
        ("slurm", "2", {}, "needs an allocation"),
        ("auto", "3", ALLOCATION, "more than the allocation"),
        ("auto", "n1,n9", ALLOCATION, "more than the allocation"),
    ],
)
def test_what_cannot_be_launched_is_refused(programs, launcher, nodes, environ, message):
    with pytest.raises(UsageError, match=message):
        chosen_launcher(launcher, nodes, environ)


def test_the_words_of_a_program_survive_the_remote_shell():
    words = SshLauncher(("a",)).words(
        "a", [sys.executable, "-c", "import sys; print(sys.argv[1:])", "a b", "$HOME", "'"]
    )
    done = subprocess.run(["sh", "-c", words[-1]], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["a b", "$HOME", "'"])
    assert "BatchMode=yes" in words  # no password is asked for


def test_a_step_of_slurm_runs_on_its_node_beside_others(programs):
    launcher = chosen_launcher("slurm", "2", ALLOCATION)
    words = launcher.words("n2", ["program", "word"])
    assert words[0] == "srun"
    assert {"--nodelist=n2", "--nodes=1", "--ntasks=1", "--overlap"} <= set(words)
    assert words[-2:] == ["program", "word"]
    assert launcher.address("n2") == "127.0.0.2"

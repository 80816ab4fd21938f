"""The fixtures of all tests, and the order in which tests share a machine.

`make test` runs several processes side by side (pytest-xdist). The tests of a file stay in one process, in their order,
and with them what their fixtures made; those that start the real vLLM form groups of their own and begin first, since
they take longest. A test that measures time is marked `timing`: it comes last, and runs while no other test does.
"""

import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from cm4vllm.common import clock
from cm4vllm.common.errors import InstallError
from cm4vllm.power.programs import require_python
from cm4vllm.rules import round_names, round_terms
from commands import beside_checkout, missing_command, need

# A runner started in the background hands down ignored signals (nohup, `&` of a shell), and the processes under test
# would rightly keep ignoring them: the tests that send signals need the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Where numpy is loaded, OpenBLAS starts a thread for each processor, and these wait busily at first: half of what it
# takes to load numpy, in hundreds of processes. Nothing here multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Those of a hook of git name its repository, which the git of a test would write to.
for _name in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[_name]

#: Names a file that every test locks while it runs: together with the others, or alone. Empty in a single process.
LOCK = "CM4VLLM_TESTS_LOCK"


def pytest_addoption(parser):
    parser.addoption(
        "--lacking-to",
        metavar="FILE",
        help="write a line for each test that was skipped for want of a command: the command, a tab, the test",
    )


def pytest_terminal_summary(terminalreporter, config):
    """Show the skipped tests as one line a reason."""
    skipped = [(report.nodeid, _reason(report)) for report in terminalreporter.stats.get("skipped", [])]
    if skipped:
        terminalreporter.section("skipped tests by reason")
    for reason, count in Counter(reason for _, reason in skipped).most_common():
        terminalreporter.write_line(f"{count:5,}  {reason}")
    if path := config.getoption("lacking_to"):
        lines = [f"{command}\t{test}\n" for test, reason in skipped if (command := missing_command(reason))]
        Path(path).write_text("".join(lines), encoding="utf-8")


def _reason(report):
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_configure(config):
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        descriptor, os.environ[LOCK] = tempfile.mkstemp(prefix="cm4vllm-tests-")
        os.close(descriptor)


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput") and (lock := os.environ.pop(LOCK, "")):
        Path(lock).unlink(missing_ok=True)
        _groups_file(lock).unlink(missing_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """Hands each process a group of tests at a time: those of a file, unless they are marked otherwise."""

        groups: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.groups is None:  # the processes have collected, and each has written the same
                self.groups = json.loads(_groups_file(os.environ[LOCK]).read_text())
            return self.groups.get(nodeid) or nodeid.partition("::")[0]

    return ByGroup(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among the tests and their modules, which stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if not hasattr(config, "workerinput"):
        return
    groups = {item.nodeid: group for item in items if (group := _group(item))}
    items.sort(key=lambda item: _TURNS.index(_group(item).partition("-")[0]))
    # To the one that schedules: it sees no marks, and xdist's own way to tell it does nothing with pytest 9.2.
    path = _groups_file(os.environ[LOCK])
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(groups))
    aside.replace(path)


#: The real vLLM takes longest, then the files that share runs; what measures time waits until all else has ended.
_TURNS = ("vllm", "runs", "", "source", "timing")


def _group(item) -> str:
    if item.get_closest_marker("timing"):
        return "timing"
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else ""


def _groups_file(lock: str) -> Path:
    return Path(f"{lock}.json")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if not os.environ.get(LOCK):
        return (yield)
    with Path(os.environ[LOCK]).open("a+") as lock:  # lockf: the process's own, no child of a test inherits it
        fcntl.lockf(lock, fcntl.LOCK_EX if item.get_closest_marker("timing") else fcntl.LOCK_SH)
        return (yield)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A file with a key and the certificate of it for 127.0.0.1, which no authority has signed."""
    need("openssl")
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        [
            *(
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
                "/CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout"
            ).split(),
            folder / "key",
            "-out",
            folder / "cert",
        ],
        check=True,
        capture_output=True,
    )
    both = folder / "both.pem"
    both.write_bytes((folder / "key").read_bytes() + (folder / "cert").read_bytes())
    return both


@pytest.fixture(scope="session")
def inference_git():
    """A git directory of mlcommons/inference."""
    named = os.environ.get("INFERENCE_GIT")
    if not named:
        pytest.skip("INFERENCE_GIT names no git directory of mlcommons/inference")
    return Path(named)


@pytest.fixture(scope="session")
def official_file(inference_git):
    """The text of a file of mlcommons/inference at a commit."""

    def show(commit, path):
        words = ["git", f"--git-dir={inference_git}", "show", f"{commit}:{path}"]
        return subprocess.run(words, capture_output=True, text=True, check=True, encoding="utf-8").stdout

    return show


@pytest.fixture(scope="session")
def neural_magic():
    """The published v4.1 submission of Neural Magic (the submitter's folder), which lies beside the checkout."""
    return beside_checkout("neuralmagic-v4.1/open/NeuralMagic", "the published v4.1 submission")


@pytest.fixture(scope="session")
def published_power():
    """The folder of five published power sessions, which lies beside the checkout."""
    return beside_checkout("published-power", "the published power sessions")


@pytest.fixture(scope="session")
def power_dev():
    """The git directory of mlcommons/power-dev, which lies beside the checkout; skip where they do not start."""
    try:
        require_python(round_terms(round_names()[-1]).power)
    except InstallError as error:
        pytest.skip(error.what)
    return beside_checkout("upstream/power-dev.git", "mlcommons/power-dev")


@pytest.fixture(params=["today", "2027-03-01"])
def any_day(request, monkeypatch):
    """Run a test on the day of the clock, and on a day on which the cohorts of the shipped rules are over."""
    if request.param != "today":
        noon = datetime.fromisoformat(f"{request.param}T12:00:00+00:00")
        asked = clock.present
        for name, module in list(sys.modules.items()):
            if name.startswith("cm4vllm.") and getattr(module, "present", None) is asked:
                monkeypatch.setattr(module, "present", lambda: noon)
    return request.param


@pytest.fixture(scope="session")
def own_network():
    """Skip where the system refuses users a network of their own, in which simulated power sessions are made."""
    if subprocess.run(["unshare", "-Urn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("the system refuses network namespaces to users")


@pytest.fixture(scope="session")
def vllm_python(tmp_path_factory):
    """The Python of vLLM's environment, from the CM home that `make setup` prepared; installed there if need be."""
    if not os.environ.get("CM_REPOS"):
        pytest.skip("CM_REPOS names no CM home: run by `make test`")
    done = subprocess.run(
        [Path(sys.executable).with_name("cm"), "run", "script", "--tags=get,vllm,_cpu", "--quiet", "--out=json"],
        cwd=tmp_path_factory.mktemp("cm"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])["new_env"]["CM_VLLM_PYTHON_BIN_WITH_PATH"]

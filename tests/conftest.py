"""What all tests start from, and how they share a machine.

`make test` runs several processes side by side (pytest-xdist). The tests of a file stay in one process, in their order,
and with them what their fixtures made; those that start the real vLLM form groups of their own and begin first, since
they take longest. A test that measures time is marked `timing`: it comes last, and runs while no other test does.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# For what tests of several folders share: gateway.py.
sys.path.insert(0, str(Path(__file__).parent))

# A runner started in the background hands down ignored signals (nohup, `&` of a shell), and the processes under test
# would rightly keep ignoring them: the tests that send signals need the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.xdist_group("timing"))
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item) -> int:
    group = item.get_closest_marker("xdist_group")
    return 1 if group is None else 2 if group.args[0] == "timing" else 0


#: Names a file that every test locks while it runs: together with the others, or alone. Empty in a single process.
LOCK = "CM4VLLM_TESTS_LOCK"


def pytest_configure(config):
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        descriptor, os.environ[LOCK] = tempfile.mkstemp(prefix="cm4vllm-tests-")
        os.close(descriptor)


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        lock = os.environ.pop(LOCK, "")
        if lock:
            Path(lock).unlink(missing_ok=True)


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
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on this machine")
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", folder / "key", "-out", folder / "cert"], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "key").read_bytes() + (folder / "cert").read_bytes())
    return both


@pytest.fixture(scope="session")
def neural_magic():
    """The published v4.1 submission of Neural Magic (the submitter's folder), which lies beside the checkout."""
    data = "shared/data/neuralmagic-v4.1/open/NeuralMagic"
    found = next((parent / data for parent in Path(__file__).parents if (parent / data).is_dir()), None)
    if found is None:
        pytest.skip("the published v4.1 submission is not on this machine")
    return found

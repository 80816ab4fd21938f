"""What all tests start from."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# For what tests of several folders share: gateway.py.
sys.path.insert(0, str(Path(__file__).parent))

# A runner started in the background hands down ignored signals (nohup, `&` of a shell), and the processes under test
# would rightly keep ignoring them: the tests that send signals need the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


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

"""The settings of runs against the test peer of the client's tests."""

import importlib.util
import sys
from pathlib import Path

_LOADGEN = Path(__file__).resolve().parents[2] / "loadgen"
sys.path.insert(0, str(_LOADGEN))
_spec = importlib.util.spec_from_file_location("loadgen_conftest", _LOADGEN / "conftest.py")
_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_conftest)
dataset, make_settings = _conftest.dataset, _conftest.make_settings

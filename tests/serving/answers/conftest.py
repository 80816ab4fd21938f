"""The test peers of the client, whose answers are read here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "loadgen"))
sys.path.insert(0, str(Path(__file__).parents[2] / "loadgen" / "client"))

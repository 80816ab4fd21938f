"""The tests of the graders share problems of their own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

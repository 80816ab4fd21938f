"""Run by the Python of an image: proves that its vLLM serves a token, and prints its help and its packages.

    python image_report.py VERIFICATION

VERIFICATION is the path of verification.py, which an installed vLLM is proved with, too. What that prints is followed
by the help of `vllm serve` between HELP_BEGIN and HELP_END, and by a line of JSON with the version of each package. It
imports nothing of the package: the image does not contain it.
"""

import importlib.metadata
import importlib.util
import json
import sys
import tempfile
from pathlib import Path

HELP_BEGIN, HELP_END = "--- vllm serve --help=all", "--- end of the help"


def main(verification: str) -> int:
    """Generate one token and print what this Python has; raise whatever fails."""
    spec = importlib.util.spec_from_file_location("verification", verification)
    if spec is None or spec.loader is None:
        print(f"{verification} cannot be loaded")
        return 1
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with tempfile.TemporaryDirectory() as folder:
        help_file = Path(folder, "help.txt")
        sys.argv[1:] = [str(help_file)]
        status = module.main()
        if status:
            return int(status)
        if help_file.exists():
            print(HELP_BEGIN, help_file.read_text(encoding="utf-8"), HELP_END, sep="\n")
    versions = {
        distribution.metadata["Name"]: distribution.version
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"]
    }
    print(json.dumps({"environment": versions}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

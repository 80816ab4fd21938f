"""Whisper's normaliser of English text, of the published package openai-whisper, in a process of its own.

The package imports PyTorch when it is imported as a whole; its normalisers do not need it, and are loaded alone:

    python normaliser.py FOLDER < texts.json > normalised.json

FOLDER holds the packages openai-whisper and more-itertools (get,speech-packages); `regex` comes with nltk.
"""

import json
import os
import sys
import types
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path


def normalise_texts(texts: Sequence[str], packages: Path) -> list[str]:
    """Return each text as openai-whisper's EnglishTextNormalizer writes it. Raises InstallError without the package."""
    import subprocess

    from cm4vllm.common.errors import InstallError

    done = subprocess.run(
        [sys.executable, "-P", __file__, str(packages)],
        input=json.dumps(list(texts)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
        check=False,
    )
    if done.returncode:
        raise InstallError(
            "the texts cannot be normalised",
            cause=(done.stderr.strip().splitlines() or ["no output"])[-1],
            remedy="cm run script --tags=get,speech-packages --renew",
        )
    outputs: list[str] = json.loads(done.stdout)
    return outputs


def main() -> None:
    """Read a JSON list of texts, and print that of the normalised ones."""
    folder = Path(sys.argv[1])
    sys.path.append(str(folder))
    package = types.ModuleType("whisper")
    package.__path__ = [str(folder / "whisper")]
    sys.modules["whisper"] = package
    normalise = import_module("whisper.normalizers").EnglishTextNormalizer()
    json.dump([normalise(text) for text in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()

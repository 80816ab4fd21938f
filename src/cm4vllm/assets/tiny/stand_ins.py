"""The stand-ins: tiny models that are part of cm4vllm, one for each kind of samples, by the variations that give them.

They make every part of a run real on a machine without GPU and without a model hub. They are no benchmark's models.
docs/tools/train_stand_in.py has trained them. A new one is an entry of STAND_INS, a variation of get,ml-model, and
`stand_in` of its benchmarks in catalogue.yaml.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.errors import ModelError
from cm4vllm.common.files import require_space, sha256_of
from cm4vllm.common.folders.owned_folders import staged_folder

#: The folders of the models, and the digests of their files as sha256sum writes them.
MODELS = Path(__file__).parent / "models"
_DIGESTS = MODELS / "SHA256SUMS"
_SPACE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class StandIn:
    """A tiny model: `name` is the one under which it is served and published, and that of its folder.

    `architecture` is that of its config.json, `task` what it was trained for. `sample_bytes` is the size of a sample of
    the dataset that is made for it, measured. `min_tokens` is 2 for a model that may end its answer at once.
    """

    name: str
    architecture: str
    title: str
    task: str
    sample_bytes: int
    min_tokens: int = 1

    def copy_to(self, folder: Path) -> None:
        """Copy the model into `folder`, which appears when it is whole. Raises DiskFull, and ModelError for files that
        are not those of cm4vllm.
        """
        require_space(folder, _SPACE_BYTES, self.title)
        with staged_folder(folder) as staging:
            shutil.copytree(MODELS / self.name, staging, dirs_exist_ok=True)
            lines = (line.split("  ", 1) for line in _DIGESTS.read_text(encoding="utf-8").splitlines())
            digests = {path: digest for digest, path in lines if path.startswith(f"{self.name}/")}
            present = {f"{self.name}/{path.name}": sha256_of(path) for path in staging.iterdir()}
            if differing := sorted({path for path, _ in digests.items() ^ present.items()}):
                raise ModelError(
                    f"{self.title} is not the one that belongs to cm4vllm",
                    cause=f"missing or changed in {MODELS}: {', '.join(differing)}",
                    remedy=f"install cm4vllm again; in a checkout: git checkout -- {MODELS}",
                )


#: Each by its variation of get,ml-model, without the underscore.
STAND_INS: Mapping[str, StandIn] = {
    "tiny": StandIn(
        name="cm4vllm-tiny",
        architecture="LlamaForCausalLM",
        title="the tiny model",
        task="harbour log summaries",
        sample_bytes=834,
        min_tokens=2,
    ),
    "tiny-whisper": StandIn(
        name="cm4vllm-tiny-whisper",
        architecture="WhisperForConditionalGeneration",
        title="the tiny whisper",
        task="transcripts of words as tones",
        sample_bytes=96_255,
    ),
    "tiny-vision": StandIn(
        name="cm4vllm-tiny-vision",
        architecture="Qwen3VLForConditionalGeneration",
        title="the tiny vision-language model",
        task="categories of products by title and picture",
        sample_bytes=505,
    ),
}


def stand_in_named(name: str) -> str:
    """Return the variation of the stand-in with this name, its own or that of the variation; empty for no stand-in."""
    return next((variation for variation, stand_in in STAND_INS.items() if name in (stand_in.name, variation)), "")


def variation_of(architecture: str) -> str:
    """Return the variation of the stand-in with this architecture; for others, that of the text benchmarks."""
    return next(
        (variation for variation, stand_in in STAND_INS.items() if stand_in.architecture == architecture), "tiny"
    )

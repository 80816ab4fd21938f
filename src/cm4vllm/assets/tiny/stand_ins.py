"""The stand-ins: tiny models that are trained here, one for each kind of samples, by the variation that makes them.

A new one is an entry of STAND_INS, a variation of get,ml-model, and `stand_in` of its benchmarks in catalogue.yaml.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.assets.environment_worker import run_worker
from cm4vllm.assets.tiny import tiny_model, tiny_vision, tiny_whisper
from cm4vllm.common.errors import InstallError, ModelError
from cm4vllm.common.files import require_space, write_text
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import exit_in_words
from cm4vllm.common.progress import step
from cm4vllm.records.assets import SPEECH_STAND_IN_SOURCE, STAND_IN_SOURCE, VISION_STAND_IN_SOURCE

_SPACE_BYTES = 64 * 2**20
_HERE = Path(__file__).parent
_PROGRESS = re.compile(r"step (\d+)/(\d+)")


@dataclass(frozen=True)
class StandIn:
    """A tiny model: `name` is the one under which it is served and published, `source` stands in its record.

    `architecture` is that of its config.json. `subject` is the module that training.py trains, `training_data` returns
    its data; `recipe` are the inputs of the training beside the code, `duration` is its time. `sample_bytes` is the
    size of a sample of the dataset that is made for it, measured. `min_tokens` is 2 for a model that may end its answer
    at once.
    """

    name: str
    architecture: str
    source: str
    recipe: Mapping[str, str]
    subject: str
    training_data: Callable[[], object]
    title: str
    duration: str
    sample_bytes: int
    min_tokens: int = 1

    def train(self, python: Path, folder: Path) -> None:
        """Train it into `folder` with `python`, which must have torch, transformers and tokenizers.

        The folder appears when the model is whole. Raises InstallError where that Python lacks a package, ModelError
        where the training fails.
        """
        title = f"{self.title} ({self.duration} on one core)"
        words = [str(python), "-P", str(_HERE / "training.py"), f"--subject={_HERE / self.subject}.py"]
        require_space(folder, _SPACE_BYTES, title)
        with step(f"training {title}") as progress, staged_folder(folder) as staging, scratch_folder() as scratch:
            write_text(scratch / "data.json", json.dumps(self.training_data()))
            words += [f"--data={scratch / 'data.json'}", f"--seed={self.recipe['seed']}", f"--output={staging}"]
            _check(*run_worker(words, progress, _PROGRESS, r"step \1 of \2"), words[0], self.title)


def _check(status: int, lines: list[str], python: str, name: str) -> None:
    if status == 0:
        return
    missing = next((line for line in lines if "ModuleNotFoundError" in line), "")
    if missing:
        raise InstallError(
            f"{name} cannot be trained",
            cause=f"{python}: {missing}",
            remedy="renew vLLM's environment: cm run script --tags=install,vllm,_cpu --renew",
        )
    raise ModelError(
        f"the training of {name} failed",
        cause="\n".join([exit_in_words(status), *lines[-8:]]),
        remedy="a run of the same command starts it again",
    )


#: Each by its variation of get,ml-model, without the underscore.
STAND_INS: Mapping[str, StandIn] = {
    "tiny": StandIn(
        name="cm4vllm-tiny",
        architecture="LlamaForCausalLM",
        source=STAND_IN_SOURCE,
        recipe=tiny_model.RECIPE,
        subject="text_training",
        training_data=tiny_model.training_data,
        title="the tiny model",
        duration="about 45 s",
        sample_bytes=834,
        min_tokens=2,
    ),
    "tiny-whisper": StandIn(
        name="cm4vllm-tiny-whisper",
        architecture="WhisperForConditionalGeneration",
        source=SPEECH_STAND_IN_SOURCE,
        recipe=tiny_whisper.RECIPE,
        subject="speech_training",
        training_data=tiny_whisper.training_data,
        title="the tiny whisper",
        duration="about a minute",
        sample_bytes=96_255,
    ),
    "tiny-vision": StandIn(
        name="cm4vllm-tiny-vision",
        architecture="Qwen3VLForConditionalGeneration",
        source=VISION_STAND_IN_SOURCE,
        recipe=tiny_vision.RECIPE,
        subject="vision_training",
        training_data=tiny_vision.training_data,
        title="the tiny vision-language model",
        duration="three to five minutes",
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


def stand_in_of(architecture: str) -> StandIn:
    """Return the stand-in with this architecture; for others, that of the text benchmarks."""
    return STAND_INS[variation_of(architecture)]

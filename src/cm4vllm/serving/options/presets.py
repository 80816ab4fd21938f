"""Presets: options that are known to fit a model on a kind of device, as data with their sources (presets.yaml)."""

from functools import cache
from pathlib import Path, PurePath

import msgspec

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.records import Record
from cm4vllm.records.vllm.options import spelling


class Preset(Record, frozen=True, kw_only=True):
    """Options by name, without dashes. Without `models` it fits every model, without `gpu` every device of its kind.

    `precision` is that of the models' checkpoints, `gpus` the number that the options are for.
    """

    name: str
    device: str
    source: str
    options: dict[str, bool | int | float | str]
    models: list[str] = []
    precision: str = ""
    gpu: str = ""
    gpus: int | None = None

    def fits(self, device: str, model: str, gpu: str, gpus: int) -> bool:
        """Return True if it is for this model, a hub id or a folder of that name, on these GPUs."""
        names = {known.lower() for known in self.models} | {PurePath(known).name.lower() for known in self.models}
        return (
            self.device == device
            and (not self.models or model.lower() in names or PurePath(model).name.lower() in names)
            and self.gpu.lower() in gpu.lower()
            and self.gpus in (None, gpus)
        )


@cache
def presets() -> tuple[Preset, ...]:
    """Return all presets, the special ones first."""
    return msgspec.yaml.decode(Path(__file__).with_name("presets.yaml").read_bytes(), type=tuple[Preset, ...])


def preset_for(device: str, model: str, gpu: str = "", gpus: int = 0) -> Preset | None:
    """Return the preset for a model on a device; None if there is none."""
    return next((preset for preset in presets() if preset.fits(device, model, gpu, gpus)), None)


def preset_named(name: str) -> Preset:
    """Return the preset of this name. Raises UsageError."""
    known = {preset.name: preset for preset in presets()}
    if name not in known:
        raise UsageError(f"unknown preset {name!r}", remedy=nearest(name, known))
    return known[name]


def option_words(options: dict[str, bool | int | float | str]) -> list[str]:
    """Return the words of options, as they are published: --name=value, or --name alone for what is switched on."""
    return [
        f"--{spelling(name)}" if value is True else f"--{spelling(name)}={value}"
        for name, value in options.items()
        if value is not False
    ]

"""The options of `vllm serve` that a search may vary, as data (searchable.yaml)."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from cm4vllm.common.records import Record
from cm4vllm.common.settings import env_keys
from cm4vllm.records.vllm.options import neutral_name
from cm4vllm.serving.options.arguments import ServerSettings


class SearchableOption(Record, frozen=True, kw_only=True):
    """An option by its name, without dashes. `simulated`: a simulated server has it, too."""

    option: str
    kind: Literal["integer", "number"]
    least: float
    most: float | None = None
    simulated: bool = False

    @property
    def input(self) -> str:
        """The flag of the recipes that sets it, without dashes; empty where it can be given in --extra_args alone."""
        name = self.option.replace("-", "_")
        return name if name in env_keys(ServerSettings) else ""

    @property
    def key(self) -> str:
        """The environment key of that flag."""
        return env_keys(ServerSettings)[self.input] if self.input else ""


@cache
def searchable_options() -> Mapping[str, SearchableOption]:
    """Return the options by name."""
    data = Path(__file__).with_name("searchable.yaml").read_bytes()
    return {option.option: option for option in msgspec.yaml.decode(data, type=list[SearchableOption])}


def searched_name(part: str) -> str:
    """Return the option's name in a part of --search (OPTION:LOW..HIGH), however it is spelled there."""
    return neutral_name(part.partition(":")[0].strip().removeprefix("--").replace("_", "-"))

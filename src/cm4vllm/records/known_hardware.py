"""The table of known hardware: what accelerators and processors of published rounds are, each row with its source.

It fills what detection cannot see, and contradicts a description that says otherwise: a published L40S with HBM2. Only
what a published system file confirms contradicts; the rest are hints, and are shown as hints.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.common.files import bytes_of
from cm4vllm.common.records import Record
from cm4vllm.common.terminal_text import whole_number

_TABLES = Path(__file__).with_name("known")

#: A GPU sold with 48 GB is stated with 48 GB: a driver's 47.99 passes, its 44.99 does not.
_MEMORY_TOLERANCE = 0.01
#: The word of an accelerator's name that says which product it is: H100, L40S, MI300X, the 4090 of RTX 4090.
_PRODUCT = re.compile(r"[A-Z]{1,2}\d{1,4}[A-Z]?|\d{4}")
_MEMORY_TYPE = re.compile(r"\b(?:HBM\d?[eE]?|GDDR\dX?|LPDDR\dX?|DDR\d)\b", re.IGNORECASE)


#: The fields of the table that a remark names.
_TITLES = {
    "memory_type": "kind of memory",
    "memory_gb": "memory as sold",
    "links": "kind of its links",
    "links_gb_per_s": "their rate",
    "form_factor": "form factor",
    "cores": "number of cores",
    "ghz": "frequencies",
    "interconnect": "interconnect",
}


class Known(Record, frozen=True, kw_only=True):
    """A row of the table: the vendor's document it follows, and the fields that the file `published` confirms."""

    source: str
    published: str = ""
    confirmed: list[str] = []

    def remarks(self, product: str, **used: object) -> list[str]:
        """Return a remark on the fields that are used (a true value) and that no published file confirms, if any."""
        titles = [_TITLES[name] for name, is_used in used.items() if is_used and name not in self.confirmed]
        said = f"{', '.join(titles).capitalize()} of the {product}: after {self.source}, not checked."
        return [said] if titles else []


class Accelerator(Known, frozen=True, kw_only=True):
    """A row of accelerators.yaml. `links` is "none" where it has none, and empty where the table does not know.

    `vendor` is stated where no name has it.
    """

    names: list[str]
    vendor: str = ""
    memory_gb: list[int]
    memory_type: str
    pcie: int | None = None
    links: str = ""
    links_gb_per_s: int | None = None
    form_factor: str = ""

    @property
    def title(self) -> str:
        """The shortest name as published systems have it, H100-SXM-80GB, else the driver's."""
        return min((name for name in self.names if "-" in name), key=len, default=self.names[0])


class Processor(Known, frozen=True, kw_only=True):
    """A row of processors.yaml. `cores` are those of one processor, `ghz` holds the base and the highest frequency."""

    name: str
    cores: list[int]
    sockets: int | None = None
    ghz: list[float] = []
    l3_mb: float | None = None
    interconnect: str = ""
    memory: str = ""

    @property
    def known_cores(self) -> str:
        """The numbers of cores with which the processor is sold."""
        return " or ".join(map(str, self.cores))


class Integrated(Record, frozen=True, kw_only=True):
    """A row of integrated_gpus.yaml: what drivers call GPUs without memory of their own."""

    names: list[str]
    source: str


@dataclass(frozen=True)
class Contradiction:
    """A difference between a description and the table; only a hint where no published system confirms the table."""

    key: str
    said: str
    known: str
    source: str
    is_hint: bool

    def __str__(self) -> str:
        doubt = ", which no published system confirms" if self.is_hint else ""
        return f"{self.key} says {self.said!r}, but {self.known} ({self.source}{doubt})"


def accelerator(name: str) -> Accelerator | None:
    """Return the row of an accelerator by what its driver or a published file calls it; None for an unknown one."""
    wanted = _words(name)
    return next((row for row in _accelerators() if any(_words(known) == wanted for known in row.names)), None)


def known_accelerators() -> list[Accelerator]:
    """Return all rows of the table of accelerators."""
    return _accelerators()


def accelerators_named(text: str) -> list[Accelerator]:
    """Return the rows whose names have the words of a text, in their order or written as one: A100-80GB, RTX4090."""
    wanted = _words(text).split()
    return [row for row in _accelerators() if any(_has_words(_words(name).split(), wanted) for name in row.names)]


def _has_words(name: list[str], wanted: list[str]) -> bool:
    rest, places = iter(name), range(len(name))
    in_order = bool(wanted) and all(word in rest for word in wanted)
    return in_order or any("".join(name[first : last + 1]) == "".join(wanted) for first in places for last in places)


def is_integrated(name: str) -> bool:
    """Return True for a GPU, by its driver's name, that is known to compute in the host's memory and to have no own."""
    return any(_words(known) == _words(name) for row in _integrated_gpus() for known in row.names)


def products_named(text: str) -> set[str]:
    """Return the products of the table that a text names: H100 of `8xH100_vLLM` and of `DGX-H100_H100-SXM-80GBx8`."""
    return {word for word in _products() if re.search(rf"(?<![A-WYZa-wyz\d]){word}(?![A-WYZa-wyz\d])", text)}


@cache
def _products() -> frozenset[str]:
    words = (word for row in _accelerators() for name in row.names for word in re.split(r"[\s-]+", name))
    return frozenset(word for word in words if _PRODUCT.fullmatch(word))


def processor(name: str) -> Processor | None:
    """Return the row of the processor that `name` names; None for one that is not in the table."""
    words = f" {_words(name)} "
    return next((row for row in _processors() if f" {_words(row.name)} " in words), None)


def contradictions(description: Mapping[str, str]) -> list[Contradiction]:
    """Return what a system description says against the table; keys that it lacks or leaves open are not judged."""
    said = defaultdict(str, {key: str(value) for key, value in description.items()})
    rows = (
        (accelerator(said["accelerator_model_name"]), _ACCELERATOR_CHECKS),
        (processor(said["host_processor_model_name"]), _PROCESSOR_CHECKS),
    )
    return [
        Contradiction(key, said[key], known.format(row=row), row.source, field not in row.confirmed)
        for row, checks in rows
        if row is not None
        for key, field, is_wrong, known in checks
        if is_wrong(said[key], row)
    ]


def _other_type(said: str, row: Accelerator) -> bool:
    types = [word.upper() for word in _MEMORY_TYPE.findall(said)]
    return bool(types) and row.memory_type.upper() not in types


def _other_size(said: str, row: Accelerator) -> bool:
    size = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:GB|GiB|G)\s*", said, re.IGNORECASE)
    return size is not None and not any(abs(float(size[1]) / known - 1) <= _MEMORY_TOLERANCE for known in row.memory_gb)


def _faster_pcie(said: str, row: Accelerator) -> bool:
    # A slot may be slower than its card, never faster.
    stated = re.search(r"PCIe.{0,60}?Gen\s*(\d)", said, re.IGNORECASE)
    return stated is not None and row.pcie is not None and int(stated[1]) > row.pcie


def _links_of_none(said: str, row: Accelerator) -> bool:
    return row.links == "none" and bool(re.search(r"NVLink|NVSwitch|XGMI", said, re.IGNORECASE))


def _other_cores(said: str, row: Processor) -> bool:
    return whole_number(said) not in (None, *row.cores)


def _is_more(said: str, row: Processor) -> bool:
    return row.sockets is not None and (whole_number(said) or 0) > row.sockets


def _is_faster(said: str, row: Processor) -> bool:
    stated = [float(value) for value in re.findall(r"(\d{1,9}(?:\.\d{1,9})?)\s{0,9}GHz", said, re.IGNORECASE)]
    return bool(row.ghz and stated) and max(stated) > row.ghz[-1] * (1 + _MEMORY_TOLERANCE)


#: A key of a description, the row's field, the test whether a value is wrong, and the fact.
_Checks = tuple[tuple[str, str, Callable[[str, Any], bool], str], ...]
_ACCELERATOR_CHECKS: _Checks = (
    ("accelerator_memory_configuration", "memory_type", _other_type, "the {row.names[0]} has {row.memory_type}"),
    ("accelerator_memory_capacity", "memory_gb", _other_size, "the {row.names[0]} has {row.memory_gb[0]} GB"),
    ("accelerator_host_interconnect", "pcie", _faster_pcie, "the {row.names[0]} has PCIe Gen{row.pcie}"),
    ("accelerator_interconnect", "links", _links_of_none, "the {row.names[0]} has no direct links to others"),
)
_PROCESSOR_CHECKS: _Checks = (
    ("host_processor_core_count", "cores", _other_cores, "the {row.name} has {row.known_cores} cores"),
    ("host_processors_per_node", "sockets", _is_more, "a machine holds at most {row.sockets} of the {row.name}"),
    ("host_processor_frequency", "ghz", _is_faster, "the {row.name} reaches {row.ghz[1]:g} GHz"),
)


def _words(name: str) -> str:
    """Return a product's name in lower case, one space between its words, without marks and its kind's common words."""
    name = re.sub(
        r"^\d{1,9} ?x ?|\((?:R|TM|C)\)|\bCPU\b|\bProcessor\b|@.*|\d{1,9}-Core\b", " ", name, flags=re.IGNORECASE
    )
    return " ".join(re.sub(r"[-_,]+", " ", name).lower().removeprefix("nvidia ").split())


@cache
def _accelerators() -> list[Accelerator]:
    return msgspec.yaml.decode(bytes_of(_TABLES / "accelerators.yaml"), type=list[Accelerator])


@cache
def _integrated_gpus() -> list[Integrated]:
    return msgspec.yaml.decode(bytes_of(_TABLES / "integrated_gpus.yaml"), type=list[Integrated])


@cache
def _processors() -> list[Processor]:
    return msgspec.yaml.decode(bytes_of(_TABLES / "processors.yaml"), type=list[Processor])

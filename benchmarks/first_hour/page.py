"""The page of all figures, each with its unit, by machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cm4vllm.report.page_templates import environment
from first_hour.record import HourRecord, PartRecord

_TEMPLATE = Path(__file__).with_name("page.html.j2")


def page(record: HourRecord, order: Sequence[str]) -> str:
    """Return the page: one file of HTML that loads nothing. Parts stand in their order, whenever they were measured."""
    known = {machine: [name for name in order if name in parts] for machine, parts in record.machines.items()}
    machines = {machine: {name: record.machines[machine][name] for name in names} for machine, names in known.items()}
    template = environment().from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(machines=machines, number=_number, settings=_settings)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _settings(parts: Mapping[str, PartRecord]) -> dict[str, list[str]]:
    """Return the parts by when and with what they were measured."""
    by_text: dict[str, list[str]] = {}
    for name, part in parts.items():
        by_text.setdefault(f"{part.began[:10]}, {part.settings}", []).append(name)
    return by_text

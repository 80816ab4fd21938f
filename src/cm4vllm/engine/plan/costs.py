"""Downloads and installations of scripts, as their metas declare them: for the plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cm4vllm.common.units import size_text
from cm4vllm.engine.format.meta import Bring, ScriptMeta
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.plan.run_facts import in_words
from cm4vllm.engine.run.python_packages import listed, missing_of, needs

__all__ = ["Brought", "brought_by"]


@dataclass(frozen=True, slots=True)
class Brought:
    """One thing that a run would download, install or make. `disk_bytes` is 0 where it was not measured."""

    how: str
    what: str
    disk_bytes: int
    measured: str

    def __str__(self) -> str:
        size = f"{size_text(self.disk_bytes)} on disk" if self.disk_bytes else "size not known in advance"
        return f"{self.how} {self.what} ({size}{f', {self.measured}' if self.disk_bytes and self.measured else ''})"


def brought_by(script: ScriptMeta, brings: Iterable[Bring], wanted: Wanted) -> tuple[Brought, ...]:
    """Return the things that a run of the script would bring; none for Python packages that are installed already."""
    return tuple(brought for bring in brings if (brought := _brought(script, bring, wanted)))


def _brought(script: ScriptMeta, bring: Bring, wanted: Wanted) -> Brought | None:
    title, size = bring.what, bring.disk_bytes
    if bring.package:
        condition = wanted.pip_text()
        if bring.shared and not needs(bring.package, condition):
            return None
        title = f"{title or 'the package'} {bring.package}{condition}"
    elif bring.requirements:
        path = (script.path / bring.requirements).resolve()
        packages = missing_of(path) if bring.shared else [name for name, _ in listed(path)]
        if not packages:
            return None
        title = f"{title}: {len(packages)} package{'s' if len(packages) > 1 else ''} of {path.name}"
    return Brought(bring.how, in_words(title), size, bring.measured)

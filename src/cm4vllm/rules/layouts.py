"""The layouts of submission trees: the places of their files, and the rounds' layouts by name."""

from collections.abc import Iterator
from functools import cache
from glob import escape
from pathlib import Path

from cm4vllm.common.records import Record
from cm4vllm.rules.tables import read_table, round_entries


class TreeLayout(Record, frozen=True, kw_only=True):
    """One layout. Paths are below the submitter's folder; {system}, {model} and {scenario} stand for folders' names.

    `program` is the folder of the program. `settings` holds a run's user.conf, README.md and the file `measurements`;
    `other_measurements` are further names of that file, as patterns, which published trees have. `mlperf_conf` says
    that LoadGen's own mlperf.conf lies there, too. `calibration` is the page on quantisation. `compliance` holds a
    folder for each compliance test, `results` the logs.
    """

    name: str
    program: str
    settings: str
    measurements: str
    mlperf_conf: bool
    calibration: str
    compliance: str
    results: str
    source: str
    other_measurements: tuple[str, ...] = ()

    def results_of(self, home: Path, system: str, model: str, scenario: str) -> Path:
        """Return the folder of a scenario's logs."""
        return home / self.results.format(system=system, model=model, scenario=scenario)

    def compliance_of(self, home: Path, system: str, model: str, scenario: str) -> Path:
        """Return the folder of a scenario's compliance tests."""
        return home / self.compliance.format(system=system, model=model, scenario=scenario)

    def settings_of(self, home: Path, system: str, model: str, scenario: str) -> Path:
        """Return the folder of a scenario's settings and README."""
        return home / self.settings.format(system=system, model=model, scenario=scenario)

    def measurements_files(self, folder: Path, system: str) -> Iterator[Path]:
        """Yield the files in a folder of settings that state the weights, that of the layout's own name first."""
        yield from (path for path in (folder / self.measurements.format(system=system),) if path.is_file())
        for pattern in self.other_measurements:
            yield from sorted(folder.glob(pattern.format(system=escape(system))))


@cache
def _layouts() -> dict[str, TreeLayout]:
    return {layout.name: layout for layout in read_table("layouts.yaml", tuple[TreeLayout, ...])}


def tree_layouts() -> tuple[TreeLayout, ...]:
    """Return all layouts, that of the newest rounds first."""
    return tuple(reversed(_layouts().values()))


def tree_layout(name: str) -> TreeLayout:
    """Return the layout with a name, which Terms and RoundTerms state."""
    return _layouts()[name]


def layout_of_round(round_name: str) -> TreeLayout:
    """Return the layout of a round's trees; that of the newest round for an unknown one."""
    names = {entry.name: entry.layout for entry in round_entries()}
    return _layouts()[names.get(round_name, round_entries()[-1].layout)]


def layout_of_tree(home: Path) -> TreeLayout:
    """Return the layout of the submission in a submitter's folder: the oldest whose folder of settings is there."""
    known = _layouts().values()
    return next((layout for layout in known if (home / layout.settings.partition("/")[0]).is_dir()), tree_layouts()[0])

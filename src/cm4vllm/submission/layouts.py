"""Where a submission tree keeps what: one layout for rounds v4.1 to v5.1, another from v6.0 on.

Paths: mlcommons/inference tools/submission/submission_checker/constants.py (RESULTS_PATH, MEASUREMENTS_PATH, SRC_PATH
and the others, by round) and, for v4.1, submission_checker.py at tag v4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.errors import UsageError

__all__ = ["LAYOUTS", "TreeLayout", "layout_named"]


@dataclass(frozen=True)
class TreeLayout:
    """One layout. Paths are below the submitter's folder.

    `program` is the folder of the program. `settings` holds a run's user.conf, README.md and the file `measurements`,
    in which {system} stands for the system's folder name. `mlperf_conf` says that LoadGen's own mlperf.conf lies there,
    too. `calibration` is the page on quantisation. `compliance` holds a folder for each compliance test.
    """

    name: str
    program: str
    settings: str
    measurements: str
    mlperf_conf: bool
    calibration: str = "documentation/calibration.md"
    compliance: str = "results/{system}/{model}/{scenario}"
    results: str = "results/{system}/{model}/{scenario}"

    def results_of(self, home: Path, system: str, model: str, scenario: str) -> Path:
        """Return the folder of a scenario's logs."""
        return home / self.results.format(system=system, model=model, scenario=scenario)

    def compliance_of(self, home: Path, system: str, model: str, scenario: str) -> Path:
        """Return the folder of a scenario's compliance tests."""
        return home / self.compliance.format(system=system, model=model, scenario=scenario)

    def settings_of(self, home: Path, system: str, model: str, scenario: str) -> Path:
        """Return the folder of a scenario's settings and README."""
        return home / self.settings.format(system=system, model=model, scenario=scenario)


#: The layouts by the name that the rules give them (RoundTerms.layout).
LAYOUTS = {
    layout.name: layout
    for layout in (
        TreeLayout(
            name="v4.1",
            program="code",
            settings="measurements/{system}/{model}/{scenario}",
            measurements="{system}.json",
            mlperf_conf=True,
            compliance="compliance/{system}/{model}/{scenario}",
        ),
        # submission_structure.md still names `code/` where both checkers look for `src/`.
        TreeLayout(
            name="v6.0",
            program="src",
            settings="results/{system}/{model}/{scenario}",
            measurements="measurements.json",
            mlperf_conf=False,
        ),
    )
}


def layout_named(name: str) -> TreeLayout:
    """Return a layout. Raises UsageError when it is not known."""
    if name not in LAYOUTS:
        raise UsageError(
            f"submission trees of layout {name} cannot be written", remedy=f"supported layouts: {', '.join(LAYOUTS)}"
        )
    return LAYOUTS[name]

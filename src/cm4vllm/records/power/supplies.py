"""The file of a system's power supplies, which rounds from v6.1 on have beside the system's description.

Its form is that of tools/submission/submission_structure.md; the sum is that of the official checker
(submission_checker/checks/system_check.py): of each part the supplies that it needs at least, the greatest first.
"""

from pathlib import Path
from typing import Any

from cm4vllm.common.bounded_documents import read_yaml
from cm4vllm.common.errors import UsageError

#: The name of the file beside a power session.
SUPPLIES = "power_supplies.yaml"
_SUPPLIES, _NEEDED, _CAPACITY = "psus", "min psus needed", "PowerCapacityWatts"


def read_supplies(path: Path) -> float:
    """Return the W that the supplies in a file give. Raises UsageError where it states none, or is of another form."""
    try:
        watts = design_watts(read_yaml(path))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a file of power supplies", cause=str(error), remedy="see --power_supplies in docs/power.md"
        ) from error
    if watts <= 0:
        raise UsageError(
            f"{path} states no power supply",
            cause="no part of it has `PSUs` with `PowerCapacityWatts`, and `Min PSUs Needed`",
            remedy="see --power_supplies in docs/power.md",
        )
    return watts


def design_watts(stated: Any) -> float:
    """Return the sum over all parts below. Raises TypeError, AttributeError for values of another kind."""
    if isinstance(stated, list):
        return sum(map(design_watts, stated))
    if not isinstance(stated, dict):
        return 0.0
    names = {str(key).lower(): key for key in stated}
    if _SUPPLIES in names and _NEEDED in names:
        watts = sorted((float(supply.get(_CAPACITY, 0)) for supply in stated[names[_SUPPLIES]]), reverse=True)
        return sum(watts[: stated[names[_NEEDED]]])
    return sum(map(design_watts, stated.values()))

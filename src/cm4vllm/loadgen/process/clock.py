"""Check that the clock was not set during a run: LoadGen reads the time of day, and its times would mean nothing.

LoadGen takes std::chrono's system clock (loadgen/utils.h, PerfClock is the high-resolution clock, which is that one in
libstdc++). A clock that is slowed down or sped up by NTP changes the monotonic clock alike, so that the difference
between both changes only where the clock is set, or where the machine was suspended.
"""

import time

from cm4vllm.common.errors import ClockChanged

#: Drift of the two clocks that is not noticed: less than this is not seen in a percentile of a run.
TOLERANCE_S = 0.01
#: Readings, of which the best counts: an interruption between the two clocks of a reading looks like a jump.
_LOOKS = 8


class ClockWatch:
    """Compares the time of day with the monotonic clock, from its making on."""

    def __init__(self) -> None:
        self._offset_ns = _offset_ns()

    def fault(self, title: str) -> ClockChanged | None:
        """Return the error of a run with this title, None where the clock was not set."""
        jump_s = (_offset_ns() - self._offset_ns) / 1e9  # negative where it was set back
        if abs(jump_s) <= TOLERANCE_S:
            return None
        return ClockChanged(
            f"the clock was set {'forward' if jump_s > 0 else 'back'} by {abs(jump_s):,.2f} s: the {title} run is "
            "INVALID",
            cause="LoadGen measures by the time of day",
            remedy="run it again, and have the clock slewed instead of set (chrony, systemd-timesyncd); a machine that "
            "was suspended has its clock set when it wakes up",
        )


def _offset_ns() -> int:
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(_LOOKS)]
    before, now, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return now - (before + after) // 2

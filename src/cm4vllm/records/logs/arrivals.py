"""Issue times of a Server run's queries: LoadGen's own times to the nanosecond, computed without LoadGen.

The arithmetic is that of mlcommons/inference, loadgen/loadgen.cc, GenerateQueries and ScheduleDistribution: a Mersenne
twister seeded with schedule_rng_seed, and libstdc++'s exponential distribution, whose times are cut to whole
nanoseconds. Two runs of one seed have the same schedule, stretched by the rate.
"""

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]

#: The twister takes 32 bits of the seed, and a number in [0..1) two of its words.
_WORD = 2**32


def arrivals(rate: float, seed: int, queries: int) -> Times:
    """Return when the first `queries` queries are issued, in s since the first one, at `rate` queries/s."""
    # The legacy generator: its sequence for a seed is that of std::mt19937, and is guaranteed to stay so.
    words = np.random.RandomState(seed % _WORD).randint(0, _WORD, 2 * max(queries - 1, 0), dtype=np.uint32)
    low, high = words[0::2].astype(np.float64), words[1::2].astype(np.float64)
    uniform = np.minimum((low + high * _WORD) / _WORD**2, np.nextafter(1.0, 0.0))
    gaps_ns = np.floor(-np.log(1.0 - uniform) / rate * 1e9)
    times = np.zeros(queries)
    np.cumsum(gaps_ns, out=times[1:])
    return times / 1e9

"""The numbers and texts that rules may hold: what a file states beyond them is refused, not computed with."""

from typing import Annotated, Literal

from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=10**9)]
#: Points of a curve, passes of a window, cohorts of a seed set: few.
Few = Annotated[int, Meta(ge=1, le=1000)]
Part = Annotated[float, Meta(gt=0, le=1)]
Amount = Annotated[float, Meta(gt=0, le=1e9)]
#: No document has a number of more than 64 bits (common.bounded_documents).
Seed = Annotated[int, Meta(ge=0)]
Commit = Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
Day = Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Temperature = Annotated[float, Meta(ge=0, le=10)]
#: Samples and tokens; 0 where they are not known.
Tokens = Annotated[int, Meta(ge=0, le=10**9)]
Weekday = Annotated[int, Meta(ge=0, le=6)]
#: Each month has four of each day of the week.
WeekOfMonth = Annotated[int, Meta(ge=1, le=4)]
Days = Annotated[int, Meta(ge=0, le=31)]
Metric = Literal["tpot_p50", "tpot_p90", "ttft_p50", "ttft_p90"]

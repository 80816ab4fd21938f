"""The cohorts of MLPerf Endpoints: the days on which results are published, two a month, by which submissions count.

A submission belongs to the first cohort before which its automatic checks have passed in time (submission rules §4.3).
Seeds and drafters hold for cohorts.
"""

import re
from calendar import monthcalendar
from datetime import date, timedelta

from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record
from cm4vllm.rules.bounds import Days, Few, Seed, Weekday, WeekOfMonth

_OF_A_MONTH, _MONTHS = 2, 12
_SATURDAY = 5
_COHORT = re.compile(r"(2[0-9]{3})-(0[1-9]|1[0-2])-C([01])")


class CohortCalendar(Record, frozen=True, kw_only=True):
    """The days of the cohorts: the `weekday` (Monday is 0) that is the one of each of these `weeks` of a month.

    The checks of a submission have passed at least `business_days` days of work before the day of its cohort.
    """

    weekday: Weekday
    weeks: tuple[WeekOfMonth, WeekOfMonth]
    business_days: Days
    source: str

    def day_of(self, cohort: str) -> date:
        """Return the day on which a cohort is published. Raises UsageError for what is no cohort."""
        months, half = divmod(cohort_number(cohort), _OF_A_MONTH)
        year, month = divmod(months, _MONTHS)
        days = [week[self.weekday] for week in monthcalendar(year, month + 1) if week[self.weekday]]
        return date(year, month + 1, days[self.weeks[half] - 1])

    def last_day_of(self, cohort: str) -> date:
        """Return the last day on which the checks of a submission can pass for a cohort. Raises UsageError."""
        day = self.day_of(cohort)
        for _ in range(self.business_days):
            day -= timedelta(days=1)
            while day.weekday() >= _SATURDAY:
                day -= timedelta(days=1)
        return day

    def open_cohort(self, day: date) -> str:
        """Return the first cohort for which the checks of a submission can pass on this day."""
        number = (day.year * _MONTHS + day.month - 1) * _OF_A_MONTH
        while self.last_day_of(cohort_name(number)) < day:
            number += 1
        return cohort_name(number)


class SeedSet(Record, frozen=True, kw_only=True):
    """Published seeds, unsigned 64-bit integers, for new submissions in `cohorts` cohorts from `cohort` on."""

    name: str
    scheduler: Seed
    sample_index: Seed
    model: Seed
    cohort: str
    cohorts: Few
    source: str

    def __str__(self) -> str:
        return f"{self.name}: from {self.cohort} to {self.last_cohort}"

    @property
    def last_cohort(self) -> str:
        """The last cohort whose new submissions may adopt the set."""
        return cohort_name(cohort_number(self.cohort) + self.cohorts - 1)

    def adoptable(self, cohort: str) -> bool:
        """Return True if a new submission of this cohort may adopt the set. Raises UsageError for no cohort."""
        return 0 <= cohort_number(cohort) - cohort_number(self.cohort) < self.cohorts


class SubmissionTarget(Record, frozen=True, kw_only=True):
    """The cohort of a submission and the seeds of its client.

    `over` is the reason why a submission is too late for them, empty where it is not.
    """

    cohort: str
    seeds: SeedSet
    over: str = ""


class ApprovedDrafter(Record, frozen=True, kw_only=True):
    """A drafter of speculative decoding that a benchmark may use, approved in a cohort.

    It is identified by the checksum of its `weights`, or, where it has none of its own, by that of the `target` and by
    the `configuration` of the draft pass.
    """

    benchmark: str
    cohort: str
    source: str
    model: str = ""
    weights: str = ""
    target: str = ""
    configuration: dict[str, int | float | str | bool] = {}


def cohort_name(number: int) -> str:
    """Return the name of the cohort of this number."""
    months, half = divmod(number, _OF_A_MONTH)
    return f"{months // _MONTHS:04d}-{months % _MONTHS + 1:02d}-C{half}"


def cohort_number(cohort: str) -> int:
    """Return the number of a cohort in their order: two a month. Raises UsageError for another form."""
    if not (match := _COHORT.fullmatch(cohort)):
        raise UsageError(f"{cohort!r} is no cohort", remedy="give YYYY-MM-C0 or YYYY-MM-C1, for example 2027-01-C1")
    year, month, half = map(int, match.groups())
    return (year * _MONTHS + month - 1) * _OF_A_MONTH + half

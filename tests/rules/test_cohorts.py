"""Cohorts of MLPerf Endpoints and their days, as the submission rules have them."""

from datetime import date

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.rules import endpoints_rules
from cm4vllm.rules.cohorts import CohortCalendar, cohort_name, cohort_number

pytestmark = pytest.mark.usefixtures("any_day")

CALENDAR = CohortCalendar(weekday=2, weeks=(1, 3), business_days=1, source="submission rules §4.2, §4.3")


@pytest.mark.parametrize(
    ("cohort", "day"),
    [  # those that the rules, the approved drafters and the calendar of submissions name
        ("2026-08-C1", date(2026, 8, 19)),
        ("2026-09-C0", date(2026, 9, 2)),
        ("2026-09-C1", date(2026, 9, 16)),
        ("2026-11-C1", date(2026, 11, 18)),
        ("2026-12-C0", date(2026, 12, 2)),
        ("2027-09-C0", date(2027, 9, 1)),  # a month that begins with a Wednesday
    ],
)
def test_a_cohort_is_published_on_the_first_or_the_third_wednesday(cohort, day):
    assert CALENDAR.day_of(cohort) == day
    assert cohort_name(cohort_number(cohort)) == cohort


@pytest.mark.parametrize(
    ("day", "cohort"),
    [
        (date(2026, 11, 29), "2026-12-C0"),
        (date(2026, 12, 1), "2026-12-C0"),  # the business day before
        (date(2026, 12, 2), "2026-12-C1"),
        (date(2026, 12, 16), "2027-01-C0"),
    ],
)
def test_a_submission_belongs_to_the_first_cohort_that_its_checks_can_pass_for(day, cohort):
    assert CALENDAR.open_cohort(day) == cohort


@pytest.mark.parametrize("text", ["2026-13-C0", "2026-1-C0", "2026-01-C2", "", "next"])
def test_another_form_is_no_cohort(text):
    with pytest.raises(UsageError, match="is no cohort"):
        CALENDAR.day_of(text)


@pytest.mark.parametrize(
    ("cohort", "day", "target", "over"),
    [
        ("", date(2026, 11, 29), "2026-12-C0", ""),
        ("2026-12-C0", date(2026, 12, 1), "2026-12-C0", ""),
        (
            "2026-11-C1",
            date(2026, 11, 29),
            "2026-11-C1",
            "the cohort 2026-11-C1 is over: checks had to pass by 2026-11-17",
        ),
        (
            "",
            date(2027, 3, 1),
            "2026-12-C0",  # the last one of the newest seed set
            "no published seed set is for the cohort 2027-03-C0 (A: from 2026-10-C1 to 2026-12-C0",
        ),
    ],
)
def test_a_submission_has_a_cohort_and_seeds_or_a_reason_why_not(cohort, day, target, over):
    chosen = endpoints_rules().target(cohort, day)
    assert (chosen.cohort, chosen.seeds.name) == (target, "A")
    assert chosen.over.startswith(over) and bool(chosen.over) is bool(over)

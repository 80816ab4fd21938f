"""Student's t as the tables of textbooks have it."""

import pytest

from cm4vllm.common.student import student_t


@pytest.mark.parametrize(
    ("probability", "points"),
    [
        (0.975, {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 29: 2.045, 1000: 1.962}),
        (0.95, {2: 2.920, 3: 2.353, 10: 1.812, 5000: 1.646}),
        (0.995, {19: 2.861}),
    ],
)
def test_the_values_are_those_of_the_tables(probability, points):
    assert {freedom: round(student_t(probability, freedom), 3) for freedom in points} == points

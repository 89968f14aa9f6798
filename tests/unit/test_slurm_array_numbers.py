"""The elements of an array that have not begun."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cli.slurm.array_numbers import numbers_of, remaining, waiting_of


@pytest.mark.parametrize(
    ("numbers", "waiting", "left"),
    [
        ("0-9%2", 10, "0-9%2"),
        ("0-9%2", 7, "3-9%2"),
        ("0-9:3,20", 2, "9,20"),
        ("1,5,7-9", 1, "9"),
        ("1-3", 0, ""),
        ("no array", 3, "no array"),
    ],
)
def test_the_first_elements_go_as_they_begin(numbers: str, waiting: int, left: str) -> None:
    assert remaining(numbers, waiting) == left


@given(st.integers(0, 50), st.integers(0, 20), st.integers(1, 5), st.integers(0, 30))
def test_as_many_are_left_as_wait(first: int, more: int, step: int, waiting: int) -> None:
    numbers = f"{first}-{first + more}:{step}"
    every = list(numbers_of(numbers))
    left = remaining(numbers, min(waiting, len(every)))
    assert list(numbers_of(left)) == every[len(every) - min(waiting, len(every)) :]


def test_elements_that_wait_again_are_rows_of_their_own() -> None:
    array = {"array": {"numbers": "0-9", "states": {"queued": 5, "running": 2}}}
    assert waiting_of(array, 2) == 3
    assert waiting_of({}, 0) == 0 and list(numbers_of("no array")) == []

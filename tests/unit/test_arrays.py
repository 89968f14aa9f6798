"""How arrays are written, and the numbers and ids of their elements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common import arrays
from libs.common.model import Array, JobId


@pytest.mark.parametrize(
    ("text", "numbers", "at_once"),
    [
        ("0-3", [0, 1, 2, 3], 0),
        ("0-99%4", list(range(100)), 4),
        ("7", [7], 0),
        ("1,5,7-9", [1, 5, 7, 8, 9], 0),
        ("0-10:4,20-21%2", [0, 4, 8, 20, 21], 2),
        ("0-99999%1", list(range(100_000)), 1),
    ],
)
def test_an_array_is_written_as_slurm_writes_it(
    text: str, numbers: list[int], at_once: int
) -> None:
    array = arrays.parse(text)
    assert [arrays.number_at(array, place) for place in range(arrays.count(array))] == numbers
    assert (array.at_once, arrays.written(array)) == (at_once, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "3-1",
        "0-9:0",
        "1,",
        "0-9%",
        "0-9%0",
        "0-9%-1",
        "5,1",
        "0-5,5-9",
        "0-3:2,1",
        "٣",
        "1 - 3",
        "-1",
    ],
)
def test_invalid_array_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected numbers as in 0-99"):
        arrays.parse(text)


def test_the_bounds_of_an_array_are_kept() -> None:
    assert arrays.count(arrays.parse("0-999999")) == arrays.ELEMENTS_MAX
    for text in (
        "0-1000000",
        "0-999999,2000000",
        ",".join(str(2 * number) for number in range(257)),
    ):
        with pytest.raises(ValueError, match="at most 1000000 elements, in at most 256 ranges"):
            arrays.parse(text)


RANGES = st.tuples(st.integers(-9, 99), st.integers(-9, 99), st.integers(-1, 5))


@given(st.lists(RANGES, max_size=4), st.integers(-2, 200))
def test_places_and_numbers_agree_whatever_stands_in_the_log(
    ranges: list[tuple[int, int, int]], number: int
) -> None:
    array = Array(tuple(ranges))
    numbers = [arrays.number_at(array, place) for place in range(arrays.count(array))]
    assert arrays.number_at(array, len(numbers)) == -1
    assert arrays.place_of(array, number) == (numbers.index(number) if number in numbers else -1)


def test_an_elements_id_names_its_array_and_its_number() -> None:
    assert arrays.element_of(arrays.element_id(JobId("job_7"), 12)) == ("job_7", 12)
    assert [
        arrays.element_of(text) for text in ("j", "j_", "_3", "j_03", "j_-1", "j_1234567890", "j_²")
    ] == [("", -1)] * 7


@pytest.mark.attack
def test_a_long_expression_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    class Counted:
        def fullmatch(self, word: str) -> None:
            read.append(word)

    monkeypatch.setattr(arrays, "_RANGE", Counted())
    with pytest.raises(ValueError, match="at most 256 ranges"):
        arrays.parse("1," * 200_000 + "1")
    assert read == []


def test_a_batch_is_named_after_its_first_and_last_number() -> None:
    array = arrays.parse("3-9:3,20-29")
    name = arrays.batch_id(JobId("j"), array, 1, 4)
    assert name == "j_6-21" and arrays.is_batch(name) and not arrays.is_batch("j_6")
    assert arrays.numbers_of(array, 1, 4) == [6, 9, 20, 21]
    assert arrays.element_of(name) == (JobId(""), -1)

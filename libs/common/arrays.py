"""Job arrays: their notation (`0-99:2,200%4`), the numbers and the ids of their elements.

Pure and total. An array is one fact of any size, so all functions compute with its ranges and never
list its numbers. The id of an element is `<array>_<number>`, that of a batch of a short array
`<array>_<first>-<last>`.
"""

import re
from typing import Final

from libs.common.model import Array, JobId

ELEMENTS_MAX: Final = 1_000_000
NUMBER_MAX: Final = 999_999_999
RANGES_MAX: Final = 256
# RANGES_MAX ranges of three numbers with nine digits, and their separators.
TEXT_MAX: Final = RANGES_MAX * 30
EXPECTED: Final = (
    "expected numbers as in 0-99, 0-99:2 or 1,5,7-9, in ascending order, and optionally how many "
    "may run at a time, as in 0-99%4"
)

_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_BATCH: Final = re.compile(r".+_\d{1,9}-\d{1,9}")
_ELEMENT: Final = re.compile(r"(.+)_(0|[1-9]\d{0,8})")


def parse(text: str) -> Array:
    """Return the array that the text describes.

    Raises ValueError with the expected form, or the bound that is exceeded.
    """
    if len(text) > TEXT_MAX:
        raise ValueError(f"expected at most {TEXT_MAX} characters, in at most {RANGES_MAX} ranges")
    listed, percent, at_once = text.partition("%")
    found = [_RANGE.fullmatch(word) for word in listed.split(",")]
    if not text.isascii() or (
        percent and not (at_once.isdigit() and len(at_once) <= 9 and int(at_once))
    ):
        raise ValueError(EXPECTED)
    ranges = tuple(
        (int(each[1]), int(each[2] or each[1]), int(each[3] or 1))
        for each in found
        if each is not None
    )
    rising = [number for first, last, _ in ranges for number in (first - 1, last)]
    if (
        len(ranges) < len(found)
        or rising != sorted(rising)
        or any(first > last or not step for first, last, step in ranges)
    ):
        raise ValueError(EXPECTED)
    array = Array(ranges, int(at_once or 0))
    if len(ranges) > RANGES_MAX or count(array) > ELEMENTS_MAX:
        raise ValueError(
            f"expected at most {ELEMENTS_MAX} elements, in at most {RANGES_MAX} ranges"
        )
    return array


def written(array: Array) -> str:
    """Return the text that `parse` reads."""
    return ",".join(map(_range, array.ranges)) + (f"%{array.at_once}" if array.at_once else "")


def _range(numbers: tuple[int, int, int]) -> str:
    first, last, step = numbers
    return f"{first}" if first == last else f"{first}-{last}" + (f":{step}" if step != 1 else "")


def count(array: Array) -> int:
    return sum(map(_length, array.ranges))


def _length(numbers: tuple[int, int, int]) -> int:
    first, last, step = numbers
    return max(0, (last - first) // max(1, step) + 1)


def number_at(array: Array, place: int) -> int:
    """Return the number of the element that begins after `place` others; -1 if there is none."""
    for numbers in array.ranges:
        if place < _length(numbers):
            return numbers[0] + place * max(1, numbers[2])
        place -= _length(numbers)
    return -1


def place_of(array: Array, number: int) -> int:
    """Return how many elements begin before this number; -1 if the array has no such number."""
    before = 0
    for first, last, step in array.ranges:
        if first <= number <= last and (number - first) % max(1, step) == 0:
            return before + (number - first) // max(1, step)
        before += _length((first, last, step))
    return -1


def element_id(array: JobId, number: int) -> JobId:
    return JobId(f"{array}_{number}")


def element_of(job_id: str) -> tuple[JobId, int]:
    """Return the array and the number in an element's id; ("", -1) for any other id."""
    found = _ELEMENT.fullmatch(job_id)
    return (JobId(found[1]), int(found[2])) if found is not None else (JobId(""), -1)


def batch_id(array: JobId, given: Array, place: int, number: int) -> JobId:
    """Return the id of the batch of `number` elements from `place` on: `<array>_<first>-<last>`."""
    first, last = number_at(given, place), number_at(given, place + number - 1)
    return JobId(f"{array}_{first}-{last}")


def is_batch(job_id: str) -> bool:
    """Return whether the id has the form of a batch's."""
    return _BATCH.fullmatch(job_id) is not None


def numbers_of(given: Array, place: int, number: int) -> list[int]:
    """Return the numbers of `number` elements from `place` on."""
    return [number_at(given, at) for at in range(place, place + number)]

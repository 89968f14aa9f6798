"""The elements of an array that have not begun, as squeue shows them: `j4f2_[3-9%2]`.

Pure. Elements begin in the order of their numbers. Tests: tests/unit/test_slurm_array_numbers.py.
"""

from collections.abc import Iterator
from typing import Any

from libs.common import arrays
from libs.common.model import Array

Job = dict[str, Any]


def remaining(numbers: str, waiting: int) -> str:
    """Return the numbers of the last `waiting` elements, in the notation of `--array`.

    A text that is no array is returned as it is.
    """
    try:
        array = arrays.parse(numbers)
    except ValueError:
        return numbers
    return arrays.written(_after(array, arrays.count(array) - waiting))


def _after(array: Array, begun: int) -> Array:
    """Return the array without its first `begun` elements."""
    left: list[tuple[int, int, int]] = []
    for first, last, step in array.ranges:
        length = (last - first) // step + 1
        if begun < length:
            left.append((first + max(0, begun) * step, last, step))
        begun -= length
    return Array(tuple(left), array.at_once)


def numbers_of(numbers: str) -> Iterator[int]:
    """Yield each number of an array."""
    try:
        array = arrays.parse(numbers)
    except ValueError:
        return
    for first, last, step in array.ranges:
        yield from range(first, last + 1, step)


def waiting_of(array: Job, elements_queued: int) -> int:
    """Return how many elements of an array have not begun.

    The gateway counts them as queued, together with `elements_queued` that wait for a place again.
    """
    states = (array.get("array") or {}).get("states") or {}
    return max(0, int(states.get("queued") or 0) - elements_queued)

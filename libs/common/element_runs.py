"""Results of the elements of a short array, as runs of equal results.

Pure and total. A run is (count, result): so many elements after another had this result. A result
is an exit code, SIGNALLED and the number of a signal, or one of the words below. One batch of
elements runs in order, so its results are those of its first elements.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from libs.common.life import job_life
from libs.common.reasons import ELEMENT_LOST, EXITED, FAILED, SIGNALLED, TIME_LIMIT

# The most elements that one batch may have.
BATCH_MAX: Final = 1_000
SIGNAL_BASE: Final = 256
AT_LIMIT: Final = 512
LOST: Final = 513
# So many different runs are kept once, for all batches.
RUNS_SHARED: Final = 4_096
# What a shell shows for a process that a signal ended, and for one at its time limit.
SHELL_SIGNAL: Final = 128
SHELL_KILLED: Final = 137
# The time that a batch may take beside its elements, and beside each at its limit.
BESIDE_S: Final = 60
BESIDE_EACH_S: Final = 1

Runs = tuple[tuple[int, int], ...]


def count(runs: Runs) -> int:
    """Return the number of elements that have a result."""
    return sum(number for number, _ in runs)


def joined(parts: Iterable[tuple[int, int]]) -> Runs:
    """Return the runs with equal neighbours joined, and without empty ones.

    Equal runs are the same tuple, because results that alternate would need eight times the memory.
    """
    found: list[tuple[int, int]] = []
    for number, result in parts:
        if number > 0 and found and found[-1][1] == result:
            found[-1] = (found[-1][0] + number, result)
        elif number > 0:
            found.append((number, result))
    return tuple(_run(number, result) for number, result in found)


@lru_cache(maxsize=RUNS_SHARED)
def _run(number: int, result: int) -> tuple[int, int]:
    return number, result


def of_results(results: Iterable[int]) -> Runs:
    """Return the runs of these results."""
    return joined((1, result) for result in results)


def from_place(runs: Runs, place: int) -> Runs:
    """Return the runs without the first `place` elements."""
    return joined(_cut(runs, place, after=True))


def until(runs: Runs, place: int) -> Runs:
    """Return the runs of the first `place` elements; elements without a result are lost."""
    kept = joined(_cut(runs, place, after=False))
    return joined((*kept, (place - count(kept), LOST)))


def _cut(runs: Runs, place: int, after: bool) -> Iterator[tuple[int, int]]:
    left = max(0, place)
    for number, result in runs:
        before = min(left, number)
        left -= before
        yield (number - before if after else before), result


def is_right(runs: Runs) -> bool:
    """Return whether a node may report these runs."""
    return all(0 < number <= BATCH_MAX and 0 <= result <= AT_LIMIT for number, result in runs)


def listed(runs: Runs) -> list[int]:
    """Return the result of each element."""
    return [result for number, result in runs for _ in range(number)]


def state_of(result: int) -> str:
    """Return the state of an element with this result."""
    return job_life.FAILED if result else job_life.COMPLETED


def shell_code(result: int) -> int | None:
    """Return the exit code that a shell would show; None for a lost element."""
    if result < SIGNAL_BASE:
        return result
    if result < AT_LIMIT:
        return SHELL_SIGNAL + result - SIGNAL_BASE
    return SHELL_KILLED if result == AT_LIMIT else None


def reason_of(result: int) -> str:
    """Return the reason of a result, in the words that jobs have."""
    if result < SIGNAL_BASE:
        return FAILED if result else EXITED
    if result < AT_LIMIT:
        return SIGNALLED
    return TIME_LIMIT if result == AT_LIMIT else ELEMENT_LOST


def failures(runs: Runs) -> int:
    """Return the number of elements that did not complete."""
    return sum(number for number, result in runs if result)


def first_failure(runs: Runs) -> int | None:
    """Return the exit code of the first element that failed, as a shell would show it."""
    return next((shell_code(result) for _, result in runs if result), None)


def batch_limit_s(limit_s: int, number: int, grace_s: int) -> int:
    """Return the time limit of a batch of so many elements with this limit; 0: none.

    Each may use its time and its grace, so only much time between them can end the batch.
    """
    return (limit_s + grace_s + BESIDE_EACH_S) * number + BESIDE_S if limit_s else 0


def element_limit_s(batch_limit_s: int, number: int, grace_s: int) -> int:
    """Return the time limit of each element of a batch; 0: none."""
    each_s = (batch_limit_s - BESIDE_S) // max(1, number) - grace_s - BESIDE_EACH_S
    return max(1, each_s) if batch_limit_s else 0

"""`heed`: a task that was told to end ends, even when the await in between forgot it; `before`: so
does what is still opening.
"""

import asyncio

import pytest

from libs.common.errors import Unavailable
from libs.common.process.cancellation import Stopped, before, heed, while_wanted, within


async def _forgetful(rounds: list[int]) -> None:
    """Passes over every cancellation, as wait_for of Python 3.11 may."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            rounds.append(1)
        heed()


async def test_a_cancellation_that_an_await_passed_over_is_heeded() -> None:
    rounds: list[int] = []
    task = asyncio.create_task(_forgetful(rounds))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,), timeout=5)
    assert task.cancelled() and rounds == [1]


async def test_without_a_cancellation_nothing_is_raised() -> None:
    heed()


async def _slow(ended: list[str]) -> str:
    try:
        await asyncio.sleep(0.01 if not ended else 60)
    finally:
        ended.append("ended")
    return "opened"


async def test_result_before_the_stop_is_returned() -> None:
    assert await before(asyncio.Event(), _slow([])) == "opened"


async def test_stop_ends_an_unfinished_opening() -> None:
    stop, ended = asyncio.Event(), ["begun"]
    asyncio.get_running_loop().call_later(0.01, stop.set)
    with pytest.raises(Stopped):
        await before(stop, _slow(ended))
    assert ended == ["begun", "ended"]


async def test_error_of_the_opening_is_raised() -> None:
    async def fails() -> None:
        raise Unavailable("no log")

    with pytest.raises(Unavailable):
        await before(asyncio.Event(), fails())


async def _retry_without_end(lost: list[int], losses: int) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if len(lost) >= losses:
                raise
            lost.append(1)


async def test_work_that_loses_a_cancellation_ends_when_its_time_is_over() -> None:
    lost: list[int] = []
    with pytest.raises(TimeoutError, match="no result within"):
        await within(_retry_without_end(lost, 2), 0.01)
    assert lost == [1, 1] and len(asyncio.all_tasks()) == 1


async def test_cancelled_waiter_ends_the_work_that_it_waits_for() -> None:
    waiter = asyncio.create_task(within(_retry_without_end([], 1), 60))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait((waiter,), timeout=5)
    assert waiter.cancelled() and len(asyncio.all_tasks()) == 1


async def test_result_within_the_time_is_returned() -> None:
    assert await within(_slow([]), 5) == "opened"


async def test_work_that_is_not_wanted_any_more_ends() -> None:
    rounds: list[int] = []

    async def endless() -> None:
        rounds.append(1)
        try:
            await asyncio.sleep(60)
        finally:
            rounds.append(2)

    with pytest.raises(Stopped):
        await while_wanted(endless(), lambda: not rounds)
    assert rounds == [1, 2]


async def test_work_that_stays_wanted_gives_its_result_or_its_error() -> None:
    async def result(value: int) -> int:
        await asyncio.sleep(0)
        return 6 // value

    assert await while_wanted(result(2), lambda: True) == 3
    with pytest.raises(ZeroDivisionError):
        await while_wanted(result(0), lambda: True)

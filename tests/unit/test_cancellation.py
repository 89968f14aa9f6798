"""`heed`: a task that was told to end ends, even when the await in between forgot it."""

import asyncio

from libs.common.cancellation import heed


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

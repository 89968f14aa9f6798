"""`ServingTasks`: the end of one serving task ends all, even when a library forgets a
cancellation.
"""

import asyncio
from collections.abc import Coroutine

import pytest

from libs.common.errors import Fenced
from libs.common.process.serving_tasks import ServingTasks, serve_together, until

WITHIN_S = 10


async def fenced() -> None:
    await asyncio.sleep(0.01)
    raise Fenced("another process writes")


async def forgetful(forgotten: list[str], times: int = 3) -> None:
    """Forget the first cancellations, as `asyncio.wait_for` of Python 3.11 may."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            forgotten.append("cancelled")
            if len(forgotten) > times:
                raise


async def within(work: Coroutine[None, None, None]) -> None:
    async with asyncio.timeout(WITHIN_S):
        await work


@pytest.mark.attack
async def test_error_of_one_ends_the_others_that_forget_a_cancellation() -> None:
    forgotten: list[str] = []
    with pytest.raises(Fenced):
        await within(serve_together(writer=fenced(), reader=forgetful(forgotten)))
    assert len(forgotten) == 4


@pytest.mark.attack
async def test_groups_within_groups_end_too() -> None:
    forgotten: list[str] = []

    async def inner() -> None:
        await serve_together(reader=forgetful(forgotten), ticker=forgetful([]))

    with pytest.raises(Fenced):
        await within(serve_together(shell=inner(), leadership=fenced()))
    async with asyncio.timeout(WITHIN_S):
        while len(forgotten) < 4:
            await asyncio.sleep(0.05)


async def test_return_of_one_ends_the_others_without_an_error() -> None:
    stop = asyncio.Event()
    stop.set()
    other = asyncio.Event()
    await within(serve_together(stop=until(stop), other=until(other)))


async def test_the_first_error_is_raised_and_later_ones_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails_at_its_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("disk")

    with pytest.raises(Fenced):
        await within(serve_together(writer=fenced(), closing=fails_at_its_end()))
    assert "task closing failed while its process ended: disk" in caplog.text


async def test_spawned_work_that_returns_ends_nothing_and_its_error_ends_all() -> None:
    tasks = ServingTasks()
    done = asyncio.Event()

    async def short() -> None:
        done.set()

    async def long() -> None:
        await done.wait()
        await asyncio.sleep(0.05)
        assert not tasks.work
        tasks.spawn(fenced())
        await asyncio.sleep(60)

    tasks.serve(long(), "agent")
    tasks.spawn(short())
    assert len(tasks.work) == 1
    with pytest.raises(Fenced):
        await within(tasks.ended())


async def test_tasks_begun_while_the_others_end_are_ended_too() -> None:
    tasks = ServingTasks()
    ended: list[str] = []

    async def life(name: str, then: str = "") -> None:
        try:
            await asyncio.sleep(60)
        finally:
            if then:
                tasks.spawn(life(then, "third" if then == "second" else ""), then)
                await asyncio.sleep(0)  # it has begun
            ended.append(name)

    tasks.serve(life("first", "second"), "first")
    tasks.serve(fenced(), "writer")
    with pytest.raises(Fenced):
        await within(tasks.ended())
    assert ended == ["first", "second", "third"]


async def test_cancellation_of_the_waiting_task_ends_all() -> None:
    seen: list[str] = []

    async def life() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("ended")

    waiting = asyncio.create_task(serve_together(one=life(), two=life()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(_await(waiting))
    assert seen == ["ended", "ended"]


async def _await(task: asyncio.Task[None]) -> None:
    await task

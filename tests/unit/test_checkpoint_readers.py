"""A tenant has one thread that reads checkpoints, only as long as it has some to read."""

import asyncio
import threading

import pytest

from services.node_agent.resident.checkpoint_readers import CheckpointReaders

WAIT_S = 20.0


def threads() -> int:
    return sum(each.name.startswith("checkpoints") for each in threading.enumerate())


async def until_no_thread_is_left(readers: CheckpointReaders) -> None:
    async with asyncio.timeout(WAIT_S):
        while readers.reads or threads():
            await asyncio.sleep(0.01)


async def test_the_thread_of_a_tenant_ends_after_its_last_read() -> None:
    readers = CheckpointReaders()
    for tenant in ("a", "b", "a"):
        assert await readers.read(tenant, lambda: 7) == 7
    await until_no_thread_is_left(readers)
    assert await readers.read("a", lambda: 8) == 8
    await until_no_thread_is_left(readers)


async def test_reads_of_a_tenant_share_a_thread_and_tenants_do_not() -> None:
    readers, go = CheckpointReaders(), threading.Event()
    first = asyncio.create_task(readers.read("a", go.wait))
    second = asyncio.create_task(readers.read("a", lambda: 2))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(readers.read("b", lambda: 3), WAIT_S) == 3
    assert readers.reads["a"] == 2 and not second.done()
    go.set()
    assert await asyncio.gather(first, second) == [True, 2]
    await until_no_thread_is_left(readers)


async def test_a_cancelled_read_keeps_the_thread_until_it_ends() -> None:
    readers, go = CheckpointReaders(), threading.Event()
    reading = asyncio.create_task(readers.read("a", go.wait))
    await asyncio.sleep(0.05)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    waiting = asyncio.create_task(readers.read("a", lambda: 2))
    await asyncio.sleep(0.05)
    assert threads() == 1 and not waiting.done()
    go.set()
    assert await asyncio.wait_for(waiting, WAIT_S) == 2
    await until_no_thread_is_left(readers)


async def test_a_failed_read_ends_the_thread_too() -> None:
    readers = CheckpointReaders()
    with pytest.raises(ZeroDivisionError):
        await readers.read("a", lambda: 1 // 0)
    await until_no_thread_is_left(readers)


async def test_closed_readers_begin_no_read() -> None:
    readers, go = CheckpointReaders(), threading.Event()
    reading = asyncio.create_task(readers.read("a", go.wait))
    waiting = asyncio.create_task(readers.read("a", lambda: 2))
    await asyncio.sleep(0.05)
    readers.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(RuntimeError):
        await readers.read("a", lambda: 3)
    go.set()
    assert await reading
    await until_no_thread_is_left(readers)

"""Reads with a `min_seq` beyond the fold ask the log for its end; concurrent ones ask together."""

import asyncio

import pytest

from libs.common.errors import Unavailable
from libs.common.transport.log_memory import MemoryLog
from services.api_gateway.views.waiting import LogEnd


class SlowLog(MemoryLog):
    """A log whose bounds are counted, and answered when the test allows it."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.end = last
        self.questions = 0
        self.gate = asyncio.Event()
        self.is_down = False

    async def bounds(self) -> tuple[int, int]:
        self.questions += 1
        end = self.end
        await self.gate.wait()
        if self.is_down:
            raise Unavailable("the log does not answer")
        return 1, end


async def test_concurrent_far_reads_share_one_question() -> None:
    log = SlowLog(7)
    end = LogEnd(log)
    first = asyncio.create_task(end.last(10**18))
    await asyncio.sleep(0)
    others = [asyncio.create_task(end.last(10**18)) for _ in range(100)]
    await asyncio.sleep(0)
    log.gate.set()
    assert await asyncio.gather(first, *others) == [7] * 101
    assert log.questions == 2


async def test_a_question_that_began_earlier_does_not_answer_a_later_read() -> None:
    log = SlowLog(7)
    end = LogEnd(log)
    first = asyncio.create_task(end.last(8))
    await asyncio.sleep(0)
    log.end = 8
    second = asyncio.create_task(end.last(8))
    await asyncio.sleep(0)
    log.gate.set()
    assert (await first, await second) == (7, 8)


async def test_a_known_sequence_needs_no_question() -> None:
    log = SlowLog(7)
    log.gate.set()
    end = LogEnd(log)
    assert [await end.last(7), await end.last(3), log.questions] == [7, 7, 1]


async def test_a_question_that_failed_answers_no_read() -> None:
    log = SlowLog(7)
    end = LogEnd(log)
    log.is_down = True
    reads = [asyncio.create_task(end.last(9)) for _ in range(2)]
    await asyncio.sleep(0)
    log.gate.set()
    with pytest.raises(Unavailable):
        await reads[0]
    with pytest.raises(Unavailable):
        await reads[1]

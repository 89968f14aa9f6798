"""The launcher's wait for the log ends when the launcher stops."""

import asyncio

from libs.common.errors import Unavailable
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.embedded.launcher import _has_log


class SwallowingLog(MemoryLog):
    """Answers a cancellation like a timeout, as the log's client may."""

    async def bounds(self) -> tuple[int, int]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            raise Unavailable("the log does not answer") from error
        return 1, 0


async def test_cancellation_that_the_log_swallows_ends_the_wait_for_it() -> None:
    asking = asyncio.create_task(_has_log(SwallowingLog(MemoryStream())))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait((asking,), timeout=5)
    assert asking.cancelled()


async def test_log_that_answers_is_found() -> None:
    assert await _has_log(MemoryLog(MemoryStream()))

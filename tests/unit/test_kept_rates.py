"""The store of the marks: a quota that could not read it at first writes what it gave at once."""

import asyncio

import pytest

from libs.common.errors import Unavailable
from libs.common.messages.rate_messages import SliceAsk
from libs.common.model import TenantId
from libs.common.state.rate_limits import RateLimits
from libs.common.transport.pages import MemoryPages, Overtaken
from services.quota.kept_rates import TRIES, KeptRates
from services.quota.rates import PAGES, WINDOW_NS, Rates

T = TenantId("t")
MINUTE = 1_000 * WINDOW_NS
# More than one pause between two tries, far less than a minute.
SOON_S = 10.0


class Away(MemoryPages):
    """A store that does not answer until it is told to."""

    away = True

    async def get(self, number: int) -> tuple[bytes, int]:
        if self.away:
            raise Unavailable(f"page {number} does not answer")
        return await super().get(number)


async def test_a_store_that_comes_back_gets_the_marks_at_once_and_a_successor_gives_nothing_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pages, limited = Away(), RateLimits(0, 100)
    rates = Rates(MINUTE - WINDOW_NS)
    kept = KeptRates(pages, rates, 1)
    await kept.try_to_restore()
    assert rates.reserve(limited, SliceAsk(T, 0, 100), MINUTE).given
    await kept.cover((T, ""))
    assert not pages.values
    trying = asyncio.create_task(kept.keep_trying())
    await asyncio.sleep(0)
    pages.away = False
    async with asyncio.timeout(SOON_S):
        while not pages.values:
            await asyncio.sleep(0.02)
    trying.cancel()
    later = Rates(MINUTE)
    await KeptRates(pages, later, 2).try_to_restore()
    answer = later.reserve(limited, SliceAsk(T, 0, 1), MINUTE)
    assert not answer.given and not answer.starting
    assert caplog.text.count("may give a minute's budget again") == 1


class Busy(MemoryPages):
    """A store in which another process writes before the first writes of this one."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.before = before

    async def put(self, number: int, data: bytes, revision: int) -> int:
        self.before -= 1
        if self.before >= 0:
            raise Overtaken("another process has written")
        return await super().put(number, data, revision)


async def test_account_is_covered_when_the_last_try_to_store_its_mark_succeeds() -> None:
    for before in (TRIES - 1, TRIES):
        rates = Rates(MINUTE - WINDOW_NS)
        kept = KeptRates(Busy(before), rates, 1)
        await kept.try_to_restore()
        assert rates.reserve(RateLimits(0, 100), SliceAsk(T, 0, 100), MINUTE).given
        if before < TRIES:
            await kept.cover((T, ""))
        else:
            with pytest.raises(Unavailable, match="ask again"):
                await kept.cover((T, ""))


class Slow(MemoryPages):
    """A store whose reads wait until the test answers them, in the order in which they began."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Semaphore(0)

    async def get(self, number: int) -> tuple[bytes, int]:
        await self.answers.acquire()
        return await super().get(number)

    def answer_all_pages(self) -> None:
        for _ in range(PAGES):
            self.answers.release()


async def test_second_restore_counts_nothing_that_this_process_gave() -> None:
    pages, limited = Slow(), RateLimits(0, 100)
    rates = Rates(MINUTE - WINDOW_NS)
    kept = KeptRates(pages, rates, 1)
    first = asyncio.create_task(kept.try_to_restore())
    await asyncio.sleep(0)
    second = asyncio.create_task(kept.try_to_restore())
    pages.answer_all_pages()
    await first
    assert rates.reserve(limited, SliceAsk(T, 0, 40), MINUTE).given
    await kept.cover((T, ""))
    pages.answer_all_pages()
    await second
    assert rates.reserve(limited, SliceAsk(T, 0, 40), MINUTE).given

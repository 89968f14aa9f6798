"""The store of the marks: a quota that could not read it at first writes what it gave at once."""

import asyncio

import pytest

from libs.common.errors import Unavailable
from libs.common.messages.rate_messages import SliceAsk
from libs.common.model import TenantId
from libs.common.state.rate_limits import RateLimits
from libs.common.transport.pages import MemoryPages
from services.quota.kept_rates import KeptRates
from services.quota.rates import WINDOW_NS, Rates

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

"""A gateway's meter asks quota again only for a minute that ended while quota answered. Twin over real gateways: test_rate_limits.py."""

import asyncio

import pytest

from libs.common import rate_messages, subjects
from libs.common.bus_memory import MemoryBus
from libs.common.clock import SystemClock
from libs.common.cluster import Cluster, Tenant
from libs.common.model import TenantId
from libs.common.rate_messages import Slice
from services.api_gateway.openai.errors import RateLimited
from services.api_gateway.openai.limited import ASKS_MAX, Limited
from services.api_gateway.roles import Principal

ANSWER_S = 0.01
ADA = Principal("k", "physics", "ada", "member")


def slice_of(window: int, left_ms: int, given: bool = True) -> Slice:
    return Slice(window, left_ms, given, 0, 500 if given else 0, 0, 1_000)


async def reserved(*slices: Slice) -> tuple[int, int]:
    """The minute that 50 tokens were taken from, and how many slices were not asked for."""
    left = list(slices)

    async def answer(subject: str, data: bytes) -> bytes:
        await asyncio.sleep(ANSWER_S)
        return rate_messages.encode(left.pop(0))

    bus, cluster = MemoryBus(), Cluster()
    await bus.subscribe(subjects.ask_quota("reserve"), answer)
    cluster.tenants[TenantId("physics")] = Tenant(TenantId("physics"), tokens_per_minute=1_000)
    try:
        return (await Limited(lambda: cluster, bus, SystemClock(), 5.0).reserve(ADA, "m", 50)).window, len(left)
    except RateLimited:
        return -1, len(left)


async def test_a_slice_of_a_minute_that_ended_on_the_way_is_asked_for_again() -> None:
    assert await reserved(slice_of(1, left_ms=1), slice_of(2, left_ms=60_000)) == (2, 0)


async def test_but_never_for_ever() -> None:
    assert await reserved(*(slice_of(1, left_ms=1) for _ in range(ASKS_MAX + 1))) == (-1, 1)


@pytest.mark.parametrize(("given", "window"), [(True, 1), (False, -1)])
async def test_quota_s_word_on_the_present_minute_is_asked_for_once(given: bool, window: int) -> None:
    assert await reserved(slice_of(1, 60_000, given), slice_of(1, 60_000)) == (window, 1)

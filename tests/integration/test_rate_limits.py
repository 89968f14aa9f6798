"""Requests and tokens per minute over two gateways and one quota: never overrun, whatever is
concurrent, and refused with what helps.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.msgpack import encode

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.leadership.leading import give_signs
from libs.common.messages import rate_messages
from libs.common.messages.rate_messages import Slice, SliceAsk
from libs.common.model import TenantId
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.pages import MemoryPages
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway.openai.catalogue import Listed
from services.quota.rates import PAGES, WINDOW_NS, Page
from services.quota.service import Quota
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import USAGE, Replica, running
from tests.integration.openai_world import CHAT, error_of, served

CLIENTS = 50
# The hand-over, signs of life, its own question, its position, slices, and their return.
SUBSCRIPTIONS = 6
REQUESTS = 2_000
MODEL = {"model": "m", "max_tokens": 50}


class MinuteClock(SystemClock):
    """The wall stands still within a minute until the test lets the next begin."""

    def __init__(self) -> None:
        self.minute = 1_000

    def wall_ns(self) -> int:
        return self.minute * WINDOW_NS


class Limits(NamedTuple):
    """Two gateways asked as a member of the tenant `physics`, its admin, one replica, and quota."""

    admin: World
    gateways: tuple[World, World]
    replica: Replica
    clock: MinuteClock
    quota: "Running"

    async def limit(self, **limits: int) -> None:
        await self.admin.ask("PUT", "/v1/tenants/physics", json=limits)
        _, last = await self.admin.log.bounds()
        for world in self.gateways:
            await world.gateway.settle(last)
        while self.quota.service.state.seq < last:
            await asyncio.sleep(0.01)


class Running:
    """A quota process that can be killed and started again."""

    def __init__(self, stream: MemoryStream, bus: MemoryBus, clock: MinuteClock) -> None:
        self.stream, self.bus, self.clock = stream, bus, clock
        self.pages = MemoryPages()

    async def start(self) -> None:
        before = len(self.bus.subscriptions)
        self.service = Quota(
            log=MemoryLog(self.stream, idle_s=0.05),
            bus=self.bus,
            clock=self.clock,
            settings=Settings(),
            signs=lambda leading: give_signs(leading, self.bus),
            store=MemorySnapshots(),
            pages=self.pages,
        )
        self.task = asyncio.create_task(self.service.run(asyncio.Event()))
        while len(self.bus.subscriptions) < before + SUBSCRIPTIONS:
            assert not self.task.done()
            await asyncio.sleep(0.01)
        self.own = self.bus.subscriptions[before:]

    async def reserve(self, ask: SliceAsk) -> Slice:
        """Ask for a slice as a gateway does."""
        question = rate_messages.encode(ask)
        return rate_messages.decode_slice(
            await self.bus.request(subjects.ask_quota("reserve"), question, 5)
        )

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        for subscription in self.own:
            self.bus.unsubscribe(subscription)


@asynccontextmanager
async def limits_world(tmp_path: Path) -> AsyncIterator[Limits]:
    stream, bus, clock = MemoryStream(), MemoryBus(), MinuteClock()
    quota = Running(stream, bus, clock)
    async with (
        gateway_world(tmp_path, stream, bus=bus, instance="a") as one,
        gateway_world(tmp_path, stream, bus=bus, instance="b") as two,
        running() as replica,
    ):
        for world in (one, two):
            world.gateway.models = Listed(
                served(replica.port, tenant="physics"), served(replica.port, name="d")
            )
        await quota.start()
        clock.minute += 1
        await one.ask("PUT", "/v1/tenants/physics", 201, json={})
        async with one.as_("member", "ada", "physics") as ada:
            bob = World(two.gateway, two.running, ada.session, two.url)
            yield Limits(admin=one, gateways=(ada, bob), replica=replica, clock=clock, quota=quota)
        await quota.kill()


async def storm(limits: Limits, count: int) -> Counter[int]:
    """So many requests by CLIENTS clients, half of them at each gateway; the statuses of the
    answers.
    """
    statuses: Counter[int] = Counter()
    left = iter(range(count))

    async def one_client(world: World) -> None:
        for _ in left:
            async with world.session.post(world.url + CHAT, json=MODEL) as response:
                await response.read()
                statuses[response.status] += 1

    await asyncio.gather(*(one_client(limits.gateways[number % 2]) for number in range(CLIENTS)))
    return statuses


async def test_a_token_limit_exceeded_tenfold_by_many_clients_of_two_gateways_is_overrun_by_nothing(
    tmp_path: Path,
) -> None:
    async with limits_world(tmp_path) as limits:
        limit = REQUESTS * USAGE["total_tokens"] // 10
        await limits.limit(tokens_per_minute=limit)
        statuses = await storm(limits, REQUESTS)
        used = len(limits.replica.bodies) * USAGE["total_tokens"]
        assert used <= limit and statuses[200] == len(limits.replica.bodies)
        assert used > 0.6 * limit, (
            "the worst case is reserved, and what was not used can be spent again"
        )
        assert statuses[200] + statuses[429] == REQUESTS
        limits.clock.minute += 1
        for world in limits.gateways:
            for account in world.gateway.meter.accounts.values():  # type: ignore[attr-defined]
                account.purse.until_ns = 0  # the minute that began with the test is over
        await storm(limits, REQUESTS)
        assert used < len(limits.replica.bodies) * USAGE["total_tokens"] <= 2 * limit


async def test_a_limit_of_requests_is_overrun_by_none(tmp_path: Path) -> None:
    async with limits_world(tmp_path) as limits:
        await limits.limit(requests_per_minute=37)
        statuses = await storm(limits, 400)
        assert len(limits.replica.bodies) == statuses[200] <= 37 and statuses[200] >= 30
        assert statuses[429] == 400 - statuses[200]


async def test_an_answer_tells_the_limits_and_a_refusal_when_to_come_again(tmp_path: Path) -> None:
    async with limits_world(tmp_path) as limits:
        await limits.limit(requests_per_minute=3, tokens_per_minute=10_000)
        ada = limits.gateways[0]
        for left in (2, 1, 0):
            async with ada.session.post(ada.url + CHAT, json=MODEL) as response:
                assert response.status == 200 and response.headers[
                    "x-ratelimit-remaining-requests"
                ] == str(left)
                assert (
                    response.headers["x-ratelimit-limit-tokens"] == "10000"
                    and "x-ratelimit-reset-tokens" in response.headers
                )
        async with ada.session.post(ada.url + CHAT, json=MODEL) as response:
            error = await error_of(response, 429)
            assert (
                error["type"] == "requests"
                and error["message"]
                == "tenant physics may send 3 requests a minute, and has sent them"
            )
            assert 1 <= int(response.headers["retry-after"]) <= 60


async def test_a_request_larger_than_the_limit_is_refused_with_that_reason(tmp_path: Path) -> None:
    async with limits_world(tmp_path) as limits:
        await limits.limit(tokens_per_minute=40)
        ada = limits.gateways[0]
        async with ada.session.post(ada.url + CHAT, json=MODEL) as response:
            assert "this request alone may need" in (await error_of(response, 400))["message"]


async def test_without_quota_limited_tenants_are_refused_and_others_are_not(tmp_path: Path) -> None:
    async with limits_world(tmp_path) as limits:
        await limits.limit(tokens_per_minute=10_000)
        await limits.quota.kill()
        ada = limits.gateways[0]
        async with ada.session.post(ada.url + CHAT, json=MODEL) as response:
            assert (await error_of(response, 503))["code"] == "limits_unavailable"
        await limits.admin.ask("POST", CHAT, json={"model": "d"})
        await limits.quota.start()


async def test_a_restarted_quota_goes_on_with_the_minute_and_frees_nothing_of_it(
    tmp_path: Path,
) -> None:
    async with limits_world(tmp_path) as limits:
        limit = 400 * USAGE["total_tokens"]
        await limits.limit(tokens_per_minute=limit)
        await storm(limits, 100)
        used = len(limits.replica.bodies)
        await limits.quota.kill()
        await limits.quota.start()
        await storm(limits, REQUESTS)
        served = len(limits.replica.bodies)
        assert used < served and served * USAGE["total_tokens"] <= limit
        assert served * USAGE["total_tokens"] > limit // 2, "a restart costs a part of the minute"


async def test_a_quota_that_a_later_one_has_overtaken_gives_nothing(tmp_path: Path) -> None:
    async with limits_world(tmp_path) as limits:
        await limits.limit(requests_per_minute=40)
        later = encode(Page(epoch=1 << 40, window=0, marks=()))
        limits.quota.pages.values = dict.fromkeys(range(PAGES), (later, 7))
        assert set(await storm(limits, 100)) == {503}
        assert limits.replica.bodies == []


async def test_requests_of_a_tenant_without_limits_do_not_ask_quota(tmp_path: Path) -> None:
    async with limits_world(tmp_path) as limits:
        await limits.quota.kill()
        assert await storm(limits, 50) == {200: 50}
        await limits.quota.start()


async def test_a_wall_clock_that_is_set_back_makes_no_minute_longer(tmp_path: Path) -> None:
    """Neither in the process itself nor in one that takes over from it."""
    async with limits_world(tmp_path) as limits:
        await limits.limit(requests_per_minute=8)
        ask = SliceAsk(TenantId("physics"), 8, 0)
        assert (await limits.quota.reserve(ask)).given
        limits.clock.minute -= 10
        before = await limits.quota.reserve(ask)
        await limits.quota.kill()
        await limits.quota.start()
        for answer in (before, await limits.quota.reserve(ask)):
            assert not answer.given and answer.left_ms <= 60_000


class Unreadable(MemoryPages):
    """A store that does not answer, as with servers that do not let quota read it."""

    async def get(self, number: int) -> tuple[bytes, int]:
        raise Unavailable(f"page {number} does not answer")


async def test_a_quota_that_cannot_read_its_store_gives_from_the_next_minute_on(
    tmp_path: Path,
) -> None:
    async with limits_world(tmp_path) as limits:
        await limits.quota.kill()
        limits.quota.pages = Unreadable()
        await limits.quota.start()
        await limits.limit(requests_per_minute=40)
        assert set(await storm(limits, 10)) == {503}
        limits.clock.minute += 1
        async with asyncio.timeout(20):
            while not (await storm(limits, 10))[200]:
                await asyncio.sleep(0.1)

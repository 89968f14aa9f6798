"""No request is refused while its minute has room, whatever the bus delays, also at the turn of a
minute; and no minute is spent twice.

The tests run in virtual time over quota's own ledger. tests/integration/test_rate_limits.py runs
real gateways.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from libs.common import subjects
from libs.common.messages import rate_messages
from libs.common.messages.rate_messages import Slice
from libs.common.model import TenantId
from libs.common.process.clock import SystemClock
from libs.common.state.cluster import Cluster, Tenant
from libs.common.transport.bus_memory import MemoryBus
from services.api_gateway.access.roles import Principal
from services.api_gateway.openai.errors import ApiError, RateLimited
from services.api_gateway.openai.limited import Limited
from services.quota.rates import WINDOW_NS, Rates
from tests.sim.clock import EPOCH_NS, SimClock
from tests.sim.loop import VirtualLoop, run

ADA = Principal("k", "physics", "ada", "member")
T = TenantId("physics")
# Virtual seconds from the start of a run to two turns of minutes.
FIRST_TURN_S = (WINDOW_NS - EPOCH_NS % WINDOW_NS) / 1e9
TURN_S = FIRST_TURN_S + WINDOW_NS / 1e9
CLIENTS = 32


class World:
    """Quota, and gateways whose questions take `delay()` seconds each way.

    `spent` is what was used, by the minute when it was.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        tenant: Tenant,
        delay: Callable[[], float],
        drift: Random | None = None,
    ) -> None:
        self.loop, self.delay = loop, delay
        rates = [drift.uniform(0.999, 1.001) if drift is not None else 1.0 for _ in range(2)]
        self.cluster, self.bus, self.wall = Cluster(), MemoryBus(), SimClock(loop)
        self.cluster.tenants[T] = tenant
        self.ledger = Rates(0)
        self.answers: list[Slice] = []
        self.spent: Counter[int] = Counter()
        self.gateways = [
            Limited(lambda: self.cluster, self, SimClock(loop, rate=rate), 5.0) for rate in rates
        ]  # type: ignore[arg-type]

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        await asyncio.sleep(self.delay())
        answer = self.ledger.reserve(
            self.cluster.tenants[T], rate_messages.decode_ask(data), self.wall.wall_ns()
        )
        self.answers.append(answer)
        await asyncio.sleep(self.delay())
        return rate_messages.encode(answer)

    async def publish(self, subject: str, data: bytes) -> None:
        assert subject == subjects.ask_quota("return")
        await asyncio.sleep(self.delay())
        self.ledger.take_back(rate_messages.decode_return(data), self.wall.wall_ns())

    async def use(
        self, gateway: Limited, tokens: int, takes_s: float = 0.0, used: int | None = None
    ) -> None:
        """One request."""
        grant = await gateway.reserve(ADA, "m", tokens)
        self.spent[self.wall.wall_ns() // WINDOW_NS] += tokens if used is None else used
        await asyncio.sleep(takes_s)
        gateway.settle(grant, used)


def in_virtual_time(test: Callable[[VirtualLoop], Awaitable[None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await test(loop)

    run(main())


async def storm(world: World, chance: Random, tokens_max: int, until_s: float) -> list[ApiError]:
    """Many clients at both gateways; the refusals."""
    refusals: list[ApiError] = []

    async def client(gateway: Limited) -> None:
        while world.loop.now < until_s:
            tokens = chance.randrange(1, tokens_max)
            try:
                await world.use(gateway, tokens, chance.random() * 0.02, chance.randrange(tokens))
            except ApiError as error:
                refusals.append(error)
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.random() * 0.01)

    await asyncio.gather(*(client(world.gateways[number % 2]) for number in range(CLIENTS)))
    return refusals


@pytest.mark.parametrize("seed", range(20))
def test_no_request_is_refused_at_the_turn_of_a_minute_while_there_is_room(seed: int) -> None:
    async def test(loop: VirtualLoop) -> None:
        chance = Random(seed)
        slow_s = chance.choice((0.001, 0.01, 0.1))
        world = World(
            loop,
            Tenant(T, tokens_per_minute=50_000_000),
            lambda: chance.random() ** 4 * slow_s,
            drift=chance,
        )
        await asyncio.sleep(FIRST_TURN_S + 1.0)
        await asyncio.gather(*(world.use(gateway, 1) for gateway in world.gateways))
        await asyncio.sleep(TURN_S - loop.now - 0.5)
        assert await storm(world, chance, 4_000, TURN_S + 0.5) == []
        assert len(world.spent) == 2

    in_virtual_time(test)


@pytest.mark.parametrize("seed", range(20))
def test_no_minute_is_spent_twice_however_late_quota_answers(seed: int) -> None:
    async def test(loop: VirtualLoop) -> None:
        chance = Random(seed)
        world = World(loop, Tenant(T, tokens_per_minute=20_000), lambda: chance.random() * 0.05)
        await asyncio.sleep(TURN_S - 1.0)
        assert all(
            isinstance(refusal, RateLimited)
            for refusal in await storm(world, chance, 400, TURN_S + 1.0)
        )
        assert len(world.spent) == 2 and all(
            0.8 * 20_000 < spent <= 20_000 for spent in world.spent.values()
        )

    in_virtual_time(test)


def test_request_for_missing_tokens_keeps_the_tokens_already_granted() -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, Tenant(T, tokens_per_minute=320), lambda: 0.01)
        gateway = world.gateways[0]
        await world.use(gateway, 80, used=40)

        async def small(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await world.use(gateway, 5)

        await asyncio.gather(
            world.use(gateway, 50), *(small(number / 1_000) for number in range(1, 40))
        )
        assert [answer.tokens for answer in world.answers[:2]] == [80, 10], "40 of 80 were not used"

    in_virtual_time(test)


async def test_gateway_without_a_usable_grant_answers_limits_unavailable() -> None:
    """As if each answer took longer than what is left: asked twice, and not for ever."""
    cluster, bus, asked = Cluster(), MemoryBus(), []

    async def answer(subject: str, data: bytes) -> bytes:
        asked.append(data)
        return rate_messages.encode(
            Slice(
                window=1,
                left_ms=0,
                given=True,
                requests=0,
                tokens=500,
                requests_limit=0,
                tokens_limit=1_000,
            )
        )

    await bus.subscribe(subjects.ask_quota("reserve"), answer)
    cluster.tenants[T] = Tenant(T, tokens_per_minute=1_000)
    with pytest.raises(ApiError) as refused:
        await Limited(lambda: cluster, bus, SystemClock(), 5.0).reserve(ADA, "m", 50)
    assert (refused.value.status, refused.value.code, len(asked)) == (503, "limits_unavailable", 2)

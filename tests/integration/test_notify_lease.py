"""One gateway sends at a time, by a lease that needs no common clock."""

from libs.common.errors import Unavailable
from libs.common.process.clock import SystemClock
from libs.common.transport.revisions import Kept, MemoryRevisions
from services.api_gateway.notify.lease import SendingLease

S = 1_000_000_000


class Shifted(SystemClock):
    """A clock that the test moves."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_ns = int(now_s * S)

    def boot_ns(self) -> int:
        return self.now_ns


class Broken(MemoryRevisions):
    """A store that stores and does not answer, when told so."""

    is_broken = False

    async def put(self, key: str, data: bytes, revision: int) -> int:
        stored = await super().put(key, data, revision)
        if self.is_broken:
            raise Unavailable("no answer")
        return stored

    async def get(self, key: str) -> Kept:
        return await super().get(key)


async def test_the_first_takes_it_and_a_follower_waits_for_its_whole_time() -> None:
    store, here, there = MemoryRevisions(), Shifted(), Shifted(5_000.0)
    first, second = SendingLease(store, here, "a", 30), SendingLease(store, there, "b", 30)
    await first.look()
    await second.look()
    assert first.holds() and first.holds(29.9) and not second.holds()
    here.now_ns += 30 * S
    there.now_ns += 29 * S
    await second.look()
    assert not first.holds() and not second.holds()
    there.now_ns += 1 * S
    await second.look()
    assert second.holds()
    await first.look()
    assert not first.holds()


async def test_a_renewed_lease_is_not_taken() -> None:
    store, clock = MemoryRevisions(), Shifted()
    first, second = SendingLease(store, clock, "a", 30), SendingLease(store, clock, "b", 30)
    for _ in range(20):
        await first.look()
        await second.look()
        clock.now_ns += 10 * S
    assert first.holds() and not second.holds() and first.taken == 1


async def test_a_released_lease_is_taken_at_once() -> None:
    store, clock = MemoryRevisions(), Shifted()
    first, second = SendingLease(store, clock, "a", 30), SendingLease(store, clock, "b", 30)
    await first.look()
    await first.release()
    await second.look()
    assert not first.holds() and second.holds()


async def test_a_lost_answer_gives_no_time_and_the_holder_goes_on() -> None:
    store, clock = Broken(), Shifted()
    lease = SendingLease(store, clock, "a", 30)
    await lease.look()
    clock.now_ns += 10 * S
    store.is_broken = True
    await lease.look()
    assert lease.holds(19.9) and not lease.holds(20.1)
    store.is_broken = False
    await lease.look()
    assert lease.holds(29.9) and lease.taken == 1


class Slow(MemoryRevisions):
    """A store that takes its time to answer; meanwhile another gateway writes."""

    def __init__(self, clock: Shifted) -> None:
        super().__init__()
        self.clock = clock
        self.holder: SendingLease | None = None

    async def get(self, key: str) -> Kept:
        holder, self.holder = self.holder, None
        if holder is not None:
            self.clock.now_ns += 10 * S
            await holder.look()
        return await super().get(key)


async def test_a_lease_that_was_renewed_during_a_slow_look_is_waited_for_from_the_answer() -> None:
    clock = Shifted()
    store = Slow(clock)
    first, second = SendingLease(store, clock, "a", 30), SendingLease(store, clock, "b", 30)
    await first.look()
    store.holder = first
    await second.look()
    clock.now_ns += 25 * S
    await second.look()
    assert first.holds() and not second.holds()

"""A tenant's work beyond its places waits; that of another tenant does not."""

import asyncio

from services.api_gateway.access.slots import MOST, OUTPUT, SCAN, Slots


async def test_work_beyond_a_tenants_places_waits_and_others_do_not() -> None:
    slots, begun, end = Slots(), list[str](), asyncio.Event()

    async def work(tenant: str) -> None:
        async with slots.of(OUTPUT, tenant):
            begun.append(tenant)
            await end.wait()

    tasks = [asyncio.create_task(work(tenant)) for tenant in ["a"] * (MOST[OUTPUT] + 2) + ["b"]]
    for _ in range(5):
        await asyncio.sleep(0)
    assert begun == ["a"] * MOST[OUTPUT] + ["b"]
    end.set()
    await asyncio.gather(*tasks)
    assert len(begun) == MOST[OUTPUT] + 3 and not slots._of and not slots._users


async def test_work_that_is_cancelled_while_it_waits_leaves_its_place_to_others() -> None:
    slots = Slots()
    async with slots.of(SCAN, "a"):
        waiting = asyncio.create_task(slots.of(SCAN, "a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(10), slots.of(SCAN, "a"):
        pass
    assert not slots._of

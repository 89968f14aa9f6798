"""Scans of one tenant take turns; those of another do not wait for them."""

import asyncio
import gc

from services.api_gateway.access.scan_turns import TURNS_OF_TENANT, ScanTurns


async def test_scans_of_one_tenant_wait_for_each_other_and_not_those_of_another() -> None:
    turns, running, most, end = ScanTurns(), [0], [0], asyncio.Event()

    async def scan(tenant: str) -> None:
        async with turns.of(tenant):
            running[0] += 1
            most[0] = max(most[0], running[0])
            await end.wait()
            running[0] -= 1

    greedy = [asyncio.create_task(scan("greedy")) for _ in range(10)]
    quiet = asyncio.create_task(scan("quiet"))
    await asyncio.sleep(0)
    assert running[0] == TURNS_OF_TENANT + 1
    end.set()
    await asyncio.gather(*greedy, quiet)
    assert most[0] == TURNS_OF_TENANT + 1 and running[0] == 0
    del greedy, quiet
    gc.collect()
    assert not turns._of_tenant

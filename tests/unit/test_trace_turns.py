"""Tenants take turns with the alignments of a node."""

import asyncio

from services.node_agent.tracing.turns import Turns


async def test_a_tenant_with_many_alignments_delays_another_by_one() -> None:
    turns, order = Turns(), list[str]()

    async def align(tenant: str) -> None:
        async with turns.of(tenant):
            order.append(tenant)
            await asyncio.sleep(0)

    await asyncio.gather(*map(align, ("red", "red", "red", "red", "blue")))
    assert sorted(order) == ["blue", "red", "red", "red", "red"]
    assert order.index("blue") == 1
    assert not turns.tenants

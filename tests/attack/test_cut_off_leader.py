"""A leader whose first connection is cut off from its second one gives no signs of life.

Two servers without a route between them stand for a server that is cut off.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from libs.common.leadership.leading import CUT_OFF_TERMS, RENEWALS_PER_TERM, Leading, ask_first
from libs.common.process.clock import SystemClock
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import Client, connect
from libs.embedded import servers

TERM_MS = 600
CUT_OFF_S = CUT_OFF_TERMS * TERM_MS / 1_000
LIMIT_S = 20.0


async def leader(service: str, first: Client, second: Client) -> tuple[Leading, asyncio.Task[None]]:
    leading = Leading(service, SystemClock(), TERM_MS)
    leading.begin(1, leading.clock.boot_ns())
    await leading.listen(NatsBus(first))
    await first.flush()
    return leading, asyncio.create_task(ask_first(leading, NatsBus(second)))


def keep(leading: Leading) -> bool:
    """Beat and renew, as with a second connection that works; return whether it is useful."""
    leading.beat()
    leading.renewed_at(leading.clock.boot_ns())
    return leading.is_useful()


@pytest.mark.parametrize("service", ["scheduler", "quota", "audit"])
async def test_leader_that_is_cut_off_at_its_first_connection_only_is_of_no_use(
    tmp_path: Path, service: str
) -> None:
    groups = [servers.start_servers(tmp_path / "a")]
    shutil.copytree(tmp_path / "a" / "keys", tmp_path / "b" / "keys")
    groups.append(servers.start_servers(tmp_path / "b"))
    seed = groups[0].seed(service)
    here, too, there = [await connect(groups[number].urls, service, seed) for number in (0, 0, 1)]
    whole, asking = await leader(service, here, too)
    cut_off, vainly = await leader(service, here, there)
    try:
        async with asyncio.timeout(LIMIT_S):
            while keep(cut_off):
                await asyncio.sleep(TERM_MS / 1_000 / RENEWALS_PER_TERM)
        began = whole.reached
        async with asyncio.timeout(LIMIT_S):
            while not (keep(whole) and whole.reached > began + CUT_OFF_S * 1e9):
                await asyncio.sleep(0.05)
        assert not keep(cut_off)
    finally:
        for task in (asking, vainly):
            task.cancel()
        for client in (here, too, there):
            await client.close()
        for group in groups:
            group.stop()

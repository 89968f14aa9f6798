"""An agent that hears of another life of the cluster starts again, and one that is new does not."""

import asyncio

import pytest

from libs.common.errors import Unavailable
from libs.common.messages import RESTORED, Lease
from libs.common.model import NodeId
from libs.common.process.clock import SystemClock
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.writer import Writer
from services.node_agent.core import state as s
from services.node_agent.heartbeats import Heartbeats

NODE = NodeId("a")


def heartbeats(registered: int | None) -> Heartbeats:
    clock = SystemClock()
    found = Heartbeats(
        NODE,
        interval_ms=1_000,
        bus=MemoryBus(),
        clock=clock,
        writer=Writer(MemoryLog(MemoryStream()), clock, "facts.node.a", seen=lambda: 0),
        peers=None,
        state=lambda: s.begin(NODE, 1, ()),
        tell=lambda seen: None,
        spawn=lambda work: work.close(),
    )
    future = asyncio.get_running_loop().create_future()
    if registered is not None:
        future.set_result(registered)
    found.registered_as(future)
    return found


def lease(life: int, verdict: str = "ok", seq: int = 0, restore_id: str = "") -> Lease:
    return Lease(1, verdict, 0, 0, 1_000, "", seq, life=life, restore_id=restore_id)


async def test_an_agent_of_an_earlier_life_starts_again() -> None:
    found = heartbeats(10)
    found._check_life(lease(0))
    with pytest.raises(Unavailable, match="was restored from a backup"):
        found._check_life(lease(1))


@pytest.mark.parametrize("other", [lease(1, restore_id="y"), lease(2, restore_id="x"), lease(0)])
async def test_an_agent_of_another_restore_starts_again(other: Lease) -> None:
    """The same backup restored twice, or the lost cluster that came back."""
    found = heartbeats(10)
    found._check_life(lease(1, restore_id="x"))
    found._check_life(lease(1, restore_id="x"))
    with pytest.raises(Unavailable, match="was restored from a backup"):
        found._check_life(other)


async def test_a_scheduler_of_an_earlier_release_begins_no_other_life() -> None:
    """It leads during an upgrade or after a rollback, and its leases do not name the restore."""
    found = heartbeats(10)
    for _ in range(2):
        found._check_life(lease(1))
        found._check_life(lease(1, restore_id="x"))
    found._check_life(lease(1))
    with pytest.raises(Unavailable):
        found._check_life(lease(1, restore_id="y"))


async def test_a_new_agent_takes_the_life_that_it_finds() -> None:
    found = heartbeats(None)
    found._check_life(lease(3, RESTORED))
    found._check_life(lease(3))
    assert found.life == (3, "")


async def test_a_new_agent_waits_while_its_registration_is_not_read_yet() -> None:
    found = heartbeats(10)
    found._check_life(lease(3, RESTORED, seq=9))
    assert found.life == (3, "")


async def test_an_agent_that_the_new_life_does_not_know_starts_again() -> None:
    found = heartbeats(10)
    with pytest.raises(Unavailable):
        found._check_life(lease(3, RESTORED, seq=10))

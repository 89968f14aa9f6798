"""The services of which one process leads, as processes of a simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from libs.common.leadership.leading import give_signs
from services.quota.service import Quota
from services.scheduler.service import Scheduler
from tests.sim.settings import SETTINGS, settings_of
from tests.sim.slot import SimLeadership

if TYPE_CHECKING:
    from tests.sim.slot import Slot
    from tests.sim.world import World

# The names of the quotas. The planned faults of `quota` hit the one that leads.
QUOTAS: Final = ("quota", "quota-b")
# A page of a node's desired state holds two or three simulated jobs.
PAGE_BYTES: Final = 1_000


async def run_scheduler(slot: Slot) -> None:
    """Run one scheduler."""
    world, bus, leadership = slot.world, slot.open_bus(), SimLeadership(slot)
    scheduler = Scheduler(
        log=slot.open_log(),
        bus=bus,
        clock=slot.clock,
        settings=settings_of(world.plan, slot.name),
        signs=lambda leading: give_signs(leading, bus, leadership),
        store=world.snapshots,
    )
    scheduler.desired_pages.page_bytes = PAGE_BYTES
    world.decided.note(scheduler.writer)
    slot.service = scheduler
    await scheduler.run(slot.stop)


async def run_quota(slot: Slot) -> None:
    """Run one quota."""
    bus = slot.open_bus()
    slot.service = Quota(
        log=slot.open_log(),
        bus=bus,
        clock=slot.clock,
        settings=msgspec.structs.replace(SETTINGS, instance=slot.name),
        signs=lambda leading: give_signs(leading, bus),
        store=slot.world.snapshots,
        pages=slot.world.rates,
    )
    await slot.service.run(slot.stop)


def quotas(world: World) -> list[tuple[str, Quota]]:
    """Return the quota of the current term, if it is alive."""
    found = [(name, world.slots[name]) for name in QUOTAS]
    return [
        (name, slot.service)
        for name, slot in found
        if slot.process.alive
        and slot.service is not None
        and slot.service.writer.epoch == world.quota_epoch > 0
    ]


def struck(world: World, target: str) -> Slot:
    """Return the process that a fault of `target` hits."""
    if target == QUOTAS[0]:
        target = next((name for name, _ in quotas(world)), target)
    return world.slots[target]

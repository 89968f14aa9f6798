"""Operators of one run who take devices out of service for a while and put them back.

They have their own dice, so that runs without them stay as they were. They read the log and repeat
a request until the log has it.
"""

import random
from typing import TYPE_CHECKING, Final

from libs.common.facts import GpuServiceSet
from libs.common.life import gpu_life
from libs.common.model import GpuId

if TYPE_CHECKING:
    from tests.sim.world import World

PART_OF_SEEDS: Final = 0.5
OUT_MAX: Final = 6
WITHIN_S: Final = 12.0
AWAY: Final = tuple(word for word in gpu_life.SERVICES if word != gpu_life.ONLINE)
LOOK_EVERY_S: Final = 0.5


def begin(world: "World") -> None:
    dice = random.Random(f"service {world.plan.seed}")
    if dice.random() >= PART_OF_SEEDS:
        return
    for _ in range(dice.randint(1, OUT_MAX)):
        machine, at_s = dice.choice(list(world.machines.values())), dice.uniform(0.2, WITHIN_S)
        uuid = dice.choice(machine.gpus).uuid
        world.loop.call_at(
            at_s, want, world, uuid, dice.choice(AWAY), at_s + dice.uniform(0.3, 6.0)
        )


def want(world: "World", uuid: GpuId, away: str, until_s: float) -> None:
    """Away until then, and online for good afterwards: a word may come late, from a gateway that is
    gone.
    """
    wish = away if world.loop.now < until_s else gpu_life.ONLINE
    view, gateway = world.reference.gpus.get(uuid), world.slots["gateway"]
    if (
        view is not None
        and view.service != wish
        and gateway.process.alive
        and gateway.service is not None
    ):
        gateway.process.deliver(
            gateway.service.say, GpuServiceSet(uuid=uuid, service=wish, user="operator")
        )
    world.loop.call_later(LOOK_EVERY_S, want, world, uuid, away, until_s)

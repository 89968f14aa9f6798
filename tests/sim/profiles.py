"""An operator of a simulated cluster, who changes the lease profile during faults."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from libs.common.facts import LeaseProfileSet
from libs.common.timing import DEFAULT, FAST, of_profile

if TYPE_CHECKING:
    from tests.sim.world import World

PROFILE: Final = "lease_profile"
# The part of the runs in which the profile changes.
PROFILE_PART: Final = 0.2
AGAIN_S: Final = 0.5


def planned(dice: random.Random, storm_s: float) -> list[tuple[float, str, str, float]]:
    if dice.random() >= PROFILE_PART:
        return []
    times = sorted(dice.uniform(1.0, storm_s) for _ in range(dice.choice((1, 2, 3))))
    return [
        (at_s, PROFILE, DEFAULT if number % 2 else FAST, 0.0) for number, at_s in enumerate(times)
    ]


def choose(world: World, profile: str) -> None:
    """Choose a profile; repeat if the fact was lost with its gateway."""
    cluster, gateway = world.reference, world.slots["gateway"]
    if cluster.profile == profile:
        return
    if cluster.configured and gateway.process.alive and gateway.service is not None:
        fact = LeaseProfileSet(
            profile=profile, timing=of_profile(profile, cluster.configured_timing), user="operator"
        )
        gateway.process.deliver(gateway.service.say, fact)
    world.loop.call_later(AGAIN_S, choose, world, profile)

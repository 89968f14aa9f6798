"""Two faults that leases are made for, beside the lost and late messages of `weather.py`.

- The cluster splits in two. The leading scheduler and some nodes are on the side without a quorum
  of the log's servers. They reach each other, and nothing on the other side.
- An agent freezes when it has received the answer to a heartbeat, and handles it seconds later, as
  on a host that swaps. The network of its host is cut off meanwhile.

`deep.py` draws both. Tests: tests/sim/test_partitions.py.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tests.sim.faults import STORM_S, Blow

if TYPE_CHECKING:
    from tests.sim.world import World

PARTITION: Final = "partition"
FREEZES: Final = "agent_freezes"
KINDS: Final = (PARTITION, FREEZES)
# A partition lasts for less or more than a term, the leases of the one before it and a margin.
PARTITION_S: Final = (2.0, 8.0, 16.0, 22.0)
# It begins early, because the end of the storm ends it.
BEGINS_MAX_S: Final = 10.0
# An agent freezes for less or more than a margin, but wakes up before the lease ends. Its host is
# cut off for so much longer.
FREEZES_S: Final = (1.0, 3.0, 4.8)
CUT_OFF_S: Final = (1.0, 9.0, 14.0)


def blow(dice: random.Random, kind: str, nodes: int) -> Blow:
    """Return one fault of this file."""
    if kind == PARTITION:
        beside = dice.sample(range(nodes), dice.choice((1, dice.randint(1, nodes))))
        target = ",".join(f"n{number}" for number in sorted(beside))
        return Blow(dice.uniform(2.0, BEGINS_MAX_S), kind, target, dice.choice(PARTITION_S))
    at_s = dice.uniform(3.0, STORM_S - 2.0)
    target = f"n{dice.randrange(nodes)}>{dice.choice(CUT_OFF_S)}"
    return Blow(at_s, kind, target, dice.choice(FREEZES_S))


def strike(world: World, blow: Blow) -> None:
    """Carry out a fault of this file."""
    if blow.kind == FREEZES:
        node, _, cut_off_s = blow.target.partition(">")
        world.network.freezes[node] = blow.length_s, float(cut_off_s)
        return
    until_s = world.loop.now + blow.length_s
    nodes = blow.target.split(",")
    leaders = [name for name, _ in world.leading()]
    for place in (*leaders, *nodes):
        world.network.minority[place] = until_s
    for slot in world.slots.values():
        if slot.log is not None and slot.place in (*leaders, *nodes):
            slot.log.apart_until = until_s


def clear(world: World) -> None:
    """End the faults of this file."""
    world.network.minority.clear()
    world.network.freezes.clear()
    for slot in world.slots.values():
        if slot.log is not None:
            slot.log.apart_until = 0.0

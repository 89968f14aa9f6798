"""Operators who set the power limit of devices, take it off, ask for resets, and turn MIG mode off
and on again, in one run.

By dice of their own, so that the runs without them stay as they were. They see the log, and ask
again until what they want stands there.
"""

import random
from typing import TYPE_CHECKING, Final

from libs.common.devices import device_controls as c
from libs.common.facts import GpuControlRequested
from libs.common.model import GpuId
from libs.common.state.cluster import Cluster, Node, node_gpus

if TYPE_CHECKING:
    from tests.sim.world import World

PART_OF_SEEDS: Final = 0.5
WISHES_MAX: Final = 8
MODES_MAX: Final = 3
WITHIN_S: Final = 12.0
WISHES: Final = ((c.POWER, "300"), (c.POWER, "500"), (c.POWER, ""), (c.RESET, ""))
# A card is out of MIG mode so long, if it can be had free by then: in the end there is none on
# which an instance could not be.
UNCUT_S: Final = 4.0
LOOK_EVERY_S: Final = 0.5


def begin(world: "World") -> None:
    dice = random.Random(f"controls {world.plan.seed}")
    if dice.random() >= PART_OF_SEEDS:
        return
    for _ in range(dice.randint(1, WISHES_MAX)):
        machine, at_s = dice.choice(list(world.machines.values())), dice.uniform(0.2, WITHIN_S)
        world.loop.call_at(
            at_s, want, world, dice.choice(machine.gpus).uuid, *dice.choice(WISHES), -1
        )
    for _ in range(dice.randint(0, MODES_MAX)):
        machine, at_s = dice.choice(list(world.machines.values())), dice.uniform(0.2, WITHIN_S)
        uuid = dice.choice(machine.gpus).uuid
        world.loop.call_at(at_s, want, world, uuid, c.MIG, "off", -1)
        world.loop.call_at(at_s + UNCUT_S, want, world, uuid, c.MIG, "on", -1)


def want(world: "World", uuid: GpuId, control: str, value: str, since: int) -> None:
    """Said until it stands there, or somebody has said something else since."""
    since = world.reference.seq if since < 0 else since
    view, gateway = world.reference.gpus.get(uuid), world.slots["gateway"]
    known = view.controls.get(control) if view is not None else None
    if known is not None and known.request > since:
        return
    if view is not None and gateway.process.alive and gateway.service is not None:
        gateway.process.deliver(
            gateway.service.say,
            GpuControlRequested(uuid=uuid, control=control, value=value, user="operator"),
        )
    world.loop.call_later(LOOK_EVERY_S, want, world, uuid, control, value, since)


def unanswered(cluster: Cluster, capped: dict[str, dict[GpuId, int]]) -> list[str]:
    """On nodes that can: wishes of which nothing was said, and limits that are not in force."""
    found = []
    for node in filter(_hears, cluster.nodes.values()):
        for view in node_gpus(cluster, node):
            found += [
                f"{view.gpu.uuid} {name}"
                for name, wish in view.controls.items()
                if wish.request and not wish.outcome
            ]
            limit = int(view.controls[c.POWER].value or 0) * c.MW if c.POWER in view.controls else 0
            told = capped.get(node.node_id, {}).get(view.gpu.uuid, 0)
            found += [f"{view.gpu.uuid} has {told} mW and not {limit}"] if told != limit else []
    return found


def _hears(node: Node) -> bool:
    return node.usable and node.takes_controls

"""Operators of one run who set and clear power limits, ask for resets, and turn MIG mode off and
on.

They have their own dice, so that runs without them stay as they were. They read the log and repeat
a request until the log has it.
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
# Time for which a card is out of MIG mode, if it is free by then. At the end every card can hold an
# instance again.
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
    """Repeat a request until the log has it or a later request for the same control."""
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
    """Return the requests without an outcome and the limits not in force, on nodes that take
    controls.
    """
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

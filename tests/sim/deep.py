"""Deeper plans, for nights: more kinds of fault, and in each run most of them off (swarm testing).

A run with every fault at once hides what two of them do alone. So each seed draws which kinds it
has, and how many. The plan begins with that of `faults.plan`, takes away the kinds that are off,
and adds the kinds of this file:

- the disk of the log's servers is full: appends fail, though some are stored, and no object is;
- messages pass between two hosts in one direction only;
- the driver of a node's devices takes seconds to answer;
- a process goes on with a later version, whose facts have fields and kinds that no other knows;
- the cluster splits in two, or an agent freezes with an answer that it has received
  (`partitions.py`).

In some of the runs the gateway follows the log and stores snapshots (`gateways.py`).

After the last fault a run must live on (`checkers/lives_after_the_storm.py`). Tests:
tests/sim/test_deep.py.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec

from tests.sim import faults, partitions
from tests.sim.bus import CONTROL
from tests.sim.faults import STORM_S, Blow, Plan

if TYPE_CHECKING:
    from tests.sim.world import World

DISK_FULL: Final = "disk_full"
ONE_WAY: Final = "one_way"
SLOW_DRIVER: Final = "slow_driver"
LATER_VERSION: Final = "later_version"
KINDS: Final = (DISK_FULL, ONE_WAY, SLOW_DRIVER, LATER_VERSION, *partitions.KINDS)
RATES: Final = (*faults.RATES, "kill_in_purge", "cancellation_lost")
# The parts of the kinds that a run has.
PARTS: Final = (0.15, 0.4, 0.7)
BLOWS_MAX: Final = 3
# Commits after which a gateway that follows the log stores a snapshot.
SNAPSHOTS_EVERY: Final = (5, 20, 100)
UPGRADED: Final = ("scheduler-a", "scheduler-b", "quota", "gateway")


def plan(seed: int) -> Plan:
    """Return the deeper plan of a seed."""
    dice = random.Random(f"deep {seed}")
    part = dice.choice(PARTS)

    def is_on(name: str) -> bool:
        """Return whether this run has a kind; what other kinds there are does not change it."""
        return random.Random(f"deep {seed} {name}").random() < part

    base = faults.plan(seed)
    off = {name: 0.0 for name in RATES if not is_on(name)}
    rates = msgspec.structs.replace(base.rates, **off)
    kept = [
        blow for blow in base.blows if is_on(blow.kind) and (not blow.lasts or is_on("lasting"))
    ]
    more = [
        _blow(dice, kind, len(base.nodes))
        for kind in KINDS
        for _ in range(dice.randint(1, BLOWS_MAX))
        if is_on(kind)
    ]
    trim = base.trim if is_on("trim") else None
    if trim is None:
        rates.kill_in_purge = 0.0
        kept = [blow for blow in kept if blow.target != "trimmer"]
    return msgspec.structs.replace(
        base,
        rates=rates,
        blows=tuple(sorted((*kept, *more))),
        skew_max_s=base.skew_max_s if is_on("skew") else 0.0,
        trim=trim,
        snapshot_every=dice.choice(SNAPSHOTS_EVERY) if is_on("snapshots") else 0,
    )


def _blow(dice: random.Random, kind: str, nodes: int) -> Blow:
    if kind in partitions.KINDS:
        return partitions.blow(dice, kind, nodes)
    at_s = dice.uniform(1.0, STORM_S - 2.0)
    node = f"n{dice.randrange(nodes)}"
    match kind:
        case "disk_full":
            return Blow(at_s, kind, "log", dice.choice((0.5, 3.0, 8.0)))
        case "one_way":
            peer = f"n{(int(node[1:]) + dice.randrange(1, nodes)) % nodes}"
            other = dice.choice((CONTROL, CONTROL, peer))
            pair = (node, other) if dice.random() < 0.5 else (other, node)
            return Blow(at_s, kind, ">".join(pair), dice.choice((1.0, 5.0, 9.0, 15.0)))
        case "slow_driver":
            return Blow(at_s, kind, node, dice.choice((2.0, 8.0, 20.0)))
        case _:
            who = dice.choice((*UPGRADED, f"agent-{node}", f"agent-{node}"))
            return Blow(at_s, kind, who, dice.choice((0.05, 1.0)))


def strike(world: World, blow: Blow) -> None:
    """Carry out a fault of this file."""
    until_s = world.loop.now + blow.length_s
    match blow.kind:
        case "disk_full":
            world.stream.full_until = until_s
        case "one_way":
            sender, _, listener = blow.target.partition(">")
            world.network.one_way[sender, listener] = until_s
        case "slow_driver":
            world.machines[blow.target].slow_until = until_s
        case kind if kind in partitions.KINDS:
            partitions.strike(world, blow)
        case _:
            slot = world.slots[blow.target]
            slot.is_later_version = not slot.is_later_version
            slot.strike(blow.length_s)


def clear(world: World) -> None:
    """End the faults of this file. Processes keep their versions."""
    world.stream.full_until = 0.0
    world.network.one_way.clear()
    partitions.clear(world)
    for machine in world.machines.values():
        machine.slow_until = 0.0

"""Supervisors and lease watchdogs that hang: what a simulated machine's enforcers of leases do.

`SimWatchdog` is the simulation's twin of `services/node_agent/watchdog`. The agent notices one that
hangs, and replaces it. Where none can be started, the agent records that. A machine with an armed
hardware watchdog is then reset.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, NamedTuple

from services.node_agent.core.observations import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sim.machine import Machine, Supervised
    from tests.sim.world import World

HUNG: Final = "supervisors_hang"
WATCHDOG_HUNG: Final = "watchdog_hangs"
WATCHDOG_LOST: Final = "watchdog_lost"
# The part of the runs in which supervisors of a node hang while it is silent, and the part of these
# in which its watchdog was lost before.
HUNG_PART: Final = 0.3
LOST_PART: Final = 0.5
# Kinds of silence (`faults.py`); the agent's is by its name.
SILENCES: Final = (
    "cut_off",
    "agent_dead",
    "apart_from_control",
    "is_not_heard",
    "hears_nothing",
)
KILL_BEFORE_S: Final = 0.1
LOOK_S: Final = 0.25
# The agent replaces a watchdog that has not answered for this long, and reports one that it could
# not start for this long.
FROZEN_S: Final = 2.0
REPORT_S: Final = 1.0
NO_PROGRAM: Final = "it ended (exit code 1)"
# How long a machine is down that its hardware watchdog resets.
RESET_S: Final = 15.0


class Fence(NamedTuple):
    """The hardware watchdog of each machine: its time (0: there is none), and whether leases are
    long enough to arm it.
    """

    seconds: int = 0
    is_armed: bool = False


NO_FENCE: Final = Fence()


def planned(dice: random.Random, nodes: int) -> list[tuple[float, str, str, float]]:
    """Return blows: supervisors hang while their node is silent, without its lease watchdog in some
    runs.
    """
    if dice.random() >= HUNG_PART:
        return []
    return hung_while_silent(
        f"n{dice.randrange(nodes)}",
        at_s=dice.uniform(1.0, 6.0),
        length_s=dice.choice((9.0, 13.0, 16.0)),
        silence=dice.choice(SILENCES),
        lost=dice.random() < LOST_PART,
    )


def hung_while_silent(
    node: str, at_s: float, length_s: float, silence: str, lost: bool
) -> list[tuple[float, str, str, float]]:
    watchdog = (WATCHDOG_LOST, length_s + 6.0) if lost else (WATCHDOG_HUNG, 0.0)
    target = f"agent-{node}" if silence == "agent_dead" else node
    return [
        (at_s, watchdog[0], node, watchdog[1]),
        (at_s + 4.0, HUNG, node, length_s),
        (at_s + 4.1, silence, target, length_s),
    ]


class SimWatchdog:
    """The lease watchdog of one machine."""

    # A planted bug switches this off.
    enforces_lease = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.fence = NO_FENCE
        self.begin()

    def begin(self) -> None:
        """Begin with a machine's boot."""
        self.hangs = self.is_lost = False
        self.startable_at = 0.0

    async def run(self) -> None:
        await asyncio.Event().wait()

    def works(self) -> bool:
        return not self.hangs and not self.is_lost

    def missing(self) -> str:
        return NO_PROGRAM if self.is_lost else ""

    def armed_ms(self) -> int:
        return self.fence.seconds * 1_000 if self.fence.is_armed else 0

    def lacking(self) -> str:
        return ""

    def metrics(self, node: str) -> Sequence[str]:
        return ()

    def hang(self) -> None:
        self.hangs = True
        self.machine.later(FROZEN_S, self._replace)

    def lose(self, length_s: float) -> None:
        """Let the watchdog end, and none start for a time."""
        self.is_lost = True
        self.startable_at = self.machine.loop.now + length_s
        self.machine.later(REPORT_S, self._report)
        self.machine.later(length_s, self._replace)

    def agent_began(self) -> None:
        """Each agent starts a watchdog of its own."""
        self.hangs = False
        self.is_lost = self.is_lost and self.machine.loop.now < self.startable_at

    def guard(self, supervised: Supervised) -> None:
        """Look at a job's lease, at its end and at least once in a second."""
        if not self.enforces_lease:
            return
        left_s = self.machine.lease_left_s(supervised.disk) - KILL_BEFORE_S
        if left_s <= 0 and self.works():
            self.machine.end_supervisor(supervised)
            return
        wait_s = LOOK_S if left_s <= 0 else min(1.0, left_s)
        supervised.guard_timer = self.machine.later(wait_s, lambda: self.guard(supervised))

    def _replace(self) -> None:
        if self.works() or not self.machine.up:
            return
        if self.machine.agent is None or not self.machine.agent.acts():
            self.machine.later(LOOK_S, self._replace)
            return
        was_lost = self.is_lost
        self.agent_began()
        if was_lost and not self.is_lost:
            self.machine.agent.guard_changed("")

    def _report(self) -> None:
        if not self.is_lost or not self.machine.up:
            return
        if self.machine.agent is not None and self.machine.agent.acts():
            self.machine.agent.guard_changed(self.missing())
        else:
            self.machine.later(LOOK_S, self._report)


def hang_supervisors(world: World, node_id: str, length_s: float) -> None:
    """Let the supervisors of a node hang, unless nothing would end its jobs and no scheduler knows.

    Against that only a hardware watchdog helps.
    """
    machine = world.machines[node_id]
    leading = world.leading()
    told = bool(leading) and all(
        node_id in cluster.nodes and cluster.nodes[node_id].unguarded
        for _, cluster in world.acknowledged()
    )
    if machine.watchdog.works() or told:
        machine.hang_until = world.loop.now + length_s


def end_watchdog(world: World, node_id: str, length_s: float) -> None:
    """Let the watchdog of a node hang, or be lost for a time; not while supervisors hang."""
    machine = world.machines[node_id]
    if machine.hang_until > world.loop.now or not machine.up:
        return
    if length_s:
        machine.watchdog.lose(length_s)
    else:
        machine.watchdog.hang()
    if machine.watchdog.fence.is_armed:
        boot = machine.boot
        world.loop.call_later(machine.watchdog.fence.seconds, lambda: _reset(world, node_id, boot))


def _reset(world: World, node_id: str, boot: int) -> None:
    """Reset a machine whose hardware watchdog nothing tends."""
    machine = world.machines[node_id]
    if machine.watchdog.works() or not machine.up or machine.boot != boot:
        return
    world.slots[f"agent-{node_id}"].process.kill()
    machine.power_off(False)
    world.loop.call_later(RESET_S, world.power_on, machine)


LOST: Final = Exit(executed=True, exit_code=None, reason="supervisor_lost")

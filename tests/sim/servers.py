"""The nats-servers of a run: each process is connected to one of them, and one that freezes answers
nothing and closes nothing.

A client pings its server (`libs/common/transport/connection_nats.py`) and leaves a silent one for
the next. Until then all that it sends and all that others send to it is lost, and its appends and
reads wait. Leases are shorter here than the default, so the time between pings is shorter by the
same part. A real server freezes in tests/attack/test_frozen_server.py.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from libs.common.settings.settings import Settings
from libs.common.transport import connection_nats
from tests.sim.faults import SERVERS, Blow

if TYPE_CHECKING:
    from tests.sim.world import World

LEASE_MS: Final = Settings().lease_ms


class Servers:
    """Which process is connected to which server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = random.Random(f"servers {world.plan.seed}")
        self.of = {name: SERVERS[number % len(SERVERS)] for number, name in enumerate(world.slots)}

    def freeze(self, blow: Blow) -> None:
        """Silence the clients of a server until they leave it or it goes on."""
        now, left_for = (
            self.world.loop.now,
            SERVERS[(SERVERS.index(blow.target) + 1) % len(SERVERS)],
        )
        for name in [name for name, server in self.of.items() if server == blow.target]:
            leaves_s = self._leaves_s()
            self.world.slots[name].process.silent_until = now + min(blow.length_s, leaves_s)
            if leaves_s < blow.length_s:
                self.of[name] = left_for

    def _leaves_s(self) -> float:
        """Draw how long one client stays: the first ping is sent some time after the
        server froze.
        """
        pings = connection_nats.PINGS_UNANSWERED_MAX + self.dice.random()
        return pings * connection_nats.PING_S * self.world.plan.lease_ms / LEASE_MS

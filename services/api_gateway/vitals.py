"""Data of the scheduler that is not in the log: the last heartbeat of each node, and how long its
decisions take.

The gateway asks regularly and keeps the last answer with its time, so that no request waits for it.
Before the first answer these data are unknown.
"""

import asyncio
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages import Vitals
from libs.common.model import NodeId
from libs.common.process.clock import Clock
from libs.common.process.serving_tasks import serve_together
from libs.common.transport.bus import Bus
from services.api_gateway.control_plane.plane import ControlPlane

ASK_S: Final = 1.0
# An older answer does not tell whether a node is heard now.
FRESH_S: Final = 5.0
MS: Final = 1_000_000

_decoder = msgspec.msgpack.Decoder(Vitals)


class Pulse:
    """The scheduler's last answer. `at_ns` is this gateway's wall clock when it came; 0: never.

    `plane` is what this gateway knows of the control plane; None: it does not watch it.
    """

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self.bus = bus
        self.clock = clock
        self.at_ns = 0
        self.plane: ControlPlane | None = None
        self.vitals = Vitals(0, {})

    async def take(self) -> None:
        """Ask once. Without an answer the last one stays."""
        try:
            answer = await self.bus.request(subjects.ask_scheduler("vitals"), b"", ASK_S)
            self.vitals, self.at_ns = _decoder.decode(answer), self.clock.wall_ns()
        except (Unavailable, msgspec.DecodeError):
            return

    async def run(self, every_s: float) -> None:
        """Ask for ever, and watch the control plane."""
        lives = {"vitals": self._ask(every_s)}
        if self.plane is not None:
            lives["plane"] = self.plane.run()
        await serve_together(**lives)

    async def _ask(self, every_s: float) -> None:
        while True:
            await self.take()
            await asyncio.sleep(every_s)

    def is_unheard(self, node_id: NodeId) -> bool:
        """Return whether the node sent no heartbeat for a lease and its margin. False while no
        scheduler answers.
        """
        is_fresh = self.clock.wall_ns() - self.at_ns < FRESH_S * 1e9
        return is_fresh and node_id in self.vitals.unheard

    def heard_ns(self, node_id: NodeId) -> int:
        """Return the time of the last heartbeat of the node; 0 if unknown."""
        ago_ms = self.vitals.heard_ms_ago.get(node_id)
        return 0 if ago_ms is None else self.at_ns - ago_ms * MS

"""Keeps the NATS servers' lists of keys as the log says: whoever runs the servers is told which nodes joined and which were removed.

A loop that repeats until it is acknowledged, so neither side's restart loses anything. A removed node hears first that it is removed
(the lease says so), and then its key stops working.
"""

import asyncio
import logging
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.admission import Admitted, admitted
from libs.common.bus import Bus
from libs.common.cluster import Cluster
from libs.common.errors import Unavailable

LOOK_S: Final = 0.2
TELL_S: Final = 5.0
AGAIN_S: Final = 2.0
# So many heartbeats a removed node has for hearing of it.
FAREWELL_BEATS: Final = 3

logger = logging.getLogger(__name__)


class Admitting:
    """`told` is what the servers go by, as far as this gateway knows."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.told: Admitted | None = None

    async def run(self, cluster: Cluster) -> None:
        """For ever. Where nobody runs the servers for this gateway, nobody is told; a cluster without joined nodes needs nobody."""
        self.told = None if cluster.memberships else Admitted()
        while True:
            await asyncio.sleep(LOOK_S)
            wanted = admitted(cluster)
            if wanted == self.told:
                continue
            if self.told is not None and set(wanted.removed) - set(self.told.removed):
                await asyncio.sleep(FAREWELL_BEATS * cluster.timing.heartbeat_ms / 1_000)
            try:
                await self.bus.request(subjects.ask_host("admit"), msgspec.msgpack.encode(wanted), TELL_S)
                self.told = wanted
            except Unavailable as error:
                logger.warning("the servers' keys are not up to date: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def wait_for(self, node_id: str, within_s: float) -> bool:
        """Whether the servers know the node's key in time."""
        deadline = asyncio.get_running_loop().time() + within_s
        while self.told is None or node_id not in self.told.nodes:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(LOOK_S / 2)
        return True

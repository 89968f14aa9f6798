"""Tells the keepers of the NATS servers which nodes of other machines joined or were removed, and
tracks how far each server is.

They ask (`libs/embedded/keeper.py`), so nothing here waits or repeats. Held by
tests/unit/test_keeper.py.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.folds.membership_fold import revocation
from libs.common.messages.admission import Admitted, AdmittedAnswer, AdmittedAsk, admitted
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from libs.common.transport.bus import Bus

LOOK_S: Final = 0.1
# A server that has not asked for this long is down: it asks again before it accepts connections.
GONE_S: Final = 5.0
# Heartbeats during which a removed node may still learn that it was removed.
FAREWELL_BEATS: Final = 3


class Admission:
    """`over`: nodes to refuse before the log says so.

    They are said to every server at each question until the log holds it, because the sequence of
    the log, by which a server knows how far it is, does not count them. `heard`: by server, when it
    last asked and how far it is. `refused`: by server, the nodes that it does not accept, and why.
    """

    def __init__(
        self, cluster: Callable[[], Cluster], bus: Bus, over: Collection[NodeId] = ()
    ) -> None:
        self.cluster = cluster
        self.bus = bus
        self.over = over
        self.heard: dict[str, tuple[float, int]] = {}
        self.refused: dict[str, dict[str, str]] = {}
        self.said = Admitted()
        self.said_seq = 0

    async def listen(self) -> None:
        await self.bus.subscribe(subjects.ADMITTED, self._on_ask)

    async def _on_ask(self, subject: str, data: bytes) -> bytes | None:
        try:
            ask = msgspec.msgpack.decode(data, type=AdmittedAsk)
        except msgspec.DecodeError:
            return None
        self.heard[ask.server] = asyncio.get_running_loop().time(), ask.seq
        self.refused[ask.server] = ask.refused
        return msgspec.msgpack.encode(self.answer(ask.seq))

    def answer(self, since: int) -> AdmittedAnswer:
        """Return what a server that is at `since` must learn."""
        cluster = self.cluster()
        found = admitted(cluster)
        if found != self.said or not self.said_seq:
            self.said, self.said_seq = found, cluster.seq
        ahead = [node_id for node_id in self.over if not revocation(cluster, node_id)]
        if since >= self.said_seq and not ahead:
            return AdmittedAnswer(cluster.seq)
        return AdmittedAnswer(
            cluster.seq,
            admitted(cluster, ahead) if ahead else found,
            FAREWELL_BEATS * cluster.timing.heartbeat_ms,
        )

    async def agreed(self, seq: int, within_s: float) -> bool:
        """Return whether all running servers accept commit `seq` within `within_s`."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within_s
        while not self._agree(seq, clock()):
            if clock() > deadline:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def refusal(self, node_id: str) -> str:
        """Return why a server does not accept this node; empty if all accept it."""
        return next(
            (refused[node_id] for refused in self.refused.values() if node_id in refused), ""
        )

    def _agree(self, seq: int, now_s: float) -> bool:
        found = [known for at_s, known in self.heard.values() if now_s - at_s < GONE_S]
        return bool(found) and min(found) >= seq

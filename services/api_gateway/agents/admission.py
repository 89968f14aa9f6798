"""Answers the keepers of the NATS servers which nodes of other machines joined or were removed, and
tracks the commit that each server has applied.

The keepers ask again and again (`libs/embedded/keeper.py`), so this file sends nothing by itself.
Tests: tests/unit/test_keeper.py.
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
# A server whose keeper has not asked for this long is down. It asks again before it accepts
# connections.
GONE_S: Final = 5.0
# Heartbeats during which a removed node may still learn that it was removed.
FAREWELL_BEATS: Final = 3


class Admission:
    """The nodes that may connect, and what each server knows of them.

    `over`: nodes to refuse before the log says so. Until the log does, every answer contains them,
    because a server compares sequences of the log and would miss them. `heard`: by server, when its
    keeper last asked, and the commit that it had applied. `refused`: by server, the nodes that it
    does not accept, with the reason. `current`: the nodes that may connect since `current_seq`.
    """

    def __init__(
        self, cluster: Callable[[], Cluster], bus: Bus, over: Collection[NodeId] = ()
    ) -> None:
        self.cluster = cluster
        self.bus = bus
        self.over = over
        self.heard: dict[str, tuple[float, int]] = {}
        self.refused: dict[str, dict[str, str]] = {}
        self.current = Admitted()
        self.current_seq = 0

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
        now_admitted = admitted(cluster)
        if now_admitted != self.current or not self.current_seq:
            self.current, self.current_seq = now_admitted, cluster.seq
        ahead = [node_id for node_id in self.over if not revocation(cluster, node_id)]
        if since >= self.current_seq and not ahead:
            return AdmittedAnswer(cluster.seq)
        return AdmittedAnswer(
            cluster.seq,
            admitted(cluster, ahead) if ahead else now_admitted,
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
        applied = [known for at_s, known in self.heard.values() if now_s - at_s < GONE_S]
        return bool(applied) and min(applied) >= seq

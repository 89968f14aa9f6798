"""The heartbeats of this node: each one asks the scheduler for a longer lease.

A heartbeat names what this agent holds, so that the scheduler and the peers can compare. Until the
first lease it is sent more often. Tests: tests/integration/test_agent.py.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.messages import REMOVED, RESTORED, Heartbeat, Lease
from libs.common.model import NodeId
from libs.common.process.clock import Clock
from libs.common.transport.bus import Bus
from libs.common.transport.writer import Writer, was_stored
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.peers.peers import Peers
from services.node_agent.registration import check_stands

# The agent waits for an answer during this part of the interval.
ANSWER_PART: Final = 0.8
# Until the first lease this many heartbeats come after this part of the interval.
EAGER_PART: Final = 0.1
EAGER_BEATS: Final = 20

_lease = msgspec.msgpack.Decoder(Lease)
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Heartbeats:
    """The heartbeats of one agent.

    `granted` is when the heartbeat of the newest lease was sent (boot clock), and how long its
    answer took. `echo_ns` is when the newest heartbeat was sent that was answered.
    `log_incarnation` is the highest incarnation of this node that the scheduler has read. `life` is
    the number of the cluster's life and the id of its restore; None before the first answer.
    """

    def __init__(
        self,
        node_id: NodeId,
        interval_ms: int,
        bus: Bus,
        clock: Clock,
        writer: Writer,
        peers: Peers | None,
        state: Callable[[], s.State],
        tell: Callable[[o.Observation], None],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self.node_id = node_id
        self.interval_ms = interval_ms
        self.bus = bus
        self.clock = clock
        self.writer = writer
        self.peers = peers
        self.state = state
        self.tell = tell
        self.spawn = spawn
        self.eager_beats = EAGER_BEATS
        self.granted = (0, 0)
        self.echo_ns = 0
        self.log_incarnation = 0
        self.life: tuple[int, str] | None = None
        self.closed = False

    def registered_as(self, registration: asyncio.Future[int]) -> None:
        """Begin the heartbeats of a new incarnation; `registration` becomes its commit."""
        self.registration = registration
        self.eager_beats = EAGER_BEATS

    async def run(self, before_each: Callable[[], None]) -> None:
        """Send heartbeats for ever, and call `before_each` first each time."""
        while True:
            sent_ns = self.clock.boot_ns()
            before_each()
            if not self.closed:
                await self._beat(sent_ns)
            part = EAGER_PART if self.eager_beats > 0 else 1.0
            due_ns = sent_ns + int(self.interval_ms * 1_000_000 * part)
            await asyncio.sleep(max(0, due_ns - self.clock.boot_ns()) / 1e9)

    async def _beat(self, sent_ns: int) -> None:
        """Send one heartbeat and report its lease.

        Raises Refused if the node was removed from the cluster, Unavailable if another registration
        stands, or the cluster was restored from a backup.
        """
        incarnation = self.state().incarnation
        try:
            answer = await self.bus.request(
                subjects.heartbeat(self.node_id),
                _encode(self._heartbeat(sent_ns)),
                timeout_s=self.interval_ms / 1000 * ANSWER_PART,
            )
            lease = _lease.decode(answer)
        except (Unavailable, *UNDECODABLE) as error:
            logger.debug("no lease: %s", error)
            self.eager_beats -= 1
            return
        self.echo_ns = max(self.echo_ns, sent_ns)
        if lease.verdict == REMOVED:
            raise Refused(
                f"node {self.node_id} was removed from the cluster: to use this machine "
                "again, add it under another name"
            )
        try:
            self._check_life(lease)
        except Unavailable:
            if self.peers is not None:
                await self.peers.hear_other_life(lease.life_id)
            raise
        self.log_incarnation = max(self.log_incarnation, lease.incarnation)
        check_stands(lease, self.registration)
        if lease.distrusted:
            self.spawn(self.writer.check_alone())
        self.interval_ms = lease.heartbeat_ms or self.interval_ms
        self.eager_beats = 0 if lease.lease_ms else self.eager_beats - 1
        self.tell(o.LeaseReceived(lease, incarnation, sent_ns))
        if lease.lease_ms and sent_ns > self.granted[0]:
            self.granted = (sent_ns, self.clock.boot_ns() - sent_ns)
        if self.peers is not None and self.peers.hears(lease, sent_ns):
            self.spawn(self.peers.fetch(self.bus))

    def _check_life(self, lease: Lease) -> None:
        """Raise Unavailable if the cluster was restored since this agent began.

        The number of the life may be the same, because a backup can be restored twice. What the
        agent knows of epochs and sequences is of another history then. The next agent finds the
        jobs on disk and registers them, and stops those that the log does not know.

        A scheduler of an earlier release names no restore: then only the numbers are compared.
        """
        number, restore_id = self.life or (lease.life, lease.restore_id)
        restores = {lease.restore_id, restore_id} - {""}
        is_other = lease.life != number or len(restores) > 1
        self.life = number, restore_id or lease.restore_id
        stands = self.registration.done() and was_stored(self.registration)
        unread = not stands or lease.seq < self.registration.result()
        if is_other or (lease.verdict == RESTORED and not unread):
            raise Unavailable(
                f"the cluster was restored from a backup (life {lease.life_id}): the agent of "
                f"{self.node_id} starts again and registers its jobs"
            )

    def _heartbeat(self, sent_ns: int) -> Heartbeat:
        state, peers = self.state(), self.peers
        size, seq = (peers.size, peers.roster_seq) if peers is not None else (0, 0)
        life = peers.roster_life if peers is not None else None
        held = (size, *self.granted, state.lease_written_epoch, seq, self.echo_ns, life)
        return Heartbeat(self.node_id, state.incarnation, sent_ns, s.local_digest(state), *held)

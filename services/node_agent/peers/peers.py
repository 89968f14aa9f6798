"""This node among its peers: it asks them when no scheduler answers, always answers them, and
extends the lease by the rule of `gossip.py`.

It needs neither the log nor the bus and starts before both: an agent that restarts while the
control plane is down has its roster and its lease on disk. Everything it touches is an argument:
the simulation runs this class.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, Protocol

import msgspec

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages import Lease, Roster
from libs.common.model import NodeId
from libs.common.process.clock import Clock
from libs.common.process.serving_tasks import serve_together
from libs.common.transport.bus import Bus
from services.node_agent.core.apply import ask_jitter_ns
from services.node_agent.peers import gossip as g
from services.node_agent.peers.peer_budget import Budget
from services.node_agent.peers.peer_messages import PeerAnswer, PeerAsk, Reader, Said, Signer

LOOK_MAX_S: Final = 1.0
# Questions go out in bursts, so that the answers of a thousand nodes do not come at once.
BURST: Final = 50
BURST_PAUSE_S: Final = 0.01
# A new roster is fetched at most this often.
ROSTER_EVERY_NS: Final = 2_000_000_000
FETCH_TIMEOUT_S: Final = 2.0

_roster = msgspec.msgpack.Decoder(Roster)

logger = logging.getLogger(__name__)


class Channel(Protocol):
    """A channel for datagrams, which may be lost. Twins: `peers_udp.UdpChannel`, the
    simulation's.
    """

    address: str

    def listen(self, hear: Callable[[str, bytes], None]) -> None:
        """Call `hear(sender's address, data)` on the event loop for each datagram from now on."""
        ...

    def send(self, to: str, data: bytes) -> None:
        """Send a datagram. Never waits and never raises."""
        ...

    def narrow(self, senders: Sequence[str] | None) -> None:
        """Drop datagrams from other addresses, as early as this channel can; None: read all."""
        ...


class LeaseFile(Protocol):
    """The node's lease (boot clock), as supervisors read it.

    Twins: `supervisor.lease.Lease`, the simulation's.
    """

    def deadline_ns(self) -> int: ...

    def extend(self, deadline_ns: int) -> None: ...


class Kept(msgspec.Struct, frozen=True):
    """The data that survives the agent: its address, and the roster.

    `life` is set if a scheduler named another life of the cluster after it gave the roster.
    """

    address: str = ""
    roster: Roster = Roster()
    life: str | None = None


class Keeper(Protocol):
    """The storage of `Kept`. Twins: `kept_roster.RosterFile`, the simulation's disk."""

    async def load(self) -> Kept:
        """Return what was kept; an empty one if nothing was."""
        ...

    async def store(self, kept: Kept) -> None:
        """Store it; return once it survives a power cut."""
        ...


class Peers:
    """The peers of one node. `dropped` counts datagrams that were not believed."""

    def __init__(
        self,
        node_id: NodeId,
        channel: Channel,
        clock: Clock,
        lease: LeaseFile,
        keeper: Keeper,
        signer: Signer,
        make_nonce: Callable[[], bytes],
    ) -> None:
        self.channel = channel
        self.clock = clock
        self.lease = lease
        self.keeper = keeper
        self.signer = signer
        self.make_nonce = make_nonce
        self.incarnation = 0
        self.gossip = g.begin(node_id, Roster(), 0, clock.boot_ns())
        self.reader = Reader(Roster())
        self.fetched_ns = 0
        # Two fetches at once would write the same file.
        self.fetching = asyncio.Lock()
        self.budget = Budget()
        self.addresses: frozenset[str] = frozenset()
        self.narrowed: frozenset[str] | None = None
        # Peers that name the recipient in their questions, with their incarnation. A question of it
        # without one is a replay.
        self.naming: dict[NodeId, int] = {}
        self.dropped = 0

    async def run(self, incarnation: int) -> None:
        """Ask peers when necessary, until cancelled.

        `incarnation` is this node's last; `registered` sets a later one.
        """
        self.incarnation = max(self.incarnation, incarnation)
        kept = await self.keeper.load()
        self.gossip = g.begin(
            self.gossip.node_id, kept.roster, self.lease.deadline_ns(), self.clock.boot_ns()
        )
        if kept.life is not None:
            g.hear_life(self.gossip, kept.life)
        self._believe(kept.roster)
        self.channel.listen(self._hear)
        while True:
            now_ns = self.clock.boot_ns()
            self._narrow(now_ns)
            at_ns = g.ask_at_ns(self.gossip, self.lease.deadline_ns())
            if at_ns is not None and at_ns <= now_ns:
                await self._ask(now_ns)
            else:
                await asyncio.sleep(
                    LOOK_MAX_S if at_ns is None else min(LOOK_MAX_S, (at_ns - now_ns) / 1e9)
                )

    # What the agent tells.

    def registered(self, incarnation: int) -> None:
        self.incarnation = incarnation

    def holds_lease(self) -> bool:
        return self.lease.deadline_ns() > self.clock.boot_ns()

    @property
    def size(self) -> int:
        """Return the number of nodes in the roster on disk."""
        return len(self.gossip.roster.nodes)

    @property
    def roster_seq(self) -> int:
        return self.gossip.roster.seq

    @property
    def roster_life(self) -> str:
        return self.gossip.roster.life

    def hears(self, lease: Lease, sent_ns: int) -> bool:
        """Note a scheduler's lease for the heartbeat sent then; return whether to fetch its roster
        now.
        """
        if lease.lease_ms:
            g.granted(self.gossip, sent_ns)
        # A scheduler of an earlier release names no life in its rosters.
        is_present = lease.roster == self.gossip.roster.digest
        g.hear_life(self.gossip, self.gossip.roster.life if is_present else lease.life_id)
        now_ns = self.clock.boot_ns()
        if lease.roster in ("", self.gossip.roster.digest) or now_ns < self.fetched_ns:
            return False
        if self.fetching.locked():
            return False
        self.fetched_ns = now_ns + ROSTER_EVERY_NS
        return True

    async def hear_other_life(self, life: str) -> None:
        """Note and store that the scheduler named another life of the cluster.

        The agent starts again then, and its next process must not extend a lease by this roster.
        """
        g.hear_life(self.gossip, life)
        async with self.fetching:
            kept = Kept(self.channel.address, self.gossip.roster, life)
            try:
                await self.keeper.store(kept)
            except OSError as error:
                logger.warning("the life %s of the cluster cannot be stored: %s", life, error)

    def fetch_soon(self) -> None:
        """Let the next lease fetch a new roster, even if one was fetched a moment ago."""
        self.fetched_ns = 0

    async def fetch(self, bus: Bus) -> None:
        """Fetch the roster. After a failure a later lease asks again."""
        subject = subjects.roster(self.gossip.node_id)
        async with self.fetching:
            await asyncio.sleep(ask_jitter_ns(self.gossip.node_id) / 1e9)
            try:
                await self.take(_roster.decode(await bus.request(subject, b"", FETCH_TIMEOUT_S)))
            except (Unavailable, msgspec.DecodeError) as error:
                logger.debug("no roster: %s", error)

    async def take(self, roster: Roster) -> None:
        """Store a roster, then use it."""
        if not g.takes(self.gossip, roster):
            logger.warning(
                "a roster of %d nodes as of %d is not a later one: it is not taken",
                len(roster.nodes),
                roster.seq,
            )
            return
        try:
            await self.keeper.store(Kept(self.channel.address, roster))
        except OSError as error:
            logger.warning(
                "a roster of %d nodes cannot be stored (%s): the previous one stays in use, and a "
                "later lease tries again",
                len(roster.nodes),
                error,
            )
            return
        if g.takes(self.gossip, roster):
            g.take(self.gossip, roster)
            self._believe(roster)

    def _believe(self, roster: Roster) -> None:
        self.reader = Reader(roster)
        self.addresses = frozenset(entry.address for entry in roster.nodes if entry.address)
        self._narrow(self.clock.boot_ns())

    # Asking and answering.

    async def _ask(self, now_ns: int) -> None:
        roster, nonce = self.gossip.roster, self.make_nonce()
        self._extend(g.ask(self.gossip, nonce, now_ns))
        others = [
            entry
            for entry in roster.nodes
            if entry.address and entry.node_id != self.gossip.node_id
        ]
        for first in range(0, len(others), BURST):
            for entry in others[first : first + BURST]:
                own = g.cookie(nonce, entry.node_id)
                ask = PeerAsk(
                    cluster_id=roster.cluster_id,
                    node_id=self.gossip.node_id,
                    incarnation=self.incarnation,
                    nonce=own,
                    to=entry.node_id,
                )
                self.channel.send(entry.address, self.signer.datagram(ask))
            await asyncio.sleep(BURST_PAUSE_S)

    def _hear(self, sender: str, data: bytes) -> None:
        """Handle a datagram: cheap checks first, which use no other sender's budget."""
        now_ns, known = self.clock.boot_ns(), sender in self.addresses
        if self.budget.hears(sender, known, now_ns, g.window_ns(self.gossip)):
            logger.warning(
                (
                    "%s floods the peers' port with datagrams: for a while only other nodes' "
                    "addresses are heard"
                ),
                sender,
            )
            self._narrow(now_ns)
        opened = self.reader.open(data)
        if (
            opened is None
            or not self._may_verify(sender, known, opened.said)
            or not self.reader.verified(opened)
        ):
            self.dropped += 1
            return
        said = opened.said
        if not self.budget.may_believe(said.node_id):
            self.dropped += 1
        elif isinstance(said, PeerAsk):
            if said.to:
                self.naming[said.node_id] = said.incarnation
            self._answer(sender, said)
        else:
            self._extend(
                g.answered(
                    gossip=self.gossip,
                    peer=said.node_id,
                    nonce=said.nonce,
                    peer_unrenewed_ms=said.unrenewed_ms,
                    now_ns=now_ns,
                )
            )

    def _may_verify(self, sender: str, known: bool, said: Said) -> bool:
        if isinstance(said, PeerAsk):
            # An agent that was set back to a version before `to` registered again: its incarnation
            # is higher.
            meant = said.to == self.gossip.node_id or (
                not said.to and said.incarnation > self.naming.get(said.node_id, -1)
            )
            return meant and self.budget.may_verify_ask(sender, known)
        meant = said.to == self.gossip.node_id and g.expects(self.gossip, said.node_id, said.nonce)
        return meant and self.budget.may_verify_answer(said.node_id)

    def _answer(self, sender: str, ask: PeerAsk) -> None:
        unrenewed_ms = g.unrenewed_ms(self.gossip, self.clock.boot_ns())
        answer = PeerAnswer(
            cluster_id=self.reader.cluster_id,
            node_id=self.gossip.node_id,
            incarnation=self.incarnation,
            nonce=ask.nonce,
            to=ask.node_id,
            unrenewed_ms=unrenewed_ms,
        )
        self.channel.send(sender, self.signer.datagram(answer))

    def _narrow(self, now_ns: int) -> None:
        """Have the channel read only the quiet nodes during a flood, and all senders after it."""
        wanted = self.addresses - self.budget.loud if self.budget.is_narrow(now_ns) else None
        if wanted != self.narrowed:
            self.narrowed = wanted
            self.channel.narrow(None if wanted is None else sorted(wanted))

    def _extend(self, deadline_ns: int) -> None:
        """Extend the lease file; its deadline never goes back."""
        if deadline_ns > self.lease.deadline_ns():
            logger.warning(
                "no scheduler answers this node or most of its peers: the lease is extended"
            )
            self.lease.extend(deadline_ns)


async def among(peers: Peers, incarnation: int, work: Coroutine[None, None, None]) -> None:
    """Run `work` with the peers beside it, from its start to its end."""
    await serve_together(work=work, peers=peers.run(incarnation))

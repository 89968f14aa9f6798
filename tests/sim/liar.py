"""A machine whose key an attacker has: beside its honest agent it publishes lies under that key.

It does only what the servers' permissions allow: commits on the node's own subject, heartbeats and
asks on its own subjects, and datagrams from its own address. `Liar` draws its lies from its own
dice. Checkers ignore only violations that concern the liar's own node, which `World.lying` names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import reading, subjects
from libs.common.messages import DesiredAsk, Heartbeat
from libs.common.model import AttemptRef, JobId, NodeId
from libs.common.state.cluster import Node
from services.node_agent.peers.peer_messages import NONCE_BYTES, PeerAnswer, PeerAsk
from tests.sim.bus import CONTROL, SimBus
from tests.sim.loop import Process
from tests.sim.peers import SUBJECT as PEERS
from tests.sim.peers import SimChannel, signer_of

if TYPE_CHECKING:
    from tests.sim.world import World

PAUSE_MIN_S: Final = 0.2
PAUSE_MAX_S: Final = 1.5
RESTART_S: Final = 0.5
# Datagrams of each kind to each peer. Then the size, interval and duration of the bursts in which
# one question is forwarded.
DATAGRAMS: Final = 4
SENT_ON: Final = 9
SENT_ON_EVERY_S: Final = 0.1
SENT_ON_S: Final = 8.0
HUGE: Final = 1 << 63
DEEP: Final = b"\x82\xa4kind\xa1?\xa1x" + b"\x91" * 5_000 + b"\x90"

_encode = msgspec.msgpack.Encoder().encode


class Liar:
    """One attacker with one node's key."""

    def __init__(self, world: World, node_id: str, until_s: float) -> None:
        self.world = world
        self.node_id = NodeId(node_id)
        self.subject = subjects.node(node_id)
        self.until_s = until_s
        self.dice = random.Random(f"liar {world.plan.seed} {node_id}")
        self.process = Process(f"liar-{node_id}")
        self.bus = SimBus(world.network, self.process, node_id)
        self.gossip = random.Random(f"gossip {world.plan.seed} {node_id}")
        self.signer = signer_of(node_id)
        self.question: tuple[str, bytes] | None = None
        self.overhears: SimChannel | None = None
        self.lies = (
            self._junk,
            self._jump,
            self._too_new,
            self._misaddressed,
            self._deep,
            self._of_others,
            self._of_own,
            self._steal,
        )

    def begin(self) -> None:
        """Lie from now on."""
        self.world.loop.call_later(self.dice.uniform(PAUSE_MIN_S, PAUSE_MAX_S), self._lie)

    def _lie(self) -> None:
        if self.world.found is not None:
            return
        if self.world.loop.now >= self.until_s:
            self._is_found_out()
            return
        lie = self.dice.choice(self.lies)
        if self._reaches():
            self._pretend()
            self._store(lie())
            self.world.weather.tell("lie", lie.__name__)
        if self.world.machines[self.node_id].up:
            self._spread()
        self.begin()

    def _is_found_out(self) -> None:
        """Give the node back to its operator, who starts the agent again."""
        self.world.slots[f"agent-{self.node_id}"].strike(RESTART_S)

    def _reaches(self) -> bool:
        """Return whether a commit from this machine can reach the log now."""
        network, now = self.world.network, self.world.loop.now
        away = (
            network.cut.get(self.node_id, 0.0),
            network.apart.get(self.node_id, 0.0),
            network.cut.get(CONTROL, 0.0),
        )
        return max(*away, self.world.stalled_until) <= now and self.world.machines[self.node_id].up

    def _store(self, data: bytes) -> None:
        last = self.world.stream.last_by_subject.get(self.subject)
        self.world.stream.store(self.subject, data, last.seq if last is not None else 0)

    def _commit(self, *facts: f.AnyFact) -> list[object]:
        """Build an envelope that every reader accepts."""
        mark, node = self.world.reference.writers.get(self.subject), self._own()
        number = f.next_number(mark.number) if mark is not None else 1
        epoch = node.incarnation if node is not None else 1
        # Commits must differ, or the log would take the second one for a repetition of the first.
        at_ns = (mark.at_ns if mark is not None else 0) + 1
        return [f.VERSION, f.VERSION, self.subject, number, epoch, at_ns, 0, list(facts)]

    def _own(self) -> Node | None:
        return self.world.reference.nodes.get(self.node_id)

    # -- commits that are ignored whole
    # -------------------------------------------------------------------------

    def _junk(self) -> bytes:
        return b"hello" + self.dice.randbytes(8)

    def _jump(self) -> bytes:
        envelope = self._commit()
        envelope[3] = self.dice.randrange(2, 1 << 40)
        return _encode(envelope)

    def _too_new(self) -> bytes:
        return _encode([f.VERSION + 7, f.VERSION + 7, *self._commit()[2:]])

    def _misaddressed(self) -> bytes:
        envelope = self._commit()
        envelope[2] = self.dice.choice((subjects.node(self._other()), subjects.SCHEDULER))
        return _encode(envelope)

    def _deep(self) -> bytes:
        return _encode(self._commit())[:-1] + b"\x91" + DEEP

    # -- commits that are read
    # ----------------------------------------------------------------------------------

    def _of_others(self) -> bytes:
        """Report that jobs of another node ended, in that node's name and in its own."""
        other = NodeId(self._other())
        node = self.world.reference.nodes.get(other)
        members = list(node.members.items()) if node is not None else [(JobId("job-0"), 1)]
        ends: list[f.AnyFact] = []
        for job_id, attempt in members:
            for node_id in (other, self.node_id):
                ends.append(
                    f.JobFinished(
                        job_id=job_id, attempt=attempt, node_id=node_id, exit_code=0, run_ms=HUGE
                    )
                )
                ends.append(f.JobReleased(job_id=job_id, attempt=attempt, node_id=node_id))
        return _encode(self._commit(*ends))

    def _of_own(self) -> bytes:
        """Report that its own jobs ran for longer than is possible."""
        node = self._own()
        members = list(node.members.items()) if node is not None else []
        ends = [
            f.JobFinished(
                job_id=job_id, attempt=attempt, node_id=self.node_id, exit_code=0, run_ms=HUGE
            )
            for job_id, attempt in members
        ]
        return _encode(self._commit(*ends))

    def _steal(self) -> bytes:
        """Register again with all its jobs, and list another node's devices beside its own."""
        entries = [entry for entry in self.world.stream.entries if entry.subject == self.subject]
        facts = [
            fact
            for entry in entries
            for fact in reading.read_alone(entry.subject, entry.data).facts
        ]
        last = next((fact for fact in reversed(facts) if isinstance(fact, f.NodeRegistered)), None)
        node = self._own()
        if last is None or node is None:
            return self._junk()
        gpus = (*self.world.machines[self.node_id].gpus, *self.world.machines[self._other()].gpus)
        attempts = tuple(AttemptRef(job_id, attempt) for job_id, attempt in node.members.items())
        return _encode(
            self._commit(
                replace(last, incarnation=node.incarnation + 1, gpus=gpus, attempts=attempts)
            )
        )

    # -- heartbeats
    # ---------------------------------------------------------------------------------------------

    def _pretend(self) -> None:
        """Send a heartbeat in the name of each other node, as if it had a lease of this term."""
        reference, now = self.world.reference, self.world.loop.now
        for node in reference.nodes.values():
            if node.node_id == self.node_id:
                continue
            beat = Heartbeat(
                node.node_id, node.incarnation, int(now * 1e9), "", lease_epoch=reference.epoch
            )
            self.process.spawn(self.bus.publish(subjects.heartbeat(self.node_id), _encode(beat)))

    # -- asks and datagrams
    # -------------------------------------------------------------------------------------

    def _spread(self) -> None:
        """Ask for what other nodes should run, and send each of them datagrams: own ones, forged
        ones, and those of others.
        """
        nodes = [
            node for node in self.world.reference.nodes.values() if node.node_id != self.node_id
        ]
        for node in nodes:
            ask = DesiredAsk(node.node_id, node.incarnation)
            self.process.spawn(self.bus.publish(subjects.desired(self.node_id), _encode(ask)))
        self._overhear()
        for node in nodes if not self.question else ():
            for data in self._signed(node):
                self._send(node.node_id, data)

    def _signed(self, to: Node) -> Iterator[bytes]:
        """Questions and answers in the own name and in another's, more than a peer hears of one
        node in a round.
        """
        named, cluster_id = (
            NodeId(self.gossip.choice(list(self.world.machines))),
            self.world.reference.cluster_id,
        )
        for _ in range(DATAGRAMS):
            nonce = self.gossip.randbytes(NONCE_BYTES)
            own = self._own()
            incarnation = own.incarnation if own is not None else 1
            yield self.signer.datagram(
                PeerAsk(
                    cluster_id=cluster_id,
                    node_id=self.node_id,
                    incarnation=incarnation,
                    nonce=nonce,
                    to=to.node_id,
                )
            )
            yield self.signer.datagram(
                PeerAsk(
                    cluster_id=cluster_id,
                    node_id=named,
                    incarnation=1 << 30,
                    nonce=nonce,
                    to=to.node_id,
                )
            )
            yield self.signer.datagram(
                PeerAnswer(
                    cluster_id=cluster_id,
                    node_id=self.node_id,
                    incarnation=incarnation,
                    nonce=nonce,
                    to=to.node_id,
                    unrenewed_ms=1 << 40,
                )
            )

    def _overhear(self) -> None:
        """Hear what peers send to this node's address.

        Its agent answers no question while the node lies.
        """
        channel = self.world.network.channels.get(self.node_id)
        if channel is None or channel is self.overhears:
            return
        self.overhears, hear = channel, channel.hear

        def both(sender: str, data: bytes) -> None:
            if self.world.loop.now >= self.until_s or not _is_question(data):
                hear(sender, data)
            elif not self.question:
                self.question = (sender, data)
                self._send_on(self.world.loop.now + SENT_ON_S)

        channel.hear = both

    def _send_on(self, until_s: float) -> None:
        """Send a question of one peer to all others, so often that none of them hears that peer
        itself.
        """
        if not self.question or self.world.loop.now >= min(until_s, self.until_s):
            self.question = None
            return
        asker, data = self.question
        for node_id in self.world.machines:
            for _ in range(SENT_ON if node_id not in (asker, self.node_id) else 0):
                self._send(node_id, data)
        self.world.loop.call_later(SENT_ON_EVERY_S, self._send_on, until_s)

    def _send(self, to: str, data: bytes) -> None:
        network = self.world.network
        channel = network.channels.get(to)
        if channel is not None and network.passes(self.node_id, to, PEERS):
            channel.process.deliver(
                channel.hear, self.node_id, data, delay_s=network.delay_s(PEERS)
            )

    def _other(self) -> str:
        return self.dice.choice(
            [node_id for node_id in self.world.machines if node_id != self.node_id]
        )


def _is_question(data: bytes) -> bool:
    body, _ = msgspec.msgpack.decode(data)
    return bool(msgspec.msgpack.decode(body)[0] == "ask")

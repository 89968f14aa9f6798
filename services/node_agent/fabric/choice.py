"""Choose RDMA or TCP: what this node offers, and what two nodes use between each other.

An agent offers RDMA if it has an active port and verbs that work, and records what it offers, and
why, in NodeRegistered. Two nodes use RDMA if both offer it in one fabric, and it has not failed
between them a while ago. Tests: tests/unit/test_link_choice.py.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from libs.common.messages.link_messages import LinkOffer as Offer
from libs.common.model import NodeId
from libs.job.transport import verbs
from libs.job.transport.errors import LinkError

RDMA: Final = "rdma"
TCP: Final = "tcp"
# The setting MUSTER_LINK_TRANSPORT.
AUTO: Final = "auto"
DIAL: Final = "dial"
SERVE: Final = "serve"
WANTED: Final = (AUTO, TCP)
# RDMA that failed to a node is tried again after this time.
FAILED_S: Final = 300.0
FAILED_MAX: Final = 1_024


def offer(wanted: str = AUTO) -> Offer:
    """Return what this machine offers. Reads sysfs and opens no device."""
    try:
        port = usable_port(wanted)
    except LinkError as error:
        return Offer(TCP, error.detail.removeprefix("no RDMA: "))
    return Offer(RDMA, f"port {port.device}/{port.number} is active", port.fabric)


def usable_port(wanted: str = AUTO) -> verbs.Port:
    """Return the port that links use. Raises LinkError NO_RDMA, with the reason."""
    if wanted == TCP:
        raise verbs.no_rdma("MUSTER_LINK_TRANSPORT=tcp")
    return verbs.usable_port()


def between(own: Offer, peer: Offer) -> Offer:
    """Return what two nodes use between each other."""
    for who, each in (("this node", own), ("the peer", peer)):
        if each.transport != RDMA:
            return Offer(TCP, f"{who} offers no RDMA: {each.why or 'its agent does not say why'}")
    if own.fabric != peer.fabric:
        fabrics = f"{own.fabric or 'unknown'} here, {peer.fabric or 'unknown'} there"
        return Offer(TCP, f"the RDMA ports are in different fabrics: {fabrics}")
    return Offer(RDMA, f"both nodes offer it: here {own.why}, there {peer.why}", own.fabric)


class Choices:
    """The choices of one agent, and its sessions and bytes by side and transport.

    `wanted` is MUSTER_LINK_TRANSPORT. `chose` is told what each session to another node uses.
    Safe for threads.
    """

    def __init__(self, wanted: str = AUTO, now_s: Callable[[], float] = time.monotonic) -> None:
        self.wanted, self._now_s = wanted, now_s
        self.chose: Callable[[NodeId, Offer], None] = lambda node_id, choice: None
        self._lock = threading.Lock()
        self._failed: dict[NodeId, tuple[float, str]] = {}
        self._sessions: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()

    def own(self) -> Offer:
        """Return what this node offers now."""
        return offer(self.wanted)

    def port(self) -> verbs.Port:
        """Return the port that links use now. Raises LinkError NO_RDMA."""
        return usable_port(self.wanted)

    def to(self, node_id: NodeId, peer: Offer) -> Offer:
        """Return what to try for a link to a node with this offer."""
        found = between(self.own(), peer)
        if found.transport != RDMA:
            return found
        now_s = self._now_s()
        with self._lock:
            at_s, why = self._failed.get(node_id, (now_s - FAILED_S, ""))
        if now_s - at_s < FAILED_S:
            return Offer(TCP, f"RDMA failed {now_s - at_s:.0f} s ago: {why}")
        return found

    def ended(self, side: str, transport: str, size: int) -> None:
        """Count a session of this side that ended, and the bytes of it in both directions."""
        with self._lock:
            self._sessions[side, transport] += 1
            self._bytes[side, transport] += size

    def failed(self, node_id: NodeId, why: str) -> None:
        """Note that there is no RDMA to a node although both offer it; it is not tried for a while.

        The oldest entry leaves when there are too many.
        """
        with self._lock:
            self._failed.pop(node_id, None)
            self._failed[node_id] = self._now_s(), why
            if len(self._failed) > FAILED_MAX:
                del self._failed[next(iter(self._failed))]

    def counts(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return the sessions that ended and their bytes, by side and transport."""
        with self._lock:
            return {each: (count, self._bytes[each]) for each, count in self._sessions.items()}

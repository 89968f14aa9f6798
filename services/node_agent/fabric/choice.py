"""Choose RDMA or TCP: what this node offers, and what two nodes use between each other.

An agent offers RDMA if it has an active port and verbs that work, and records what it offers, and
why, in NodeRegistered. Two nodes use RDMA if both offer it. Tests: tests/unit/test_link_choice.py.
"""

from typing import Final, NamedTuple

from libs.job.transport import verbs
from libs.job.transport.errors import LinkError

RDMA: Final = "rdma"
TCP: Final = "tcp"


class Offer(NamedTuple):
    """`rdma` or `tcp`, and why; empty: unknown, as of agents that do not say it."""

    transport: str
    why: str


def offer() -> Offer:
    """Return what this machine offers. Reads sysfs and opens no device."""
    try:
        port = verbs.usable_port()
    except LinkError as error:
        return Offer(TCP, error.detail.removeprefix("no RDMA: "))
    return Offer(RDMA, f"port {port.device}/{port.number} is active")


def between(own: Offer, peer: Offer) -> Offer:
    """Return what two nodes use between each other."""
    for who, each in (("this node", own), ("the peer", peer)):
        if each.transport != RDMA:
            return Offer(TCP, f"{who} offers no RDMA: {each.why or 'its agent does not say why'}")
    return Offer(RDMA, f"both nodes offer it: here {own.why}, there {peer.why}")

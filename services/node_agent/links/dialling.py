"""Opens a link to the node that signed a token, and checks that this node answers.

Tests: tests/integration/test_copies.py, tests/attack/test_copies.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from libs.common.messages.file_messages import BROKEN
from libs.common.messages.link_messages import LinkOffer
from libs.common.model import NodeId
from libs.job.transport.errors import LinkError
from libs.job.transport.link import Link
from libs.job.transport.traffic import Options
from libs.job.transport.transports import EitherTransport, TcpTransport
from services.node_agent.fabric.choice import DIAL, RDMA, TCP, Choices
from services.node_agent.fabric.tokens import NodeAccess
from services.node_agent.jobs.files import Fault
from services.node_agent.links.asking import AHEAD, ANSWER_S, Peer

CONNECT_S: Final = 10.0
# The largest answer is a folder's names or a file's part, each at most 256 KiB and a little more.
ANSWER_BYTES_MAX: Final = 512 << 10


@contextmanager
def peer_at(
    access: NodeAccess,
    address: str,
    node_id: NodeId,
    go_on: Callable[[], None],
    answer_s: float = ANSWER_S,
    choices: Choices | None = None,
    offered: LinkOffer | None = None,
) -> Iterator[Peer]:
    """Yield the serving node `node_id`, over a link that ends with the block. Raises Fault.

    `go_on` and `answer_s`: see `Peer`. `offered` is what the serving node offers; with `choices`
    the link is over RDMA if both nodes have a path over it.
    """
    choices = choices or Choices(TCP)
    choice = choices.to(node_id, offered or LinkOffer())
    link, choice = _link(access, address, node_id, answer_s, choices=choices, choice=choice)
    with link:
        if link.peer != node_id:
            raise Fault(BROKEN, f"node {link.peer} answers at {address}, not {node_id}: copy again")
        choices.chose(node_id, choice)
        try:
            yield Peer(link, node_id, go_on, answer_s, choice)
        finally:
            found = link.stats()
            choices.ended(DIAL, found.transport, found.sent_bytes + found.received_bytes)
            if found.transport == RDMA and not found.connected:
                choices.failed(node_id, "its connection broke and did not come back")


def _link(
    access: NodeAccess,
    address: str,
    node_id: NodeId,
    answer_s: float,
    choices: Choices,
    choice: LinkOffer,
) -> tuple[Link, LinkOffer]:
    """Return a link, and what it uses and why. Raises Fault."""
    options = Options(AHEAD, buffer_bytes=ANSWER_BYTES_MAX, give_up_s=answer_s)
    within_s = min(CONNECT_S, answer_s)
    try:
        if choice.transport != RDMA:
            return TcpTransport(access, options).connect(address, within_s), choice
        link = EitherTransport(access, options, choices.port).connect(address, within_s)
    except LinkError as error:
        raise Fault(
            BROKEN,
            f"no link to node {node_id} at {address}: {error.detail}. See the state of both nodes "
            "with `muster nodes`, then copy again",
        ) from error
    if link.transport == RDMA:
        return link, choice
    choices.failed(node_id, link.no_rdma)
    return link, LinkOffer(TCP, f"RDMA failed: {link.no_rdma}")

"""Opens a link to the node that signed a token, and checks that this node answers.

Tests: tests/integration/test_copies.py, tests/attack/test_copies.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from libs.common.messages.file_messages import BROKEN
from libs.common.model import NodeId
from libs.job.transport.errors import LinkError
from libs.job.transport.link import Link
from libs.job.transport.traffic import Options
from libs.job.transport.transports import TcpTransport
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
) -> Iterator[Peer]:
    """Yield the serving node `node_id`, over a link that ends with the block. Raises Fault.

    `go_on` and `answer_s`: see `Peer`.
    """
    with _link(access, address, node_id, answer_s) as link:
        if link.peer != node_id:
            raise Fault(BROKEN, f"node {link.peer} answers at {address}, not {node_id}: copy again")
        yield Peer(link, node_id, go_on, answer_s)


def _link(access: NodeAccess, address: str, node_id: NodeId, answer_s: float) -> Link:
    options = Options(AHEAD, buffer_bytes=ANSWER_BYTES_MAX, give_up_s=answer_s)
    try:
        return TcpTransport(access, options).connect(address, min(CONNECT_S, answer_s))
    except LinkError as error:
        raise Fault(
            BROKEN,
            f"no link to node {node_id} at {address}: {error.detail}. See the state of both nodes "
            "with `muster nodes`, then copy again",
        ) from error

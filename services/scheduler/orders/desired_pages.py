"""The full desired state of a node, in pages that are all as of one sequence.

An answer of one page is not kept. A longer one is kept until its last page is fetched, or until
others need its memory. The agent's side is in `services/node_agent`.
"""

from typing import Final

import msgspec

from libs.common.messages import (
    PAGE_BYTES_MAX,
    Desired,
    DesiredAsk,
    Order,
    StartOrder,
    StopOrder,
    by_bytes,
)
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from services.scheduler.orders.orders import desired

# Bound on all kept answers together; the newest is kept whatever its size. A node whose answer was
# dropped starts again.
KEPT_BYTES_MAX: Final = 64 << 20

_encode = msgspec.msgpack.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    """One full desired state, encoded page by page."""

    epoch: int
    incarnation: int
    seq: int
    pages: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(len(page) for page in self.pages)


class DesiredPages:
    """The answers that nodes are fetching, by node, oldest first."""

    def __init__(self, page_bytes: int = PAGE_BYTES_MAX) -> None:
        self.page_bytes = page_bytes
        self.kept: dict[NodeId, Answer] = {}

    def answer(self, cluster: Cluster, node_id: NodeId, epoch: int, ask: DesiredAsk) -> bytes:
        """Return the requested page, or the first page of a new answer if the requested one is not
        kept.
        """
        found = self.kept.get(node_id)
        page = ask.page
        if (
            found is None
            or page <= 0
            or (found.epoch, found.seq) != (epoch, ask.seq)
            or page >= len(found.pages)
        ):
            found, page = self._prepare(cluster, node_id, epoch), 0
        if page == len(found.pages) - 1:
            self.kept.pop(node_id, None)
        return found.pages[page]

    def _prepare(self, cluster: Cluster, node_id: NodeId, epoch: int) -> Answer:
        self.kept.pop(node_id, None)
        whole = desired(cluster, node_id, epoch)
        answer = Answer(epoch, whole.incarnation, whole.seq, _paged(whole, self.page_bytes))
        if len(answer.pages) > 1:
            self.kept[node_id] = answer
        while len(self.kept) > 1 and sum(one.size for one in self.kept.values()) > KEPT_BYTES_MAX:
            del self.kept[next(iter(self.kept))]
        return answer


def _paged(whole: Desired, page_bytes: int) -> tuple[bytes, ...]:
    orders: tuple[Order, ...] = (*whole.starts, *whole.stops)
    parts = by_bytes(orders, page_bytes)
    return tuple(
        _encode(_page(whole, part, number, len(parts))) for number, part in enumerate(parts)
    )


def _page(whole: Desired, part: list[Order], number: int, count: int) -> Desired:
    starts = tuple(order for order in part if isinstance(order, StartOrder))
    stops = tuple(order for order in part if isinstance(order, StopOrder))
    # A few per device.
    controls = () if number else whole.controls
    return Desired(
        epoch=whole.epoch,
        incarnation=whole.incarnation,
        seq=whole.seq,
        starts=starts,
        stops=stops,
        page=number,
        pages=count,
        controls=controls,
        keeps=() if number else whole.keeps,
    )

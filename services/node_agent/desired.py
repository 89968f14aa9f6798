"""Fetch the node's full desired state from the scheduler, page by page.

Pages of another answer start the fetch over: the scheduler has changed, or dropped the answer that
was begun. The scheduler's side: `services/scheduler/orders/desired_pages.py`. Tests:
tests/unit/test_desired_pages.py, tests/integration/test_desired_large.py.
"""

import logging
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages import Desired, DesiredAsk
from libs.common.model import NodeId
from libs.common.transport.bus import Bus

PAGE_TIMEOUT_S: Final = 2.0
# Pages of one fetch, restarts included. At 512 KiB a page this is far more than one node can need.
ASKS_MAX: Final = 1_024

_desired = msgspec.msgpack.Decoder(Desired)
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class DesiredState:
    """The desired state of one node, fetched when the agent asks for it."""

    def __init__(self, bus: Bus, node_id: NodeId) -> None:
        self.bus = bus
        self.node_id = node_id
        self.asking = False

    async def ask(self, incarnation: int) -> Desired | None:
        """Return the desired state; None if it cannot be had now, or a fetch is under way."""
        if self.asking:
            return None
        self.asking = True
        try:
            return await fetch(self.bus, self.node_id, incarnation)
        except Unavailable as error:
            logger.warning("cannot fetch the desired state: %s", error)
            return None
        finally:
            self.asking = False


async def fetch(bus: Bus, node_id: NodeId, incarnation: int) -> Desired:
    """Return the full desired state as of one sequence.

    Raises Unavailable if a page does not come, or no answer is complete within `ASKS_MAX` pages.
    """
    pages: list[Desired] = []
    for _ in range(ASKS_MAX):
        ask = DesiredAsk(node_id, incarnation, pages[0].seq if pages else 0, len(pages))
        pages = _with(pages, await _page(bus, ask))
        if pages and len(pages) == pages[0].pages:
            return _whole(pages)
    raise Unavailable(f"the desired state of {node_id} was not complete within {ASKS_MAX} pages")


async def _page(bus: Bus, ask: DesiredAsk) -> Desired:
    answer = await bus.request(subjects.desired(ask.node_id), _encode(ask), PAGE_TIMEOUT_S)
    try:
        return _desired.decode(answer)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the desired state of {ask.node_id} cannot be read: {error}") from error


def _with(pages: list[Desired], page: Desired) -> list[Desired]:
    """Return the pages with this one added.

    A page out of order drops them all; a first page starts over.
    """
    if page.page == 0:
        return [page]
    follows = bool(pages) and _answer_of(page) == _answer_of(pages[0]) and page.page == len(pages)
    return [*pages, page] if follows else []


def _answer_of(page: Desired) -> tuple[int, int, int, int]:
    return page.epoch, page.incarnation, page.seq, page.pages


def _whole(pages: list[Desired]) -> Desired:
    first = pages[0]
    starts = tuple(order for page in pages for order in page.starts)
    stops = tuple(order for page in pages for order in page.stops)
    return Desired(
        epoch=first.epoch,
        incarnation=first.incarnation,
        seq=first.seq,
        starts=starts,
        stops=stops,
        controls=first.controls,
        keeps=first.keeps,
    )

"""Fetches the node's full desired state from the scheduler, page by page, and gives only the whole.

A page of another answer (the scheduler changed, or no longer keeps the one that was begun) starts
it over. Twin at the scheduler's end: `services/scheduler/orders/desired_pages.py`. Test:
tests/unit/test_desired_pages.py, tests/integration/test_desired_large.py.
"""

from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages import Desired, DesiredAsk
from libs.common.model import NodeId
from libs.common.transport.bus import Bus

PAGE_TIMEOUT_S: Final = 2.0
# Of one fetch, with all that it starts over; at 512 KiB a page this is far above what one node can
# account for.
ASKS_MAX: Final = 1_024

_desired = msgspec.msgpack.Decoder(Desired)
_encode = msgspec.msgpack.Encoder().encode


async def fetch(bus: Bus, node_id: NodeId, incarnation: int) -> Desired:
    """The whole, as of one sequence.

    Raises Unavailable when a page does not come, or the whole is never had at once.
    """
    pages: list[Desired] = []
    for _ in range(ASKS_MAX):
        ask = DesiredAsk(node_id, incarnation, pages[0].seq if pages else 0, len(pages))
        pages = _with(pages, await _page(bus, ask))
        if pages and len(pages) == pages[0].pages:
            return _whole(pages)
    raise Unavailable(f"the desired state of {node_id} was not had whole within {ASKS_MAX} pages")


async def _page(bus: Bus, ask: DesiredAsk) -> Desired:
    answer = await bus.request(subjects.desired(ask.node_id), _encode(ask), PAGE_TIMEOUT_S)
    try:
        return _desired.decode(answer)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the desired state of {ask.node_id} cannot be read: {error}") from error


def _with(pages: list[Desired], page: Desired) -> list[Desired]:
    """Pages of one answer without a gap; another answer takes the place of the one that
    was begun.
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
        first.epoch, first.incarnation, first.seq, starts, stops, controls=first.controls
    )

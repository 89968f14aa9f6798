"""Facts of the log, page after page, or as they are recorded.

A follower continues behind the last fact that it has given, over broken connections. Tests:
tests/integration/test_client_cluster.py, tests/integration/test_client_http.py.
"""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

from libs.client import calls
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.pauses import pause
from libs.client.errors import ApiError, RateLimited, Unavailable, asked_pause_s
from libs.client.lines import LineBuffer
from libs.client.models.log import Event, EventList
from libs.client.sequence import Sequence
from libs.client.timing import SILENCE_S, Patience

PAGE_ROWS: Final = 1_000
# The facts that end a job.
LAST: Final = ("job.closed", "job.rejected")


async def listed(
    connection: AsyncConnection, query: Mapping[str, object], after: int
) -> AsyncIterator[Event]:
    """Yield the recorded facts, page after page."""
    while True:
        call = calls.reading(calls.path_of("events"), {**query, "after": after, "limit": PAGE_ROWS})
        page = await connection.ask(call, EventList)
        for event in page.events:
            yield event
        if not page.more or page.next <= after:
            return
        after = page.next


async def followed(
    connection: AsyncConnection, query: Mapping[str, object], after: int
) -> AsyncIterator[Event]:
    """Yield the facts after a commit as they are recorded; those of a job until its end.

    For a job, the request always includes the facts that end it. Those that the query does not
    name are not yielded.
    """
    kinds = tuple(filter(None, str(query.get("kind") or "").split(",")))
    if kinds and query.get("job"):
        query = {**query, "kind": ",".join((*kinds, *LAST))}
    sequence = Sequence(after)
    patience = Patience(connection.timing.away_s)
    while True:
        call = calls.reading(
            calls.path_of("events"),
            {**query, "after": sequence.after, "follow": True},
            timeout_s=SILENCE_S,
        )
        fault: ApiError = Unavailable(f"{call.what} ended")
        try:
            async with connection.opened(call) as answer:
                sequence.begin()
                buffer = LineBuffer()
                async for piece in answer.aiter_bytes():
                    patience.reset()
                    for line in filter(None, buffer.feed(piece)):
                        event = calls.decoded(line, Event, call.what)
                        if sequence.is_new(event.seq):
                            if event.kind.startswith(kinds or ("",)):
                                yield event
                            if query.get("job") and event.kind in LAST:
                                return
        except (Unavailable, RateLimited) as error:
            fault = error
        pause_s = patience.pause_s(time.monotonic(), asked_pause_s(fault))
        if pause_s is None:
            raise fault
        await pause(pause_s)

"""One request to a model while it waits, and while a replica answers it."""

import asyncio
from collections.abc import Awaitable, Callable

from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.serving.late_binding import Ticket


class Request:
    """A request in its model's queue, and what is needed to learn from its answer.

    `size` and `script` are those of its text; `size` is 0 if its tokens say nothing about text.
    `tries` counts the replicas that it was or will be sent to. `first_ns` is the time of the first
    piece of a streamed answer, 0 before it, and `events` counts the pieces. `has_begun`: a replica
    sent a first piece, also if its stream broke later. `tell` sends a comment
    to the client of a stream. `begun` is what `OpenRequests` needs of it.
    """

    __slots__ = (
        *("begun", "events", "first_ns", "future", "has_begun", "script", "size"),
        *("tell", "ticket", "tries", "uncharged"),
    )

    def __init__(self, ticket: Ticket[Endpoint], size: int, script: str) -> None:
        self.ticket = ticket
        self.size = size
        self.script = script
        self.tries = 0
        self.begun = 0
        self.uncharged = 0
        self.first_ns = 0
        self.has_begun = False
        self.events = 0
        self.tell: Callable[[str], Awaitable[None]] | None = None
        self.future: asyncio.Future[ApiError | None] | None = None

    def answer(self, error: ApiError | None) -> None:
        """End the wait of this request: it has a replica, or gets this error."""
        if self.future is not None and not self.future.done():
            self.future.set_result(error)

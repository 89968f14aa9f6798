"""Sends a request to a second replica while the first one has not begun to answer.

The answer that begins first goes to the client, and the other is cancelled. Until then nothing was
sent to the client, so it sees one answer, and its tenant pays for one. The rules are
services/api_gateway/serving/hedging.py and retry_budget.py. Tests:
tests/integration/test_openai_hedges.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.call import (
    CLIENT_ERROR,
    EVENT_STREAM,
    Call,
    events_in,
)
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.guard import Guard
from services.api_gateway.openai.model_queue import ModelQueue
from services.api_gateway.openai.model_request import Request
from services.api_gateway.openai.replica_exchange import Answered
from services.api_gateway.openai.replica_failure import ReplicaFailed
from services.api_gateway.openai.upstream import FAILURES, unprocessed
from services.api_gateway.serving.fairness import SECOND_NS
from services.api_gateway.serving.loads import Sent

# Bytes of comments before the first event of a second replica; then it loses.
COMMENTS_MAX: Final = 64 << 10


class Opened(NamedTuple):
    """An answer whose headers have come, and the bytes of it that were read already."""

    response: Answered
    first: bytes = b""


Post = Callable[[Endpoint], Awaitable[Opened]]


class Hedge:
    """The second try of one request. It begins when the first replica is late, if it may.

    `opened` is the second replica's answer, as soon as it is the one for the client: then the
    request's own task, which waits for the first replica, is cancelled. `is_free`: the second
    replica did no work.
    """

    def __init__(
        self, call: Call, queue: ModelQueue, asked: Request, post: Post, guard: Guard
    ) -> None:
        self.call = call
        self.queue = queue
        self.asked = asked
        self.post = post
        self.opened: Opened | None = None
        self.sent: Sent[Endpoint] | None = None
        self.is_free = True
        self._guard = guard
        self._is_awaited = False
        self._is_taken = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin_after(self, after_ns: int) -> None:
        """Begin after this time, unless the first replica answers before."""
        self._timer = self._guard.loop.call_later(after_ns / SECOND_NS, self._begin)

    def _begin(self) -> None:
        self.sent = self.queue.tries.begin(self.asked)
        if self.sent is not None:
            self.is_free = False
            self._task = self._guard.loop.create_task(self._run(self.sent))
            # Not at the end of the task's own code: a task that is cancelled at once runs none.
            self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Count the request at the second replica no longer, unless it answers."""
        if self.opened is None and self.sent is not None:
            self.queue.tries.withdraw(self.sent)

    async def _run(self, sent: Sent[Endpoint]) -> None:
        response = None
        try:
            response, _ = await self.post(sent.replica)
            first = await self._first_bytes(response)
            if not self.call.status:
                self.opened = Opened(response, first)
                self._win()
        except (ReplicaFailed, ApiError, *FAILURES) as error:
            # The first replica may still answer.
            self.is_free = unprocessed(error) or getattr(error, "is_free", False)
        finally:
            if self.opened is None and response is not None:
                response.close()

    async def _first_bytes(self, response: Answered) -> bytes:
        """Return the bytes up to the first event of a stream, or all bytes of another answer."""
        if response.status >= CLIENT_ERROR:
            raise ReplicaFailed(f"answered {response.status}", is_free=True)
        if response.content_type != EVENT_STREAM:
            return await self.call.read(response.content)
        first = b""
        while not events_in(first) and len(first) < COMMENTS_MAX:
            piece = await response.content.readany()
            if not piece:
                raise ReplicaFailed("ended its stream before the first event")
            first += piece
        return first

    def _win(self) -> None:
        if not self._is_awaited:
            self.queue.tries.second_answers(self.asked)
            self._guard.task.cancel()

    async def answers(self) -> bool:
        """Return whether the second replica answers; wait for it if it was asked.

        Call it when the first replica failed.
        """
        self._is_awaited = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task
        return self.opened is not None

    def take(self) -> Sent[Endpoint]:
        """Return the request's place at the second replica, whose answer is the one to relay."""
        assert self.sent is not None, "the second replica has not answered"
        self._is_taken = True
        return self.sent

    async def answer(self) -> Opened:
        """Return the second replica's answer."""
        assert self.opened is not None, "the second replica has not answered"
        return self.opened

    def close(self) -> None:
        """End the second try, because the first one answers or the request is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.sent is None:
            return
        if self._task is not None and self.opened is None:
            self._task.cancel()
        elif self.opened is not None and self.sent is not None and not self._is_taken:
            self._is_taken = True
            self.opened.response.close()
            self.queue.tries.withdraw(self.sent)

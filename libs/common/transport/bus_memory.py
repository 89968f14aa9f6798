"""The bus in memory: one object that all services of one process share.

It delivers in order, through the event loop, never inside the call. Simulations wrap it to lose and
delay messages (tests/sim/faults.py).
"""

import asyncio
import logging
from collections import deque

from libs.common.errors import NoListener, Unavailable
from libs.common.transport.bus import (
    CONCURRENT_MAX,
    MESSAGE_BYTES_MAX,
    Handler,
    RequestFailed,
    too_large,
)

logger = logging.getLogger(__name__)


def matches(pattern: str, subject: str) -> bool:
    """Return whether the subject matches: `*` is one token, a last `>` one or more."""
    wants, has = pattern.split("."), subject.split(".")
    if wants[-1] == ">":
        wants, has = wants[:-1], has[: len(wants) - 1] if len(has) >= len(wants) else []
    return len(wants) == len(has) and all(w in ("*", h) for w, h in zip(wants, has, strict=True))


class Subscription:
    """One listener, which handles its messages one at a time."""

    def __init__(self, pattern: str, handler: Handler, queue: str = "") -> None:
        self.queue = queue
        self.pattern = pattern
        self.handler = handler
        self.waiting: deque[tuple[str, bytes, asyncio.Future[bytes] | None]] = deque()
        self.task: asyncio.Task[None] | None = None

    def offer(self, subject: str, data: bytes, answer: asyncio.Future[bytes] | None) -> None:
        self.waiting.append((subject, data, answer))
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        while self.waiting:
            subject, data, answer = self.waiting.popleft()
            await _handle(self.handler, subject, data, answer)


class ConcurrentSubscription(Subscription):
    """One listener that handles up to `places` messages at once. The others wait in order."""

    def __init__(self, pattern: str, handler: Handler, queue: str, places: int) -> None:
        super().__init__(pattern, handler, queue)
        self.places = asyncio.Semaphore(places)
        self.tasks: dict[asyncio.Task[None], None] = {}

    def offer(self, subject: str, data: bytes, answer: asyncio.Future[bytes] | None) -> None:
        task = asyncio.get_running_loop().create_task(self._handle(subject, data, answer))
        self.tasks[task] = None
        task.add_done_callback(lambda done: self.tasks.pop(done, None))

    async def _handle(
        self, subject: str, data: bytes, answer: asyncio.Future[bytes] | None
    ) -> None:
        async with self.places:
            await _handle(self.handler, subject, data, answer)


def refused(subject: str, data: bytes) -> str:
    """Log and return why a server would refuse the message; empty if it would accept it."""
    if len(data) <= MESSAGE_BYTES_MAX:
        return ""
    why = too_large(subject, len(data), MESSAGE_BYTES_MAX)
    logger.error(why)
    return why


async def _handle(
    handler: Handler, subject: str, data: bytes, answer: asyncio.Future[bytes] | None
) -> None:
    try:
        reply = await handler(subject, data)
    except RequestFailed as failed:
        if answer is not None and not answer.done():
            answer.set_exception(Unavailable(failed.text))
        return
    _settle(subject, answer, reply)


def _settle(subject: str, answer: asyncio.Future[bytes] | None, reply: bytes | None) -> None:
    if answer is None or reply is None or answer.done():
        return
    if why := refused(f"the answer to {subject}", reply):
        answer.set_exception(Unavailable(why))
    else:
        answer.set_result(reply)


class MemoryBus:
    """A bus in memory; see `bus.Bus`."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []

    async def publish(self, subject: str, data: bytes) -> None:
        if refused(subject, data):
            return
        for subscription in self._listeners(subject):
            subscription.offer(subject, data, None)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        if why := refused(subject, data):
            raise Unavailable(why)
        listeners = self._listeners(subject)
        if not listeners:
            raise NoListener(f"no service listens on {subject}: check that it runs")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        for subscription in listeners:
            subscription.offer(subject, data, answer)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise Unavailable(f"no answer on {subject} within {timeout_s} s") from error

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        concurrent: bool = False,
        queue: str = "",
        places: int = CONCURRENT_MAX,
    ) -> None:
        kept = (
            ConcurrentSubscription(subject, handler, queue, places)
            if concurrent
            else Subscription(subject, handler, queue)
        )
        self.subscriptions.append(kept)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a listener that has ended. Its waiting messages are lost."""
        self.subscriptions.remove(subscription)
        if subscription.task is not None:
            subscription.task.cancel()

    def _listeners(self, subject: str) -> list[Subscription]:
        """Return the listeners of a subject, only the first of each queue."""
        found = [s for s in self.subscriptions if matches(s.pattern, subject)]
        queues = {s.queue: s for s in reversed(found)}
        return [s for s in found if not s.queue or queues[s.queue] is s]

"""Tells clients how long a model takes to wake, while their requests wait for its first replica.

A stream gets comments, which OpenAI's clients skip; its answer's status is 200 from then on, so a
later failure is reported within the stream. Another request whose wait would be too long is refused
with the expected time. Tests: tests/integration/test_openai_waking.py.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from services.api_gateway.openai import queue_errors
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.model_request import Request
from services.api_gateway.serving.fairness import SECOND_NS
from services.api_gateway.serving.wake_time import WakeTime

if TYPE_CHECKING:
    from services.api_gateway.openai.model_queue import ModelQueue

# A shorter wait needs no comment.
FIRST_S: Final = 1.0
EVERY_S: Final = 5.0
# A refused request counts as demand for so long, because reports to the scheduler may be lost.
ASKED_NS: Final = 5 * SECOND_NS
# A wake that no request waits for any more is not measured after this time.
FORGOTTEN_NS: Final = 600 * SECOND_NS


class Waking:
    """The wakes of one queue's model. `times` learns how long they take."""

    def __init__(self, queue: "ModelQueue") -> None:
        self.queue = queue
        self.times = WakeTime()
        self._asked_until_ns = 0
        self._seen_ns = 0

    def begin(self, request: Request, is_first: bool, now_ns: int) -> None:
        """Note that a request begins to wait for a first replica.

        Raises ApiError 503 if the model is not expected to be ready within the request's time. The
        model wakes nevertheless.
        """
        if is_first and not self.is_asked(now_ns):
            self.times.begin(now_ns)
        self._seen_ns = now_ns
        self.queue.gateway.reporter.wake()
        left_ns = self.times.left_ns(now_ns)
        wait_ns = self.queue.rules.bounds.wait_ns
        if left_ns is not None and left_ns > wait_ns and request.tell is None:
            self._asked_until_ns = now_ns + ASKED_NS
            raise queue_errors.wakes(self.queue.name, self.retry_after_s(now_ns))

    def refresh(self, is_ready: bool, is_waited_for: bool) -> None:
        """Note that the model is awake, also if no request waits for it any more.

        Forget a wake that is not waited for any more. Call it every few seconds.
        """
        now_ns = self.queue.now_ns()
        if is_ready:
            self.times.woken(now_ns)
        elif not is_waited_for and now_ns - self._seen_ns > FORGOTTEN_NS:
            self.times.forget()

    def is_asked(self, now_ns: int) -> bool:
        """Return whether a request was refused so recently that it counts as demand."""
        return now_ns < self._asked_until_ns

    def retry_after_s(self, now_ns: int) -> int:
        """Return after which time the model should be ready."""
        return self.times.left_s(now_ns) or queue_errors.STARTING_S

    async def told(self, request: Request) -> ApiError | None:
        """Wait for the request's future, and tell its client meanwhile when it is expected."""
        assert request.future is not None and request.tell is not None, "the request is a stream"
        pause_s = FIRST_S
        while True:
            await asyncio.wait((request.future,), timeout=pause_s)
            if request.future.done() or self.queue.ready():
                return await request.future
            await request.tell(self._comment())
            pause_s = EVERY_S

    def _comment(self) -> str:
        left_s = self.times.left_s(self.queue.now_ns())
        return f"waking, expected in {left_s} s" if left_s is not None else "waking"

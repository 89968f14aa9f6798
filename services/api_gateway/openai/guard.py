"""Ends a request whose client has disconnected, or whose replica has sent nothing for too long.

Both cancel the request's own task, wherever it waits, and so close the connection to the replica; a
model server then stops generating. Raw ASGI code must watch for a disconnect itself, also when it
does not stream. The gateway's own server calls `watchers` when the client disconnects; elsewhere a
task waits for it. Each piece of an answer renews the patience with an assignment, not with a timer
of its own. The time in which the client takes what it is sent is not the replica's: how long that
may last is bounded by the server, for each protocol. Tests: tests/integration/
test_openai_failures.py and test_rpc_models.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Message, Receive, Send

GONE: Final = "gone"
SILENT: Final = "silent"
# While the client takes what it is sent, the patience is checked no more often than this.
SENDING_LOOK_S: Final = 1.0


class Guard:
    """The guard of the current task, until `close`.

    `reason` says why the guard cancelled the task. It is empty if something else did. `task` runs
    the request, in `loop`. An answer may take `answer_s` to begin.
    """

    def __init__(
        self,
        receive: Receive,
        patience_s: float,
        watchers: list[Callable[[], None]] | None = None,
    ) -> None:
        self.reason = ""
        self.patience_s = self.answer_s = patience_s
        self.loop = asyncio.get_running_loop()
        self._heard_s = self.loop.time()
        # When the client was last sent something that it has not taken yet; 0 for never.
        self._sending_since_s = 0.0
        self._open = True
        task = asyncio.current_task(self.loop)
        assert task is not None
        self.task = task
        self._timer = self.loop.call_later(patience_s, self._check_patience)
        if watchers is not None:
            watchers.append(self._gone)
        else:
            # This task ends with the answer, because the server then reports a disconnect.
            self._watch = self.loop.create_task(self._watched(receive))

    def heard(self, patience_s: float) -> None:
        """Note that the replica sent something; the next piece may take `patience_s`."""
        self._heard_s = self.loop.time()
        if patience_s != self.patience_s:
            self.patience_s = patience_s
            self._timer.cancel()
            self._timer = self.loop.call_later(patience_s, self._check_patience)

    def next_try(self) -> None:
        """Note that another replica is tried: its answer may again take `answer_s` to begin."""
        self.heard(self.answer_s)

    def excluding(self, send: Send) -> Send:
        """Return a `send` whose time does not count as silence of the replica."""

        async def timed(message: Message) -> None:
            self._sending_since_s = self.loop.time()
            try:
                await send(message)
            finally:
                self._heard_s += self.loop.time() - self._sending_since_s
                self._sending_since_s = 0.0

        return timed

    def close(self) -> None:
        self._open = False
        self._timer.cancel()

    async def _watched(self, receive: Receive) -> None:
        while self._open:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._end(GONE)
                return

    def _gone(self) -> None:
        self._end(GONE)

    def _check_patience(self) -> None:
        until_s = self._sending_since_s or self.loop.time()
        left_s = self._heard_s + self.patience_s - until_s
        if left_s <= 0:
            self._end(SILENT)
        elif self._open:
            # Nothing counts down during a send, so the time left may be a moment at each check.
            wait_s = max(left_s, SENDING_LOOK_S) if self._sending_since_s else left_s
            self._timer = self.loop.call_later(wait_s, self._check_patience)

    def _end(self, reason: str) -> None:
        if self._open:
            self._open = False
            self.reason = reason
            self.task.cancel()

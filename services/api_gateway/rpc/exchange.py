"""One request to the gateway's own app, in this process.

The app runs in a task of its own, as it does behind the HTTP server: when the caller is gone it is
told of a disconnect and ends by itself, so no commit is cut off in the middle. Both directions are
bounded, each by itself and all calls together. Tests: tests/unit/test_rpc_exchange.py.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Scope

from libs.common.errors import Unavailable
from services.api_gateway.problems import Problem
from services.api_gateway.rpc import status
from services.api_gateway.rpc.call import Ended
from services.api_gateway.rpc.held_bytes import WHOLE_TIMES, HeldBytes
from services.api_gateway.rpc.streams import check_size

T = TypeVar("T")

# Pieces that wait in each direction.
PIECES_MAX: Final = 4
# An answer that is kept whole.
WHOLE_BYTES_MAX: Final = 128 << 20

logger = logging.getLogger(__name__)


class Pipe(Generic[T]):
    """A bounded queue that can be closed. What is put into a closed one is dropped."""

    def __init__(self, most: int = PIECES_MAX) -> None:
        self.most = most
        self.is_closed = False
        self._items: deque[T] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, item: T) -> None:
        """Add an item; wait while the pipe is full."""
        while len(self._items) >= self.most and not self.is_closed:
            self._room.clear()
            await self._room.wait()
        if not self.is_closed:
            self._items.append(item)
            self._news.set()

    async def get(self) -> T | None:
        """Return the next item, or None at the end of a closed pipe."""
        while not self._items:
            if self.is_closed:
                return None
            self._news.clear()
            await self._news.wait()
        item = self._items.popleft()
        self._room.set()
        return item

    def close(self) -> None:
        """End the pipe after the items that are in it."""
        self.is_closed = True
        self._news.set()
        self._room.set()


class Exchange:
    """A request and its answer. `given` are the pieces of a body that are not known yet.

    They follow `body`, and an empty one ends it. `held` counts the bytes that wait.
    """

    def __init__(
        self,
        app: ASGIApp,
        scope: Scope,
        body: bytes = b"",
        given: Pipe[bytes] | None = None,
        held: HeldBytes | None = None,
    ) -> None:
        self.scope = scope
        self.status = 0
        self.is_whole = False
        self.headers: dict[str, str] = {}
        self.body = body
        self.given = given
        self.held = held or HeldBytes()
        self.answered: Pipe[bytes] = Pipe()
        self._fault: Ended | None = None
        self._is_sent = False
        self._begun = asyncio.Event()
        self._gone = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(app))

    async def _run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self._receive, self._send)
        except ClientDisconnect:
            logger.debug("the client of %s has gone", self.scope["path"])
        finally:
            self._begun.set()
            self.answered.close()

    async def begun(self) -> None:
        """Wait until the answer has begun, or there will be none (status 0)."""
        await self._begun.wait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Return the body of the answer as it comes.

        Raises Unavailable if it breaks off, Ended if there is no room for it.
        """
        while (piece := await self.answered.get()) is not None:
            try:
                yield piece
            finally:
                self.held.give_back(len(piece))
        if self._fault is not None:
            raise self._fault
        if not self.is_whole:
            raise Unavailable("the answer broke off: call again, and see the gateway's log")

    async def whole(self, most: int = WHOLE_BYTES_MAX) -> bytes:
        """Return the whole body of the answer.

        Raises Unavailable if it breaks off, Oversized if it has more than `most` bytes, and Ended
        if there is no room for it.
        """
        body = bytearray()
        async for piece in self.pieces():
            check_size(len(body) + len(piece), most)
            try:
                self.held.keep(WHOLE_TIMES * (len(body) + len(piece)))
            except Problem as problem:
                raise Ended(status.of_problem(problem)) from problem
            body += piece
        return bytes(body)

    def leave(self) -> None:
        """Tell the app that the client has gone, and wait for its answer no longer."""
        self._gone.set()
        self._begun.set()
        self.answered.close()
        if self.given is not None:
            self.given.close()

    async def _piece(self) -> bytes | None:
        """Return the next piece of the body; None if the client has gone."""
        if self.given is None or self.body:
            piece, self.body = self.body, b""
            return piece
        given = await self.given.get()
        self.held.give_back(len(given or b""))
        return given

    async def _receive(self) -> Message:
        if not self._is_sent:
            piece = await self._piece()
            if piece is not None:
                self._is_sent = self.given is None or not piece
                return {"type": "http.request", "body": piece, "more_body": not self._is_sent}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = headers_of(message)
            self._begun.set()
            return
        self.is_whole = not message.get("more_body")
        body = message.get("body")
        if not body or self.answered.is_closed:
            return
        try:
            self.held.take(len(body))
        except Problem as problem:
            self._fault = Ended(status.of_problem(problem))
            self.leave()
            return
        await self.answered.put(bytes(body))


def headers_of(message: Message) -> dict[str, str]:
    """Return the headers of an answer by name."""
    rows: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in rows}


def report(task: "asyncio.Task[Any]", what: str) -> None:
    """Write down an error of the app that no answer told the client of."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed because of a bug", what, exc_info=error)

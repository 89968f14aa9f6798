"""One client's WebSocket below the app: uvicorn's protocol, with two more ways to send.

`send_messages` sends several ready messages with one write. `cut` closes a connection whose client
does not read: uvicorn's own close would wait for it. Both are the app's in the scope, under
EXTENSION. Tests: tests/attack/test_ws_clients.py.
"""

from collections.abc import Sequence
from typing import Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from services.api_gateway.ws.serving import EXTENSION

REASON_BYTES_MAX: Final = 123


class SocketProtocol(WebSocketsSansIOProtocol):
    """The protocol of one WebSocket."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["extensions"][EXTENSION] = self  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, and the scope's reference to it: no cycle stays."""
        super().connection_lost(exc)
        if hasattr(self, "scope"):
            self.scope["extensions"].pop(EXTENSION, None)

    async def send_messages(self, messages: Sequence[bytes]) -> None:
        """Send whole text messages, when the client has read most of the earlier ones.

        Raises ClientDisconnected, which is an OSError.
        """
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        self.transport.write(b"".join(messages))

    def cut(self, code: int, reason: str) -> None:
        """Close now, also if the client reads nothing.

        A client that reads again within a few seconds gets what was written before, and the reason.
        """
        if self.close_sent or self.disconnected or self.conn.state is not State.OPEN:
            return
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.send_close(code, reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore"))
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.writable.set()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

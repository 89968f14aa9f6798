"""One client's connection: bounds before there is a request, and fewer system calls for answers.

This is uvicorn's protocol over a transport of our own. Bounds: the head of a request must arrive
within `head_s` and HEAD_BYTES_MAX; the rest of a body within `head_s` after an answer that did not
wait for it; a WebSocket's handshake within `head_s` after its head. A closed connection is gone
within LINGER_S, whatever the client reads or still sends. A client must read its answer: if it has
taken less than UNREAD_BYTES_MIN within `unread_s` although more waits for it, the connection is
closed, and the request ends. All connections of a gateway share its places (`places.py`).

The server writes the head and the body of an answer separately. The transport gathers what is
written within one turn of the event loop and sends it at once. At most GATHERED_BYTES_MAX wait for
that, so that a client that does not read still slows its writer down. Tests:
tests/integration/test_gateway_connection.py and test_openai_hostile.py, tests/attack/
test_slow_clients.py and test_unread_answers.py.
"""

import asyncio
import struct
import termios
from collections.abc import Iterable
from fcntl import ioctl
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from services.api_gateway.http.heads import Cycle
from services.api_gateway.http.places import Places
from services.api_gateway.problems import MEDIA_TYPE, Problem, render

GATHERED_BYTES_MAX: Final = 64 << 10
# The head may be longer by what the kernel hands over at once.
HEAD_BYTES_MAX: Final = 64 << 10
LINGER_S: Final = 10.0
# A client that takes fewer bytes within `unread_s` does not read: 1 KiB/s with the default.
UNREAD_BYTES_MIN: Final = 64 << 10
# Bounds of a WebSocket's head: its library reads lines of at most 8 KiB and this many headers.
UPGRADE_LINE_MAX: Final = 8_100
UPGRADE_HEADERS_MAX: Final = 100


class Connection(HttpToolsProtocol):
    """A connection that is closed when a request does not arrive in time.

    `_timer` runs while the connection waits for a head. `_rest_timer` runs while it waits for the
    rest of a body after the answer. `_unread_timer` runs while the client has much to read. If
    `_refused`, nothing more is read.
    """

    def __init__(
        self,
        *given: Any,  # noqa: ANN401  what uvicorn gives
        head_s: float,
        unread_s: float,
        places: Places,
        **named: Any,  # noqa: ANN401  what uvicorn gives
    ) -> None:
        super().__init__(*given, **named)
        self.head_s = head_s
        self.unread_s = unread_s
        self.places = places
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._in_body = False
        self._refused = False
        self._upgraded: asyncio.BaseProtocol | None = None
        # Requests that are not answered yet. A client may send the next ones ahead.
        self._cycles: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Gathering(transport))  # type: ignore[arg-type]
        self.places.take(self)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_complete()
        self._rest_complete()
        self._reads()
        for cycle in self._cycles:
            # The library tells only the request that came last.
            cycle.disconnected = True
            cycle.message_event.set()
            for tell in cycle.scope.pop("watchers", ()):  # type: ignore[typeddict-item]
                tell()
        self.places.leave(self)
        self.transport.gone()  # type: ignore[attr-defined]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # the client still sends the rest of a refused request
        super().data_received(data)
        if self._in_head:
            self._await_head()  # most heads come whole, and need no timer
        if self._timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(
                    Problem(
                        431,
                        (
                            f"the request's line and headers are over {HEAD_BYTES_MAX} bytes: "
                            "send fewer or shorter ones"
                        ),
                    )
                )

    def on_message_begin(self) -> None:
        if not self._refused:
            super().on_message_begin()
            self._in_head = True

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        self._head_complete()
        self._in_body = True
        self.places.serve(self)
        self.transport.lingers = True  # type: ignore[attr-defined]
        problem = self._upgrade_problem()
        if problem is not None:
            self._refuse(problem)
            return
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.__class__ = Cycle  # its task runs later
            self._cycles = [each for each in self._cycles if not each.response_complete]
            self._cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refused:
            return
        self._in_body = False
        self._rest_complete()
        self.transport.lingers = False  # type: ignore[attr-defined]
        self.scope["is_complete"] = True  # type: ignore[typeddict-unknown-key]
        # Called when the client disconnects: no task needs to wait for that.
        self.scope["watchers"] = []  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """After an answer that did not wait for the request's body, allow `head_s` for its rest."""
        super().on_response_complete()
        if not self._answers():
            self.places.wait(self)
        if self._in_body and self._rest_timer is None:
            self._rest_timer = self.loop.call_later(self.head_s, self.transport.close)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to the WebSocket library; close it if no handshake begins."""
        if self._refused:
            return
        self.places.wait(self)
        super().handle_websocket_upgrade()
        transport, protocol = self.transport, self.transport.get_protocol()
        self._upgraded = protocol

        def cut() -> None:
            self.places.leave(self)
            if not getattr(protocol, "handshake_initiated", True):
                transport.abort()

        self.loop.call_later(self.head_s, cut)

    def give_way(self) -> None:
        """Close at once, because another connection needs the place.

        A WebSocket that was accepted stays: its channel has a bound of its own.
        """
        if self._upgraded is None or not getattr(self._upgraded, "handshake_initiated", True):
            self.transport.leave()  # type: ignore[attr-defined]

    def pause_writing(self) -> None:
        """Let the answer wait for the client, and begin to look whether it reads."""
        super().pause_writing()
        if self._unread_timer is None:
            self._look_again(self._unread_bytes())

    def resume_writing(self) -> None:
        """Let the answer go on, because the client has read."""
        self._reads()
        super().resume_writing()

    def _look_again(self, unread: int) -> None:
        self._unread_timer = self.loop.call_later(self.unread_s, self._check_reads, unread)

    def _check_reads(self, before: int) -> None:
        unread = self._unread_bytes()
        if before - unread < UNREAD_BYTES_MIN:
            self._unread_timer = None
            self.transport.abort()
        else:
            self._look_again(unread)

    def _reads(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _unread_bytes(self) -> int:
        """Return how many bytes of answers wait here and in the kernel for the client."""
        sock = self.transport.get_extra_info("socket")
        in_kernel = ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        waiting: int = struct.unpack("i", in_kernel)[0]
        return waiting + self.transport.get_write_buffer_size()

    def _upgrade_problem(self) -> Problem | None:
        """Return what is wrong with a WebSocket request; None if it is right.

        uvicorn would not answer a faulty one.
        """
        if not self._should_upgrade():
            return None
        if self.parser.get_method() != b"GET" or _has_body(self.headers):
            return Problem(
                400,
                (
                    "a request for a WebSocket is a GET without a body: leave out the header "
                    "Upgrade, or the body"
                ),
            )
        if any(
            len(name) + len(value) + 2 > UPGRADE_LINE_MAX
            for name, value in [(b"GET ", self.url + b" HTTP/1.1"), *self.headers]
        ):
            return Problem(
                431,
                f"a line of a WebSocket's head is over {UPGRADE_LINE_MAX} bytes: send shorter ones",
            )
        if len(self.headers) > UPGRADE_HEADERS_MAX:
            return Problem(
                431,
                (
                    f"a WebSocket's head has {len(self.headers)} headers: send at most "
                    f"{UPGRADE_HEADERS_MAX}"
                ),
            )
        return None

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._too_late)

    def _head_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest_complete(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self._answers():
            self._await_head()  # of the next request, which may wait for this answer
        elif self._head_bytes:
            self._refuse(
                Problem(
                    408, f"the request's line and headers were not complete after {self.head_s:g} s"
                )
            )
        else:
            self.transport.close()

    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem and close. If another answer is under way, only close."""
        self._refused = True
        self._head_complete()
        self.places.wait(self)
        if self._answers():
            self.transport.abort()
            return
        body = render(problem)
        head = (
            f"HTTP/1.1 {problem.status} \r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: "
            f"{len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.lingers = True  # type: ignore[attr-defined]
        self.transport.write(head.encode() + body)
        self.transport.close()


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )


class Gathering:
    """A transport that gathers writes. All other methods are those of the real transport.

    `lingers`: the client may still be sending its request. It would not read the answer if its
    bytes met a closed connection.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.lingers = False
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._closed = False
        self._lingering: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes > GATHERED_BYTES_MAX:
            self._flush()

    def close(self) -> None:
        if self.is_closing():
            return
        self._flush()
        self._closed = True
        if self.lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        if self.lingers or self._transport.get_write_buffer_size():
            self._lingering = self._loop.call_later(LINGER_S, self._transport.abort)

    def leave(self) -> None:
        """Close in the next turn of the loop, which sends what was written in this one.

        So a client gets its short answer. Of a long one it loses what it has not taken yet.
        """
        self.close()
        self._loop.call_later(0, self._transport.abort)

    def gone(self) -> None:
        """Note that the connection is lost."""
        self._closed = True
        if self._lingering is not None:
            self._lingering.cancel()

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def _flush(self) -> None:
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        if pieces and not self.is_closing():
            self._transport.write(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever else a transport has
        return getattr(self._transport, name)

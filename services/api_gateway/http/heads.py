"""The head of an answer, at less cost than uvicorn's own.

uvicorn searches each header's name and value with a pattern of its own, and copies each into a
list. Here one pattern searches all values. What is unusual goes uvicorn's way: a header that ends
the connection or chooses the encoding, one that must be refused, and all that follows a head.
Tests: tests/integration/test_answer_heads.py.
"""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

# Headers that uvicorn acts on.
UNUSUAL: Final = (b"connection", b"transfer-encoding")
# Answers without a body, whose head has no encoding.
BODILESS: Final = (204, 304)


class Cycle(RequestResponseCycle):
    """One request and its answer."""

    async def send(self, message: Any) -> None:  # noqa: ANN401  an ASGI message
        """Send a message of the app."""
        head = b"" if self.response_started else self._head(message)
        if not head:
            await super().send(message)
            return
        self.response_started = True
        self.waiting_for_100_continue = False
        self.transport.write(head)

    def _head(self, message: Any) -> bytes:  # noqa: ANN401  an ASGI message
        """Return the head, and note how long the body is; empty if uvicorn must send it."""
        if message["type"] != "http.response.start" or not self.keep_alive:
            return b""
        if self.flow.write_paused or self.disconnected:
            return b""
        status, headers = message["status"], [*self.default_headers, *message.get("headers", ())]
        named = dict(headers)
        if status in BODILESS or any(name in named for name in UNUSUAL):
            return b""
        length = named.get(b"content-length")
        if length is None and self.scope["method"] == "HEAD":
            return b""
        if HEADER_VALUE_RE.search(b"\t".join([value for _, value in headers])):
            return b""
        lines = [b"%b: %b\r\n" % header for header in headers]
        if length is None:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self.chunked_encoding = False
            self.expected_content_length = int(length)
        return b"%b%b\r\n" % (STATUS_LINE[status], b"".join(lines))

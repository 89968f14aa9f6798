"""Backend for `bench.gateway`: a minimal model server, so that the backend hardly affects the
figures.

`model_backend.py PORT` is deployed as a model. A stream has CHUNKS chunks, written one by one. With
`"slow":true` in the body the first chunk comes after FIRST_S and each further chunk GAP_S later, as
from a model.
"""

import asyncio
import sys
from typing import Any, Final

import uvloop

CHUNKS: Final = 50
FIRST_S: Final = 0.05
GAP_S: Final = 0.01
_JSON: Final = (
    b'{"id":"c-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"'
    + b"word " * 40
    + b'"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":20,"completion_tokens":50,"total_tokens":70}}'
)
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    % (len(_JSON), _JSON)
)
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_EVENT: Final = _framed(
    b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
)
_USAGE: Final = _framed(
    b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":20,"completion_tokens":50,"total_tokens":70}}\n\n'
)
_END: Final = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Backend(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.data = b""
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            begin = head.find(b"content-length:") + 15
            length = int(head[begin:].split(b"\r\n", 1)[0]) if begin > 15 else 0
            if len(self.data) < end + 4 + length:
                return
            body, self.data = self.data[end + 4 : end + 4 + length], self.data[end + 4 + length :]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if b'"stream":true' not in body:
            self.transport.write(_ANSWER)
            return
        self.transport.write(_HEAD)
        last = _USAGE + _END if b'"include_usage":true' in body else _END
        if b'"slow":true' in body:
            self.loop.call_later(FIRST_S, self._slow, CHUNKS, last)
            return
        for _ in range(CHUNKS):
            self.transport.write(_EVENT)
        self.transport.write(last)

    def _slow(self, left: int, last: bytes) -> None:
        if left:
            self.transport.write(_EVENT)
            self.loop.call_later(GAP_S, self._slow, left - 1, last)
        else:
            self.transport.write(last)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))

"""Writes to a client within one turn of the loop leave at once, in order and whole.

The buffer of unsent bytes has a bound.
"""

import asyncio
from typing import Any

import uvloop

from services.api_gateway.http.connection import GATHERED_BYTES_MAX, Gathering


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.over = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.over.set_result(None)


class Server(asyncio.Protocol):
    """Says `pieces` in the turn in which it is connected, then closes, or gives way to another."""

    def __init__(self, pieces: list[bytes], leaves: bool = False) -> None:
        self.pieces, self.waiting, self.leaves = pieces, [0], leaves

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        found: Any = Gathering(transport)  # type: ignore[arg-type]
        for piece in self.pieces:
            found.write(piece)
            self.waiting.append(found._bytes)
        if self.leaves:
            found.leave()
        found.close()
        found.write(b"this is not read")


def heard(*pieces: bytes, leaves: bool = False) -> tuple[list[bytes], int]:
    """Return the pieces that a client received, and the largest number of bytes that waited."""

    async def run() -> tuple[list[bytes], int]:
        loop, made = asyncio.get_running_loop(), Server(list(pieces), leaves)
        server = await loop.create_server(lambda: made, "127.0.0.1", 0)
        _, client = await loop.create_connection(
            Client, "127.0.0.1", server.sockets[0].getsockname()[1]
        )
        await client.over
        server.close()
        return client.pieces, max(made.waiting)

    return uvloop.run(run())


def test_an_answer_s_head_and_body_are_one_piece() -> None:
    assert heard(b"head", b"body", b"end")[0] == [b"headbodyend"]


def test_much_goes_out_before_the_turn_s_end() -> None:
    pieces, most = heard(*[b"x" * 50_000] * 20)
    assert sum(map(len, pieces)) == 1_000_000 and most <= GATHERED_BYTES_MAX


def test_a_connection_that_gives_way_still_sends_the_answer_that_it_has() -> None:
    assert heard(b"head", b"body", leaves=True)[0] == [b"headbody"]


def test_a_gateway_sends_nothing_to_a_client_that_sends_nothing() -> None:
    assert heard() == ([], 0)

"""A request in this process: bounded both ways, and its app learns that the caller has gone."""

import asyncio
from contextlib import aclosing, nullcontext
from typing import Any

import pytest
from grpc import StatusCode
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from libs.common.errors import Unavailable
from libs.common.open_share import OpenShare
from services.api_gateway.rpc.call import Ended
from services.api_gateway.rpc.exchange import PIECES_MAX, Exchange, Pipe, report
from services.api_gateway.rpc.held_bytes import WHOLE_TIMES, HeldBytes
from services.api_gateway.rpc.streams import Oversized

START = {"type": "http.response.start", "status": 200, "headers": [(b"X-A", b"b")]}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body, piece by piece."""
    await send(START)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        if not message["more_body"]:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return


async def test_a_request_is_answered() -> None:
    exchange = Exchange(echo, {"path": "/"}, b"hi")
    await exchange.begun()
    assert (exchange.status, exchange.headers) == (200, {"x-a": "b"})
    assert await exchange.whole() == b"hi"


async def test_an_answer_above_its_bound_is_not_kept() -> None:
    for most, fits in ((4, True), (3, False)):
        given: Pipe[bytes] = Pipe()
        exchange = Exchange(echo, {"path": "/"}, given=given)
        for piece in (b"ab", b"cd", b""):
            await given.put(piece)
        with nullcontext() if fits else pytest.raises(Oversized, match="3 bytes"):
            assert await exchange.whole(most) == b"abcd"
        exchange.leave()
        await exchange.task


async def test_a_body_comes_in_pieces() -> None:
    given: Pipe[bytes] = Pipe()
    exchange = Exchange(echo, {"path": "/"}, given=given)
    for piece in (b"a", b"b", b""):
        await given.put(piece)
    assert await exchange.whole() == b"ab"


async def test_an_app_learns_that_its_caller_has_gone() -> None:
    exchange = Exchange(echo, {"path": "/"}, given=Pipe())
    await exchange.begun()
    exchange.leave()
    await asyncio.wait_for(exchange.task, 5)
    with pytest.raises(Unavailable):
        await exchange.whole()


async def test_an_app_that_is_left_is_not_waited_for() -> None:
    over = asyncio.Event()

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await over.wait()

    exchange = Exchange(silent, {"path": "/"})
    exchange.leave()
    await asyncio.wait_for(exchange.begun(), 5)
    assert exchange.status == 0
    over.set()
    await exchange.task


async def test_an_answer_waits_for_its_reader() -> None:
    sent = 0

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(START)
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent += 1
        await send({"type": "http.response.body"})

    exchange = Exchange(flood, {"path": "/"})
    await exchange.begun()
    await asyncio.sleep(0.05)
    assert sent == PIECES_MAX
    assert len(await exchange.whole()) == 100


async def test_an_answer_that_breaks_off_is_noticed() -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise KeyError("planted")

    exchange = Exchange(breaks, {"path": "/"})
    found = []
    with pytest.raises(Unavailable, match="broke off"):
        async for piece in exchange.pieces():
            found.append(piece)
    assert found == [b"half"]
    await asyncio.wait([exchange.task])
    assert isinstance(exchange.task.exception(), KeyError)


async def test_a_disconnect_in_the_app_is_no_bug() -> None:
    async def leaves(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    exchange = Exchange(leaves, {"path": "/"})
    await exchange.begun()
    await exchange.task
    assert exchange.status == 0


async def test_a_bug_is_written_down(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("planted")

    exchange = Exchange(fails, {"path": "/"})
    await exchange.begun()
    await asyncio.wait([exchange.task])
    report(exchange.task, "/muster.v1.Jobs/GetJob")
    assert "/muster.v1.Jobs/GetJob failed because of a bug" in caplog.text


async def test_a_closed_pipe_drops_what_comes_later() -> None:
    pipe: Pipe[Any] = Pipe(1)
    await pipe.put(1)
    pipe.close()
    await pipe.put(2)
    assert [await pipe.get(), await pipe.get()] == [1, None]


async def test_waiting_bytes_are_counted_until_they_are_taken() -> None:
    share = OpenShare(100)
    held = HeldBytes(share, "a")
    given: Pipe[bytes] = Pipe()
    exchange = Exchange(echo, {"path": "/"}, body=b"first", given=given, held=held)
    held.take(3)
    await given.put(b"abc")
    await given.put(b"")
    async with aclosing(exchange.pieces()) as pieces:
        assert [piece async for piece in pieces] == [b"first", b"abc"]
    assert share.held == 0
    exchange.leave()


async def test_an_answer_without_room_ends_with_the_reason_and_its_app_is_told() -> None:
    share = OpenShare(100)
    other = HeldBytes(share, "b")
    other.take(90)
    exchange = Exchange(echo, {"path": "/"}, b"x" * 20, held=HeldBytes(share, "a"))
    with pytest.raises(Ended, match="as many bytes at this gateway") as ended:
        await exchange.whole()
    assert ended.value.refusal.code == StatusCode.RESOURCE_EXHAUSTED
    other.close()
    await exchange.task
    assert share.held == 0


async def test_a_whole_answer_is_counted_with_what_is_made_of_it() -> None:
    share = OpenShare(1_000)
    held = HeldBytes(share, "a")
    exchange = Exchange(echo, {"path": "/"}, b"x" * 20, held=held)
    assert len(await exchange.whole()) == 20
    assert share.held == WHOLE_TIMES * 20
    held.close()
    assert share.held == 0

"""Two probers measure a real TCP link; a peer that stalls, lies or was not ordered is named."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from threading import Thread

import pytest
from msgspec.structs import replace

from libs.common.messages import ProbeOrder
from libs.common.model import NodeId
from libs.common.process.clock import SystemClock
from services.node_agent.fabric.probes.allowance import SAVED_NS
from services.node_agent.fabric.probes.frames import DIAL, NONCE_BYTES, SERVE, header, proof
from services.node_agent.fabric.probes.prober import (
    GRACE_S,
    MEET_S,
    USED_UP,
    Measured,
    NoProber,
    TcpProber,
    open_prober,
)

TOKEN = b"t" * 32
PAIR_MS = 200
# All that a bad peer may cost: to meet, the pair's time, and what is on its way.
DEADLINE_S = MEET_S + PAIR_MS / 1_000 + GRACE_S + 0.5
HERE, THERE = "127.0.0.1", "127.0.0.2"


def order(peer: str, address: str, dials: bool, token: bytes = TOKEN) -> ProbeOrder:
    return ProbeOrder(
        test="t",
        number=1,
        peer=NodeId(peer),
        address=address,
        dials=dials,
        token=token,
        pair_ms=PAIR_MS,
        bulk_bytes=64 << 10,
        bulk_count=16,
    )


@pytest.fixture
async def pair() -> AsyncIterator[tuple[TcpProber, TcpProber]]:
    one, other = open_prober(HERE, SystemClock()), open_prober(THERE, SystemClock())
    yield one, other
    await one.close()
    await other.close()


async def both(
    pair: tuple[TcpProber, TcpProber], token: bytes = TOKEN
) -> tuple[Measured, Measured]:
    one, other = pair
    dialled = one.probe(order("other", other.address, dials=True))
    served = other.probe(order("one", one.address, dials=False, token=token))
    found = await asyncio.gather(dialled, served)
    return found[0], found[1]


async def test_both_ends_measure_bandwidth_and_round_trip(
    pair: tuple[TcpProber, TcpProber],
) -> None:
    for found in await both(pair):
        assert found.error == ""
        assert found.received.bandwidth > 1_000_000
        assert found.received.small_bandwidth > 0
        assert 0 < found.received.rtt_ns < 100_000_000
        assert 0 < found.received.received <= 16 * (64 << 10) + 8 * 64 + (300 << 10)


async def test_the_orders_of_a_pair_may_arrive_apart(pair: tuple[TcpProber, TcpProber]) -> None:
    one, other = pair
    dialled = asyncio.ensure_future(one.probe(order("other", other.address, dials=True)))
    await asyncio.sleep(0.2)
    served = await other.probe(order("one", one.address, dials=False))
    assert served.error == "" and (await dialled).error == ""


async def test_a_pair_takes_about_its_time(pair: tuple[TcpProber, TcpProber]) -> None:
    """Bytes end a probe of a fast link before its time is over."""
    one, other = pair
    long = {"bulk_bytes": 64 << 20, "bulk_count": 64}
    begun_s = time.monotonic()
    found = await asyncio.gather(
        one.probe(replace(order("other", other.address, dials=True), **long)),
        other.probe(replace(order("one", one.address, dials=False), **long)),
    )
    assert [each.error for each in found] == ["", ""]
    assert time.monotonic() - begun_s < PAIR_MS / 1_000 + GRACE_S + 0.5


async def test_a_peer_without_the_token_measures_nothing(
    pair: tuple[TcpProber, TcpProber],
) -> None:
    dialled, served = await both(pair, token=b"x" * 32)
    assert "other" in dialled.error and served.error == "one stalled"
    assert dialled.received.received == served.received.received == 0


async def test_without_an_order_a_connection_is_closed_at_once(
    pair: tuple[TcpProber, TcpProber],
) -> None:
    host, port = pair[0].address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await asyncio.wait_for(reader.read(), 1) == b""
    writer.close()


async def test_a_connection_from_another_address_than_the_ordered_one_is_closed(
    pair: tuple[TcpProber, TcpProber],
) -> None:
    one, other = pair
    waiting = asyncio.ensure_future(one.probe(order("other", other.address, dials=False)))
    await asyncio.sleep(0.05)
    host, port = one.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.3", 0))
    assert await asyncio.wait_for(reader.read(), 1) == b""
    writer.close()
    served = await other.probe(order("one", one.address, dials=True))
    assert served.error == "" and (await waiting).error == ""


async def test_an_absent_peer_costs_one_deadline_and_is_named(
    pair: tuple[TcpProber, TcpProber],
) -> None:
    begun_s = time.monotonic()
    found = await pair[0].probe(order("other", f"{THERE}:1", dials=True))
    assert "other" in found.error
    found = await pair[0].probe(order("other", pair[1].address, dials=False))
    assert found.error == "other stalled"
    assert time.monotonic() - begun_s < 2 * DEADLINE_S


async def test_one_probe_runs_at_a_time(pair: tuple[TcpProber, TcpProber]) -> None:
    first = asyncio.ensure_future(pair[0].probe(order("other", pair[1].address, dials=False)))
    await asyncio.sleep(0)
    second = await pair[0].probe(order("other", pair[1].address, dials=True))
    assert second == Measured(error="another probe is under way here", refused=True)
    await first


async def test_an_agent_refuses_probes_beyond_its_time(pair: tuple[TcpProber, TcpProber]) -> None:
    pair[0].allowance.spend(2 * SAVED_NS)
    found = await pair[0].probe(order("other", pair[1].address, dials=True))
    assert found == Measured(error=USED_UP, refused=True)


async def test_an_order_with_an_invalid_address_fails(pair: tuple[TcpProber, TcpProber]) -> None:
    found = await pair[0].probe(order("other", "nowhere", dials=True))
    assert found.error.startswith("other at nowhere")


async def test_an_agent_that_cannot_listen_takes_no_probes() -> None:
    found = await NoProber().probe(order("other", "", dials=True))
    assert found == Measured(error="this agent takes no probes", refused=True)
    await NoProber().close()


def says_nothing(connection: socket.socket) -> None:
    time.sleep(DEADLINE_S)


def floods(connection: socket.socket) -> None:
    connection.sendall((header(b"P", 64) + bytes(64)) * 100)
    while connection.recv(4_096):
        pass


def sends_garbage(connection: socket.socket) -> None:
    connection.sendall(b"\xff" * 100)
    connection.recv(4_096)


def goes_away(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def drips(connection: socket.socket) -> None:
    for byte in header(b"P", 64) + bytes(64):
        connection.send(bytes((byte,)))
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (says_nothing, "stalled"),
        (floods, "broke the protocol: it sent too many pings"),
        (sends_garbage, "broke the protocol: it sent a frame"),
        (goes_away, "broke the protocol: it closed the connection"),
        (drips, "stalled"),
    ],
)
async def test_a_bad_peer_costs_one_deadline_and_is_named(
    pair: tuple[TcpProber, TcpProber], act: Callable[[socket.socket], None], words: str
) -> None:
    """The peer knows the token, because the scheduler ordered it, and misbehaves after that."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        nonce = b"n" * NONCE_BYTES
        with connection:
            connection.sendall(nonce)
            given = connection.recv(4_096)
            connection.sendall(proof(TOKEN, SERVE, nonce, given[:NONCE_BYTES]))
            try:
                act(connection)
            except OSError:
                return

    with socket.create_server((THERE, 0)) as listener:
        peer = Thread(target=serve, args=(listener,), daemon=True)
        peer.start()
        begun_s = time.monotonic()
        address = f"{THERE}:{listener.getsockname()[1]}"
        found = await pair[0].probe(order("other", address, dials=True))
        assert time.monotonic() - begun_s < DEADLINE_S
    assert found.error.startswith("other") and words in found.error


async def test_a_peer_that_says_hello_slowly_keeps_no_other_order_waiting(
    pair: tuple[TcpProber, TcpProber],
) -> None:
    one, other = pair
    waiting = asyncio.ensure_future(one.probe(order("other", other.address, dials=False)))
    await asyncio.sleep(0.05)
    host, port = one.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(THERE, 0))
    nonce = await reader.readexactly(NONCE_BYTES)
    for byte in bytes(NONCE_BYTES) + proof(TOKEN, DIAL, nonce, bytes(NONCE_BYTES)):
        writer.write(bytes((byte,)))
        await asyncio.sleep(0.02)
    assert (await waiting).error == "other stalled"
    found = await both(pair)
    assert [each.error for each in found] == ["", ""]
    writer.close()

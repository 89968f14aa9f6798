"""Hostile peers of a link: each costs one deadline at most, is named, and gains nothing."""

import itertools
import json
import secrets
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from libs.job.transport import handshake as h
from libs.job.transport.access import Refused, SharedKey
from libs.job.transport.errors import Cause, LinkError
from libs.job.transport.frames import HEADER_BYTES, Header, Kind, decode, encode
from libs.job.transport.link import Link
from libs.job.transport.listening import HANDSHAKES_MAX, Listener
from libs.job.transport.memory import allocate
from libs.job.transport.traffic import Options
from libs.job.transport.transports import TcpTransport
from tests.contract.transport_world import cause_of, text

pytestmark = pytest.mark.attack

KEY = secrets.token_bytes(32)
OPTIONS = Options(buffers=2, buffer_bytes=4096, checksums=("crc32",), give_up_s=30)


def side(name: str, key: bytes = KEY) -> TcpTransport:
    return TcpTransport(SharedKey(key, name), OPTIONS)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with side("victim").listen("127.0.0.1") as found:
        yield found


class Hostile:
    """A peer that knows the key, speaks the handshake, and then does as it likes."""

    def __init__(self, listener: Listener, name: str = "mallory", session: str = "") -> None:
        self.stream = socket.create_connection(("127.0.0.1", listener.port), timeout=5)
        self.session = session or secrets.token_hex(h.NONCE_BYTES)
        hello = h.Hello(self.session, 0 if session else -1, 2, 4096, ("crc32",), False, "tcp")
        talk = h.Conversation(self.stream, "victim", time.monotonic() + 5)
        talk.send(hello.pack())
        theirs = talk.take()
        said = h.transcript(hello.pack(), theirs)
        self.proof = SharedKey(KEY, name).prove("dial", said)
        talk.send(h.pack_answer(h.Answer(self.proof, 0, {})))
        self.answer = h.unpack_answer(talk.take())
        self.stream.settimeout(5)

    def frame(self, header: Header, payload: bytes = b"", **changes: int) -> None:
        sums = {"length": len(payload), "size": len(payload), "checksum": zlib.crc32(payload)}
        self.stream.sendall(encode(header._replace(**{**sums, **changes})) + payload)

    def header(self) -> Header:
        data = b""
        while len(data) < HEADER_BYTES:
            data += self.stream.recv(HEADER_BYTES - len(data))
        return decode(data)


def message(number: int = 1) -> Header:
    return Header(Kind.MESSAGE, number=number, credit=2)


@pytest.fixture
def victim(listener: Listener) -> Iterator[tuple[Hostile, Link]]:
    hostile = Hostile(listener)
    link = listener.accept(within_s=5)
    yield hostile, link
    hostile.stream.close()
    link.close()


def test_a_wrong_key_gets_nothing(listener: Listener) -> None:
    error = cause_of(lambda: side("mallory", b"x" * 32).connect(listener.address, within_s=5))
    assert error.cause is Cause.REFUSED and listener.address in str(error)
    refused = cause_of(lambda: listener.accept(within_s=0.2))
    assert refused.cause is Cause.STALLED and "does not know the key" in str(refused)


def test_a_listener_without_the_key_is_refused_by_the_dialer() -> None:
    class Liar(SharedKey):
        def check(self, role: str, transcript: bytes, proof: bytes) -> str:
            return "anyone"

    liar = TcpTransport(Liar(b"y" * 32, "liar"), OPTIONS)
    with liar.listen("127.0.0.1") as found:
        error = cause_of(lambda: side("victim").connect(found.address, within_s=5))
    assert error.cause is Cause.REFUSED and "does not know the key" in error.detail


def test_a_proof_is_worth_nothing_in_the_other_role_or_another_handshake() -> None:
    own, other = SharedKey(KEY, "a"), SharedKey(KEY, "b")
    proof = own.prove("dial", b"hash")
    assert other.check("dial", b"hash", proof) == "a"
    for role, said in (("listen", b"hash"), ("dial", b"other")):
        with pytest.raises(Refused):
            other.check(role, said, proof)
    with pytest.raises(Refused):
        other.check("dial", b"hash", proof + b"c")  # the name is covered too


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1:²",
        "127.0.0.1:٤٤٣",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:" + "9" * 5_000,
        "a..b:80",
        "a" * 300 + ":80",
        "\udcff:80",
        ":80",
        "80",
    ],
)
def test_an_address_that_a_peer_made_up_is_an_error_of_the_link(address: str) -> None:
    error = cause_of(lambda: side("victim").connect(address, within_s=5))
    assert error.cause is Cause.ADDRESS


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff" + b"x" * 70_000,
        struct.pack("<H", 2) + b"[]",
        struct.pack("<H", 4) + b"null",
        struct.pack("<H", 6) + b'{"a":1',
        struct.pack("<H", 2000) + b"[" * 2000,
        struct.pack("<H", 13) + b'{"version":2}',
        b"",
    ],
)
def test_garbage_in_the_handshake_opens_nothing(listener: Listener, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as stream:
        stream.sendall(data)
        with suppress(OSError):  # the listener may have closed the connection already
            stream.shutdown(socket.SHUT_WR)
            while stream.recv(4096):
                pass
    assert cause_of(lambda: listener.accept(within_s=0.05)).cause is Cause.STALLED
    with side("honest").connect(listener.address, within_s=5):
        assert listener.accept(within_s=5).peer == "honest"


@pytest.mark.parametrize(
    "change",
    [
        {"buffers": 10**9},
        {"buffers": True},
        {"buffer_bytes": 0},
        {"received": "1"},
        {"nonce": "zz"},
        {"session": ""},
        {"more": 1},
        {"checksums": 5},
        {"wire": "rdma"},
    ],
)
def test_a_hello_with_wrong_fields_opens_nothing(
    listener: Listener, change: dict[str, object]
) -> None:
    hello = h.Hello("ab" * 16, -1, 2, 4096, ("crc32",), False, "tcp")
    fields = {**json.loads(hello.pack()), **change}
    with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as stream:
        talk = h.Conversation(stream, "victim", time.monotonic() + 5)
        talk.send(json.dumps(fields).encode())
        with pytest.raises(h.WireFault, match="refused"):
            h.unpack_hello(talk.take())
    assert not listener._links


def test_strangers_that_stall_do_not_keep_honest_peers_out(listener: Listener) -> None:
    streams = [
        socket.create_connection(("127.0.0.1", listener.port)) for _ in range(HANDSHAKES_MAX + 8)
    ]
    try:
        with side("honest").connect(listener.address, within_s=30):
            assert listener.accept(within_s=5).peer == "honest"
    finally:
        for stream in streams:
            stream.close()


def corrupt_payload(hostile: Hostile) -> None:
    hostile.frame(message(), b"payload", checksum=1)


def corrupt_header(hostile: Hostile) -> None:
    data = bytearray(encode(message()))
    data[9] ^= 1
    hostile.stream.sendall(data)


def garbage(hostile: Hostile) -> None:
    hostile.stream.sendall(secrets.token_bytes(1000))


def a_gap(hostile: Hostile) -> None:
    hostile.frame(message(5), b"x")


def beyond_the_credit(hostile: Hostile) -> None:
    for number in (1, 2, 3):
        hostile.frame(message(number), b"x")


def beyond_the_buffer(hostile: Hostile) -> None:
    hostile.frame(message(), bytes(4097))


def beyond_a_piece(hostile: Hostile) -> None:
    hostile.frame(message(), b"", length=8 << 20, size=8 << 20)


def a_lie_about_what_arrived(hostile: Hostile) -> None:
    hostile.frame(Header(Kind.ACK, received=9, credit=2))


def credit_taken_back(hostile: Hostile) -> None:
    hostile.frame(Header(Kind.ACK, credit=0))


def an_answer_to_nothing(hostile: Hostile) -> None:
    hostile.frame(Header(Kind.DATA, number=1, credit=2, target=77), b"x")


def compressed_without_agreement(hostile: Hostile) -> None:
    hostile.frame(message()._replace(flags=2), b"x", size=100)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "attack",
    [
        corrupt_payload,
        corrupt_header,
        garbage,
        a_gap,
        beyond_the_buffer,
        beyond_a_piece,
        a_lie_about_what_arrived,
        credit_taken_back,
        an_answer_to_nothing,
        compressed_without_agreement,
    ],
)
def test_a_peer_that_breaks_the_protocol_is_cut_off_and_named(
    victim: tuple[Hostile, Link], attack: Callable[[Hostile], None]
) -> None:
    hostile, link = victim
    attack(hostile)
    begun_s = time.monotonic()
    error = cause_of(lambda: link.recv(within_s=0.5))
    assert time.monotonic() - begun_s < 5
    assert (error.cause, error.peer) == (Cause.CORRUPT, "mallory")
    assert "link to mallory" in str(error)


def test_messages_beyond_the_credit_are_not_taken(victim: tuple[Hostile, Link]) -> None:
    hostile, link = victim
    beyond_the_credit(hostile)
    held = [link.recv(within_s=5), link.recv(within_s=5)]
    error = cause_of(lambda: link.recv(within_s=0.3))
    assert (error.cause, error.peer) == (Cause.CORRUPT, "mallory") and len(held) == 2


def test_a_truncated_frame_costs_one_deadline_and_is_named(victim: tuple[Hostile, Link]) -> None:
    hostile, link = victim
    hostile.stream.sendall(encode(message()._replace(length=100, size=100)) + b"half")
    hostile.stream.close()
    error = cause_of(lambda: link.recv(within_s=0.5))
    assert (error.cause, error.peer) == (Cause.BROKEN, "mallory")
    assert "inside a frame" in error.detail


def test_a_peer_that_stalls_inside_a_frame_costs_one_deadline(
    victim: tuple[Hostile, Link],
) -> None:
    hostile, link = victim
    hostile.stream.sendall(encode(message()._replace(length=100, size=100)) + b"half")
    begun_s = time.monotonic()
    error = cause_of(lambda: link.recv(within_s=0.5))
    assert 0.4 < time.monotonic() - begun_s < 5
    assert (error.cause, error.peer) == (Cause.STALLED, "mallory")


def test_a_peer_that_reads_nothing_stops_the_sender_at_its_deadline(
    victim: tuple[Hostile, Link],
) -> None:
    _, link = victim
    region = link.register(allocate(1 << 20), readable=True)
    assert region.remote.readable
    link.send(b"1")
    link.send(b"2")
    error = cause_of(lambda: link.send(b"3", within_s=0.3))
    assert (error.cause, error.peer) == (Cause.STALLED, "mallory")
    error = cause_of(lambda: link.flush(within_s=0.3))
    assert error.cause is Cause.STALLED and "2 frames" in error.detail


def test_endless_reads_of_a_region_are_cut_off(victim: tuple[Hostile, Link]) -> None:
    hostile, link = victim
    region = link.register(allocate(1 << 20), readable=True)
    ask = Header(Kind.READ, credit=2, target=region.remote.key)
    with pytest.raises(OSError):  # the victim closes the connection
        until = time.monotonic() + 10
        for number in itertools.takewhile(lambda _: time.monotonic() < until, itertools.count(1)):
            hostile.frame(ask._replace(number=number), b"", size=1 << 20)
    assert cause_of(lambda: link.recv(within_s=0.5)).cause is Cause.CORRUPT


def test_a_region_is_reached_only_by_its_key_rights_and_bounds(
    victim: tuple[Hostile, Link],
) -> None:
    hostile, link = victim
    memory = allocate(100)
    region = link.register(memory, readable=True)
    key = region.remote.key
    attempts = (
        (Kind.READ, key ^ 1, 0, 10),
        (Kind.READ, key, 91, 10),
        (Kind.READ, key, (1 << 64) - 5, 10),
        (Kind.WRITE, key, 0, 10),
        (Kind.WRITE, key ^ 1, 0, 10),
    )
    for number, (kind, target, offset, size) in enumerate(attempts, 1):
        payload = b"x" * size if kind is Kind.WRITE else b""
        head = Header(kind, number=number, credit=2, target=target, offset=offset)
        hostile.frame(head, payload, size=size)
        answer = hostile.header()
        while answer.kind is not Kind.FAULT:
            answer = hostile.header()
        assert answer.target == number
        hostile.stream.recv(answer.length, socket.MSG_WAITALL)
    assert bytes(memory) == bytes(100)


def test_a_peer_reaches_no_region_of_another_link(listener: Listener) -> None:
    with side("honest").connect(listener.address, within_s=5):
        honest = listener.accept(within_s=5)
        region = honest.register(allocate(100), readable=True)
        with side("mallory").connect(listener.address, within_s=5) as mallory:
            assert listener.accept(within_s=5).peer == "mallory"
            error = cause_of(lambda: mallory.read(region.remote, allocate(100)))
        assert error.cause is Cause.REGION


def test_a_peer_cannot_take_over_the_link_of_another(listener: Listener) -> None:
    with side("honest").connect(listener.address, within_s=5) as honest:
        link = listener.accept(within_s=5)
        with pytest.raises(h.WireFault, match="belongs to honest, not to mallory"):
            Hostile(listener, session=link.agreed.session)
        honest.send(b"still here")
        assert text(link) == b"still here"
        assert link.stats().reconnections == 0


def test_an_unknown_link_is_not_resumed(listener: Listener) -> None:
    with pytest.raises(h.WireFault, match="does not know the link"):
        Hostile(listener, session=secrets.token_hex(h.NONCE_BYTES))
    with pytest.raises(LinkError):
        listener.accept(within_s=0.1)

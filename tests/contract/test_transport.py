"""The contract of links, which TCP and RDMA keep, on good networks and on bad ones.

RDMA runs in the guest of `make rdma`. The bad network needs root: it is made of a network namespace
and `tc netem`, or of TUN devices and a program where the kernel has no netem.
"""

import random
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from libs.job.transport.access import SharedKey
from libs.job.transport.errors import Cause, LinkError
from libs.job.transport.memory import RemoteRegion, allocate
from libs.job.transport.traffic import Options
from libs.job.transport.transports import RdmaTransport
from tests.contract import bad_network
from tests.contract.transport_world import (
    KEY,
    SMALL,
    Other,
    Pair,
    World,
    cause_of,
    cut,
    either,
    rdma,
    tcp,
    text,
    until,
)

MIB = 1 << 20
WHOLE = Options(buffers=4, buffer_bytes=MIB, give_up_s=20)


@pytest.fixture(params=["tcp", "either", "bad_network", "rdma"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "tcp":
        yield World("tcp", tcp, "127.0.0.1")
    elif request.param == "either":
        yield World("either" if not has_rdma() else "rdma", either, "127.0.0.1")
    elif request.param == "bad_network":
        with bad_network.between() as (host, namespace):
            yield World("bad_network", tcp, host, namespace)
    else:
        yield rdma_world()


def has_rdma() -> bool:
    try:
        RdmaTransport(SharedKey(KEY, "probe"))
    except LinkError:
        return False
    return True


def rdma_world() -> World:
    try:
        RdmaTransport(SharedKey(KEY, "probe"))
    except LinkError as error:
        pytest.skip(f"{error.detail}; `make rdma` runs this in a guest")
    return World("rdma", rdma, "127.0.0.1")


@pytest.fixture
def pair(world: World) -> Iterator[Pair]:
    with world.pair() as pair:
        yield pair


def numbered(count: int) -> list[bytes]:
    chance = random.Random(count)
    return [
        b"%d:" % n + chance.randbytes(chance.choice((0, 10, 5000, 60_000))) for n in range(count)
    ]


def test_messages_arrive_whole_and_in_order_in_both_directions(pair: Pair) -> None:
    sent = numbered(60)

    def echo() -> None:
        for _ in sent:
            with pair.right.recv() as message:
                pair.right.send(message.view)
                pair.right.flush()

    other = Other(echo)
    found = []
    for data in sent:
        pair.left.send(data)
        found.append(text(pair.left))
    other.join()
    assert found == sent
    assert (pair.left.peer, pair.right.peer) == ("listener", "dialer")


def test_a_message_is_received_into_a_registered_buffer_and_never_copied(world: World) -> None:
    data = allocate(MIB)
    data[:] = random.Random(1).randbytes(MIB)
    with world.pair(WHOLE) as pair:
        places = {id(slot.view.obj) for slot in pair.right.traffic._free}
        filling = pair.right.traffic._filling
        places |= {id(filling.view.obj)} if filling else set()
        pair.left.send(data)  # everything that is made once is made now
        pair.right.recv().release()
        tracemalloc.start()
        try:
            for _ in range(8):
                pair.left.send(data)
                with pair.right.recv() as message:
                    if world.name != "rdma":
                        assert id(message.view.obj) in places
                    assert message.view == data
            pair.left.flush()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < MIB // 8


def test_a_sender_waits_while_the_peer_releases_no_buffer(pair: Pair) -> None:
    for n in range(SMALL.buffers):
        pair.left.send(b"%d" % n)
    error = cause_of(lambda: pair.left.send(b"more", within_s=0.2))
    assert (error.cause, error.peer) == (Cause.STALLED, "listener")
    held = [pair.right.recv() for _ in range(SMALL.buffers)]
    assert cause_of(lambda: pair.left.send(b"more", within_s=0.2)).cause is Cause.STALLED
    for message in held:
        message.release()
    pair.left.send(b"more")
    assert text(pair.right) == b"more"


def test_a_silent_peer_costs_one_deadline_and_is_named(pair: Pair) -> None:
    begun_s = time.monotonic()
    error = cause_of(lambda: pair.left.recv(within_s=0.3))
    assert 0.3 <= time.monotonic() - begun_s < 5
    assert error.cause is Cause.STALLED and "listener" in str(error) and "0.3 s" in str(error)
    pair.right.send(b"late")
    assert text(pair.left) == b"late"


def test_a_message_larger_than_the_peers_buffers_is_refused_before_it_is_sent(pair: Pair) -> None:
    error = cause_of(lambda: pair.left.send(bytes(SMALL.buffer_bytes + 1)))
    assert error.cause is Cause.TOO_LARGE and "65537" in str(error) and "65536" in str(error)
    pair.left.send(bytes(SMALL.buffer_bytes))
    assert len(text(pair.right)) == SMALL.buffer_bytes


def test_regions_are_written_and_read_while_the_peer_makes_no_call(pair: Pair) -> None:
    size = 3 * MIB + 17
    memory = allocate(size)
    region = pair.right.register(memory, readable=True, writable=True)
    pair.right.send(region.remote.pack())
    remote = RemoteRegion.unpack(text(pair.left))
    data = allocate(size)
    data[:] = random.Random(2).randbytes(size)
    pair.left.write(remote, data)
    pair.left.flush()
    assert memory == data
    pair.left.write(remote, b"inside", offset=5)
    pair.left.flush()
    found = allocate(size)
    pair.left.read(remote, found)
    assert found == memory and found[5:11] == b"inside"
    part = allocate(6)
    pair.left.read(remote, part, offset=5)
    assert bytes(part) == b"inside"


def test_a_message_arrives_after_the_bytes_that_were_written_before_it(pair: Pair) -> None:
    memory = allocate(MIB)
    remote = pair.right.register(memory, writable=True).remote
    data = allocate(MIB)
    for n in range(1, 6):
        data[:] = bytes([n]) * MIB
        pair.left.write(remote, data)
        pair.left.send(b"written")
        assert text(pair.right) == b"written"
        assert memory[0] == memory[-1] == n
        pair.left.flush()


def test_a_region_allows_what_it_was_registered_for_and_no_more(pair: Pair) -> None:
    memory = allocate(1000)
    readable = pair.right.register(memory, readable=True)
    writable = pair.right.register(allocate(1000), writable=True)
    for call in (
        lambda: pair.left.write(readable.remote, b"x"),
        lambda: pair.left.read(writable.remote, allocate(1)),
        lambda: pair.left.read(readable.remote, allocate(10), offset=991),
        lambda: pair.left.write(writable.remote, b"x", offset=-1),
    ):
        error = cause_of(call)
        assert error.cause is Cause.REGION and error.peer == "listener"


def test_the_peer_refuses_what_a_lying_side_asks_and_the_link_lives_on(pair: Pair) -> None:
    memory = allocate(1000)
    region = pair.right.register(memory, readable=True)
    lies = [
        region.remote._replace(size=5000),
        region.remote._replace(key=region.remote.key ^ 1),
    ]
    for lie in lies:
        error = cause_of(lambda lie=lie: pair.left.read(lie, allocate(2000)))  # type: ignore[misc]
        assert error.cause is Cause.REGION and error.peer == "listener"

    def write() -> None:
        pair.left.write(region.remote._replace(writable=True), b"x" * 10)
        pair.left.flush()

    assert cause_of(write).cause is Cause.REGION
    assert bytes(memory) == bytes(1000)
    region.close()
    assert cause_of(lambda: pair.left.read(region.remote, allocate(10))).cause is Cause.REGION
    pair.left.send(b"alive")
    assert text(pair.right) == b"alive"


def test_cut_connections_lose_double_and_reorder_nothing(pair: Pair) -> None:
    sent = numbered(200)
    found: dict[str, list[bytes]] = {"left": [], "right": []}

    def send(link: str) -> None:
        for data in sent:
            getattr(pair, link).send(data)
        getattr(pair, link).flush()

    def receive(link: str) -> None:
        for _ in sent:
            found[link].append(text(getattr(pair, link)))

    others = [Other(lambda side=side: send(side)) for side in ("left", "right")]  # type: ignore[misc]
    others += [Other(lambda side=side: receive(side)) for side in ("left", "right")]  # type: ignore[misc]
    chance = random.Random(3)
    for _ in range(12):
        time.sleep(chance.uniform(0.0, 0.1))
        cut(chance.choice((pair.left, pair.right)))
    for other in others:
        other.join()
    assert found["right"] == sent and found["left"] == sent


def test_reads_and_writes_go_on_over_cut_connections(pair: Pair) -> None:
    size = 2 * MIB
    memory = allocate(size)
    remote = pair.right.register(memory, readable=True, writable=True).remote
    chance = random.Random(4)
    data, found = allocate(size), allocate(size)
    for _ in range(4):
        data[:] = chance.randbytes(size)
        other = Other(lambda: (pair.left.write(remote, data), pair.left.flush()))
        time.sleep(chance.uniform(0, 0.02))
        cut(pair.left)
        other.join()
        assert memory == data
        other = Other(lambda: pair.left.read(remote, found))
        time.sleep(chance.uniform(0, 0.02))
        cut(pair.right)
        other.join()
        assert found == data
    assert pair.left.stats().reconnections >= 1


def test_a_sent_buffer_may_change_after_flush(pair: Pair) -> None:
    data = bytearray(b"first")
    pair.left.send(data)
    pair.left.flush()
    data[:] = b"other"
    assert text(pair.right) == b"first"


def test_a_buffer_that_changes_before_it_must_be_repeated_ends_the_link(pair: Pair) -> None:
    data = bytearray(b"first")
    with pair.left.progress.lock:  # so that no acknowledgement comes
        pair.left.traffic.add(pair.left.traffic.packed(memoryview(data)))
        data[:] = b"other"
    cut(pair.left)
    error = cause_of(lambda: pair.left.recv(within_s=15))
    assert error.cause is Cause.CHANGED and "frame 1" in str(error)


def test_closing_delivers_what_was_sent_and_then_ends_the_link(pair: Pair) -> None:
    for n in range(5):
        pair.left.send(b"%d" % n)
    pair.left.close()
    assert [text(pair.right) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    error = cause_of(pair.right.recv)
    assert error.cause is Cause.CLOSED and error.peer == "dialer"
    assert cause_of(lambda: pair.left.send(b"x")).cause is Cause.CLOSED


def test_a_link_whose_peer_is_gone_ends_and_says_so(world: World) -> None:
    options = Options(buffers=8, buffer_bytes=64 << 10, give_up_s=1)
    with world.pair(options) as pair:
        pair.listener.close()
        with pair.right.progress.lock:
            pair.right.progress.end(LinkError(Cause.CLOSED, "dialer", "as if it were killed"))
        pair.right.progress.stop()
        error = cause_of(lambda: pair.left.recv(within_s=15))
        assert error.cause is Cause.BROKEN and error.peer == "listener"
        assert cause_of(lambda: pair.left.send(b"x")).cause is Cause.BROKEN


def test_a_peer_that_restarted_does_not_know_the_link_and_says_so(world: World) -> None:
    with world.pair() as pair:
        pair.listener._links.clear()  # the memory of the process that listened before
        cut(pair.left)
        error = cause_of(lambda: pair.left.recv(within_s=15))
        assert error.cause is Cause.LOST and error.peer == "listener"
        assert "restarted" in str(error)


def test_many_threads_use_one_link(pair: Pair) -> None:
    each, threads = 50, 4
    found: list[bytes] = []

    def send(who: int) -> None:
        for n in range(each):
            pair.left.send(b"%d %d" % (who, n))

    def receive() -> None:
        for _ in range(each):
            found.append(text(pair.right))

    others = [Other(lambda who=who: send(who)) for who in range(threads)]  # type: ignore[misc]
    others += [Other(receive) for _ in range(threads)]
    for other in others:
        other.join()
    assert sorted(found) == sorted(b"%d %d" % (w, n) for w in range(threads) for n in range(each))


def test_compressible_messages_arrive_as_they_were(world: World) -> None:
    pytest.importorskip("zstandard")
    if world.name == "rdma":
        pytest.skip("messages over RDMA are not compressed: the network is faster than zstd")
    options = Options(buffers=8, buffer_bytes=256 << 10, compress="always", give_up_s=20)
    plain, dull = random.Random(5).randbytes(200_000), b"muster" * 30_000
    with world.pair(options) as pair:
        for data in (dull, plain, dull):
            pair.left.send(data)
            assert text(pair.right) == data
        assert pair.left.stats().compressed == 2
        assert pair.left.stats().sent_bytes < len(plain) + len(dull)


def test_the_counts_of_a_link_agree_with_what_was_sent(pair: Pair) -> None:
    for _ in range(3):
        pair.left.send(bytes(1000))
        pair.right.recv().release()
    pair.left.flush()
    until(lambda: pair.right.stats().received_bytes == 3000)
    stats = pair.left.stats()
    assert (stats.sent_bytes, stats.unacknowledged, stats.connected) == (3000, 0, True)

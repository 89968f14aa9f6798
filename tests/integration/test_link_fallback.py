"""A link that may be over RDMA: the path is proved before it counts, and else it is over TCP.

A stand-in for the card opens connections as `rdma.py` does, and carries frames over the socket.
tests/integration/test_links_over_rdma.py does the same over real verbs in the guest of `make rdma`.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libs.common.messages.copy_messages import COPIED
from libs.common.messages.file_messages import PART_BYTES
from libs.job.transport import proof, rdma, transports, verbs
from libs.job.transport.errors import Cause, LinkError, WireFault
from libs.job.transport.session import Session
from libs.job.transport.sink import Sink
from libs.job.transport.tcp import TcpCarrier, TcpWire
from services.node_agent.fabric.choice import FAILED_S, RDMA, TCP, Choices
from tests.integration.copies_world import Fetching, fetching_at

PORT = verbs.Port("mlx5_0", 1, "fe80::1", 0, "InfiniBand", "IB/RoCE v1")


class Card(TcpCarrier):
    """Opens a connection as RdmaCarrier does. `prove` fails if there is no path."""

    name = rdma.RdmaCarrier.name  # type: ignore[misc]

    def __init__(self, prove: Callable[[], None]) -> None:
        self.prove, self.is_listener = prove, False

    def offer(self, peer: dict[str, Any] | None) -> dict[str, Any]:
        self.is_listener = peer is not None
        return {proof.PROVES: True}

    def wire(
        self,
        stream: socket.socket,
        peer: dict[str, Any],
        session: Session,
        sink: Sink,
        checksum: str,
    ) -> TcpWire:
        try:
            if self.is_listener:
                proof.take_ready(stream, peer)
            else:
                self.prove()
                proof.say_ready(stream, peer)
        except OSError as error:
            raise WireFault(Cause.BROKEN, f"the queue pair failed: {error}") from error
        return super().wire(stream, peer, session, sink, checksum)


def no_path() -> None:
    raise WireFault(Cause.NO_RDMA, "the peer's port does not answer over verbs")


class Fabric:
    """The behaviour of the cards of both nodes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.prove: Callable[[], None] = lambda: None
        self.now_s = 0.0
        patch.setattr(transports, "RdmaCarrier", self)
        patch.setattr(transports, "RDMA_S", 2.0)
        patch.setattr(verbs, "usable_port", lambda: PORT)

    name = Card.name

    def __call__(self, port: verbs.Port, buffers: int) -> Card:
        assert port == PORT
        return Card(lambda: self.prove())

    def choices(self) -> Choices:
        return Choices(now_s=lambda: self.now_s)


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Fabric:
    return Fabric(monkeypatch)


def copied(fetching: Fetching) -> tuple[str, str]:
    """Copy a file; return the transport and why."""
    data = os.urandom(2 * PART_BYTES + 7)
    (fetching.serving.root / "model").write_bytes(data)
    done = fetching.copied("model")
    assert (done.state, done.text) == (COPIED, "")
    assert (fetching.root / "model").read_bytes() == data
    return done.transport, done.transport_why


def test_a_path_that_was_proved_is_used(tmp_path: Path, fabric: Fabric) -> None:
    both = {"dialling": fabric.choices(), "listening": fabric.choices()}
    with fetching_at(tmp_path, **both) as fetching:
        transport, why = copied(fetching)
    assert transport == RDMA and "both nodes offer it: here port mlx5_0/1 is active" in why


def test_without_a_path_the_same_token_opens_a_link_over_tcp(
    tmp_path: Path, fabric: Fabric
) -> None:
    fabric.prove = no_path
    choices = fabric.choices()
    with fetching_at(tmp_path, dialling=choices, listening=fabric.choices()) as fetching:
        transport, why = copied(fetching)
        assert transport == TCP and why == f"RDMA failed: {no_path_words()}"
        fabric.now_s += FAILED_S - 1
        assert copied(fetching)[1] == f"RDMA failed 299 s ago: {no_path_words()}"
        fabric.now_s += 2
        fabric.prove = lambda: None
        assert copied(fetching)[0] == RDMA
        assert fetching.serving.links._listener.refused >= 1


def no_path_words() -> str:
    try:
        no_path()
    except WireFault as fault:
        return fault.detail
    raise AssertionError


def test_a_dialler_that_is_silent_instead_of_proving_costs_its_own_connection(
    tmp_path: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "READY_S", 0.2)
    fabric.prove = lambda: time.sleep(0.5)
    with fetching_at(
        tmp_path, dialling=fabric.choices(), listening=fabric.choices(), answer_s=5.0
    ) as fetching:
        transport, _ = copied(fetching)
        assert transport == TCP and fetching.serving.links.sessions <= 1


def test_tcp_has_its_time_when_the_proof_of_a_path_took_all(
    tmp_path: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "RDMA_S", 0.2)

    def slow() -> None:
        time.sleep(1.2)
        no_path()

    fabric.prove = slow
    with fetching_at(tmp_path, listening=fabric.choices()) as fetching:
        access = fetching.serving.access(fetching.serving.token())
        either = transports.EitherTransport(access, port_of=lambda: PORT)
        with either.connect(fetching.serving.links.address, 1.0) as link:
            assert (link.transport, link.no_rdma) == (TCP, no_path_words())


def test_failed_attempts_leave_no_descriptor(tmp_path: Path, fabric: Fabric) -> None:
    fabric.prove = no_path
    with fetching_at(tmp_path, dialling=fabric.choices(), listening=fabric.choices()) as fetching:
        copied(fetching)
        fetching.until(lambda: fetching.serving.links.sessions == 0)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            fabric.now_s += FAILED_S
            assert copied(fetching)[0] == TCP
        fetching.until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_listener_without_a_port_refuses_rdma_and_takes_tcp(
    tmp_path: Path, fabric: Fabric
) -> None:
    listening = fabric.choices()
    with fetching_at(tmp_path, dialling=fabric.choices(), listening=listening) as fetching:
        (fetching.serving.root / "model").write_bytes(b"x")
        start = fetching.request("model")
        listening.wanted = TCP
        begun = fetching.copies.begin(start)
        done = begun if begun.fault else fetching.ended(start)
        assert (done.state, done.transport) == (COPIED, TCP)
        assert "MUSTER_LINK_TRANSPORT=tcp" in done.transport_why


def test_a_link_is_not_over_rdma_if_the_peer_s_address_is_wrong() -> None:
    from libs.job.transport.queue_pair import _address

    right = {"number": 17, "first": 5, "mtu": 3, "gid": "fe80::1"}
    assert _address(right) == (17, 5, 3, "fe80:0000:0000:0000:0000:0000:0000:0001")
    for name, value in (
        ("number", 1 << 24),
        ("number", -1),
        ("first", "x"),
        ("mtu", 9),
        ("gid", "fe80::1::"),
        ("gid", None),
    ):
        with pytest.raises(WireFault, match="queue pair"):
            _address({**right, name: value})
    with pytest.raises(WireFault, match="without address"):
        _address({})


def test_a_tcp_listener_still_names_what_it_serves(tmp_path: Path, fabric: Fabric) -> None:
    with fetching_at(tmp_path) as fetching:
        access = fetching.serving.access(fetching.serving.token())
        either = transports.EitherTransport(access, port_of=lambda: PORT)
        link = either.connect(fetching.serving.links.address, 5.0)
        assert link.transport == TCP and "MUSTER_LINK_TRANSPORT=tcp" in link.no_rdma
        link.close()
        with pytest.raises(LinkError):
            either.connect("127.0.0.1:1", 0.4)

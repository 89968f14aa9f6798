"""A wrong, foreign, expired, replayed or missing token opens no link between agents."""

from collections.abc import Callable

import nkeys
import pytest

from libs.common.messages import Roster, RosterEntry
from libs.common.model import NodeId
from libs.job.transport.access import Refused
from libs.job.transport.errors import Cause
from libs.job.transport.transports import TcpTransport
from services.node_agent.fabric.tokens import APART_NS, SECOND_NS, Admitted, LinkKey, NodeAccess
from tests.contract.transport_world import cause_of, text

pytestmark = pytest.mark.attack

NOW_NS = 10**18


def key(name: str, number: int) -> LinkKey:
    seed = nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER)
    return LinkKey(NodeId(name), bytes(seed))


A, B, C = key("a", 1), key("b", 2), key("c", 3)
ROSTER = Roster(
    cluster_id="cluster",
    nodes=tuple(RosterEntry(each.node_id, "", each.public, 1) for each in (A, B, C)),
)


def access(
    own: LinkKey, token: bytes = b"", roster: Roster = ROSTER, now_ns: int = NOW_NS
) -> NodeAccess:
    return NodeAccess(own, lambda: roster, lambda: now_ns, token)


def token(listener: LinkKey = B, dialler: str = "a", tenant: str = "red") -> bytes:
    return listener.token("cluster", NodeId(dialler), tenant, NOW_NS, 60)


def refusal(dialler: NodeAccess, listener: NodeAccess | None = None) -> str:
    with pytest.raises(Refused) as found:
        (listener or access(B)).check("dial", b"hash", dialler.prove("dial", b"hash"))
    return str(found.value)


def test_a_node_with_a_token_is_admitted_for_its_tenant() -> None:
    proof = access(A, token()).prove("dial", b"hash")
    name = access(B).check("dial", b"hash", proof)
    assert Admitted.of(name) == Admitted(NodeId("a"), "red")
    assert access(A).check("listen", b"hash", access(B).prove("listen", b"hash")) == "b"


def test_a_real_link_opens_with_a_token_and_not_without() -> None:
    with TcpTransport(access(B)).listen("127.0.0.1") as listener:
        error = cause_of(lambda: TcpTransport(access(A)).connect(listener.address, within_s=5))
        assert error.cause is Cause.REFUSED and "no token" in error.detail
        with TcpTransport(access(A, token())).connect(listener.address, within_s=5) as link:
            accepted = listener.accept(within_s=5)
            assert (link.peer, accepted.peer) == ("b", "a/red")
            link.send(b"weights")
            assert text(accepted) == b"weights"
            accepted.close()


@pytest.mark.parametrize(
    ("dialler", "why"),
    [
        (lambda: access(A), "no token"),
        (lambda: access(A, b"garbage"), "no token"),
        (lambda: access(A, token(listener=C)), "no token"),  # signed by another node
        (lambda: access(C, token()), "for node a, not c"),  # stolen
        (lambda: access(A, token()[:-1] + b"\x00"), "no token"),
        (lambda: access(A, B.token("other", NodeId("a"), "red", NOW_NS, 60)), "not b"),
        (lambda: access(LinkKey(NodeId("a"), seed_of(9)), token()), "not that of node a"),
        (lambda: access(key("z", 4), token(dialler="z")), "not a member"),
    ],
)
def test_a_wrong_token_opens_nothing(dialler: Callable[[], NodeAccess], why: str) -> None:
    assert why in refusal(dialler())


def seed_of(number: int) -> bytes:
    return bytes(nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER))


def test_an_expired_token_opens_nothing() -> None:
    late_ns = NOW_NS + 60 * SECOND_NS + APART_NS + 1
    assert "ended 5 s ago" in refusal(access(A, token()), access(B, now_ns=late_ns))
    in_time = access(B, now_ns=NOW_NS + 60 * SECOND_NS)
    assert in_time.check("dial", b"hash", access(A, token()).prove("dial", b"hash")) == "a/red"


def test_a_node_that_was_removed_is_not_admitted() -> None:
    left = Roster(
        cluster_id="cluster", nodes=(RosterEntry(A.node_id, "", A.public, 1, removed=True),)
    )
    assert "not a member" in refusal(access(A, token()), access(B, roster=left))


def test_a_proof_is_worth_nothing_in_another_handshake_or_role() -> None:
    proof = access(A, token()).prove("dial", b"hash")
    for role, said in (("dial", b"other"), ("listen", b"hash")):
        with pytest.raises(Refused):
            access(B).check(role, said, proof)


@pytest.mark.parametrize("proof", [b"", b"\x93\x01\x02\x03", b"\xff" * 100, b"\x92\xa1a\xc4\x00"])
def test_a_proof_of_garbage_is_refused(proof: bytes) -> None:
    with pytest.raises(Refused):
        access(B).check("dial", b"hash", proof)


def test_a_token_of_another_tenant_admits_for_that_tenant_alone() -> None:
    name = access(B).check("dial", b"h", access(A, token(tenant="blue")).prove("dial", b"h"))
    assert Admitted.of(name).tenant == "blue"


@pytest.mark.parametrize(
    ("tenant", "valid_s"), [("", 60), ("a/b", 60), ("x" * 200, 60), ("red", 0), ("red", 10**6)]
)
def test_a_token_is_not_signed_for_wrong_values(tenant: str, valid_s: int) -> None:
    with pytest.raises(ValueError, match=r"must have|valid for"):
        B.token("cluster", NodeId("a"), tenant, NOW_NS, valid_s)

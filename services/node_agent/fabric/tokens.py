"""The right to open a link between agents: nodes of the roster, with a token for one tenant.

The node that serves a link signs the token with its nkey: for one tenant, one dialling node and a
short time. It travels over the bus, where the gateway asks for it on behalf of the tenant and gives
it to the dialling node's agent. The dialler signs the handshake with its own nkey too, so a token
that another node reads is worth nothing to it. docs/decisions/0043 compares this with other ways.
Tests: tests/attack/test_link_tokens.py.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import nkeys
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from libs.common.messages import Roster
from libs.common.model import NodeId
from libs.common.safety import public_nkey
from libs.job.transport.access import Refused

VALID_MAX_S: Final = 3600
# Clocks of two nodes may differ by so much.
APART_NS: Final = 5_000_000_000
SECOND_NS: Final = 1_000_000_000
# What is signed here can never be what the key signs elsewhere.
TOKEN_CONTEXT: Final = b"\x00muster link token 1\x00"
PROOF_CONTEXT: Final = b"\x00muster link proof 1\x00"
NAME_MAX: Final = 128


class LinkToken(msgspec.Struct, frozen=True, array_like=True, tag="link"):
    """Permission for `dialler` to open links to `listener` for one tenant, until a wall time.

    `nonce` names the grant, which allows one session (`links/grants.py`): `direction` of the bytes
    as the dialler sees it, below `path` in the working directory of an attempt. With `model` it is
    for the kept weights of that request instead, with `upload` for the archive with that SHA-256.
    """

    cluster_id: str
    listener: NodeId
    dialler: NodeId
    tenant: str
    until_ns: int
    nonce: str = ""
    job_id: str = ""
    attempt: int = 0
    direction: str = ""
    path: bytes = b""
    model: str = ""
    request: int = 0
    upload: str = ""


class Purpose(NamedTuple):
    """The one thing that a token allows: see `LinkToken`."""

    nonce: str
    job_id: str
    attempt: int
    direction: str
    path: bytes
    model: str = ""
    request: int = 0
    upload: str = ""


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    body: bytes
    signature: bytes


class _Proof(msgspec.Struct, frozen=True, array_like=True):
    node_id: NodeId
    signature: bytes
    token: bytes = b""


class Admitted(NamedTuple):
    """The other side of a link: its node, the tenant for which the link is, and the grant."""

    node_id: NodeId
    tenant: str
    nonce: str = ""

    @classmethod
    def of(cls, name: str) -> "Admitted":
        """Return the parts of `link.peer`."""
        node, _, rest = name.partition("/")
        tenant, _, nonce = rest.partition("/")
        return cls(NodeId(node), tenant, nonce)


_encode = msgspec.msgpack.Encoder().encode
_signed = msgspec.msgpack.Decoder(_Signed)
_token = msgspec.msgpack.Decoder(LinkToken)
_proof = msgspec.msgpack.Decoder(_Proof)


class LinkKey:
    """This node's nkey, as links use it. Raises ValueError for an invalid seed."""

    def __init__(self, node_id: NodeId, seed: bytes) -> None:
        self.node_id = node_id
        self._pair = nkeys.from_seed(bytearray(seed))  # type: ignore[no-untyped-call]
        self.public = str(self._pair.public_key.decode())

    def token(
        self,
        cluster_id: str,
        dialler: NodeId,
        tenant: str,
        now_ns: int,
        valid_s: int,
        purpose: Purpose | None = None,
    ) -> bytes:
        """Return a token for links to this node. Raises ValueError."""
        if not 0 < valid_s <= VALID_MAX_S:
            raise ValueError(f"a token is valid for 1 to {VALID_MAX_S} s, not {valid_s}")
        for name, text in (("tenant", tenant), ("node", dialler)):
            if not text or len(text) > NAME_MAX or "/" in text:
                raise ValueError(f"the {name} {text!r} must have 1 to {NAME_MAX} characters, no /")
        until_ns = now_ns + valid_s * SECOND_NS
        more = purpose or ()
        body = _encode(LinkToken(cluster_id, self.node_id, dialler, tenant, until_ns, *more))
        return _encode(_Signed(body, self.sign(TOKEN_CONTEXT + body)))

    def sign(self, data: bytes) -> bytes:
        """Return this node's signature."""
        return bytes(self._pair.sign(data))


class NodeAccess:
    """Access of one agent: see `libs.job.transport.access.Access`.

    `token` is what the listening node signed for this node and one tenant; a listener needs none.
    `admit` raises Refused for a valid token that the listener does not honour.
    """

    def __init__(
        self,
        key: LinkKey,
        roster: Callable[[], Roster],
        wall_ns: Callable[[], int],
        token: bytes = b"",
        admit: Callable[[LinkToken], None] = lambda token: None,
    ) -> None:
        self.admit = admit
        self.key = key
        self.roster = roster
        self.wall_ns = wall_ns
        self.token = token

    def prove(self, role: str, transcript: bytes) -> bytes:
        """Return this node's signature over the handshake, and as the dialler the token."""
        token = self.token if role == "dial" else b""
        signature = self.key.sign(PROOF_CONTEXT + role.encode() + transcript + token)
        return _encode(_Proof(self.key.node_id, signature, token))

    def check(self, role: str, transcript: bytes, proof: bytes) -> str:
        """Return `node/tenant` of a dialler, or the listener's node. Raises Refused."""
        try:
            said = _proof.decode(proof)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Refused("the proof is not one of an agent") from None
        self._verify(said, PROOF_CONTEXT + role.encode() + transcript + said.token)
        if role == "listen":
            return said.node_id
        return f"{said.node_id}/{self._tenant(said)}"

    def _verify(self, said: _Proof, data: bytes) -> None:
        known = {entry.node_id: entry for entry in self.roster().nodes if not entry.removed}
        entry = known.get(said.node_id)
        if entry is None or not entry.key:
            raise Refused(
                f"node {self.key.node_id} has no key of node {said.node_id!r}: that node is not a "
                "member of this cluster, or registered a moment ago"
            )
        try:
            VerifyKey(public_nkey.raw(entry.key)).verify(data, said.signature)
        except (BadSignatureError, ValueError):
            raise Refused(f"the signature is not that of node {said.node_id}") from None

    def _tenant(self, said: _Proof) -> str:
        """Return the tenant of a token that this node signed for that dialler. Raises Refused."""
        try:
            signed = _signed.decode(said.token)
            token = _token.decode(signed.body)
            VerifyKey(public_nkey.raw(self.key.public)).verify(
                TOKEN_CONTEXT + signed.body, signed.signature
            )
        except (msgspec.DecodeError, UnicodeDecodeError, BadSignatureError, ValueError):
            raise Refused(f"node {said.node_id} has no token of node {self.key.node_id}") from None
        roster, now_ns = self.roster(), self.wall_ns()
        if (token.cluster_id, token.listener) != (roster.cluster_id, self.key.node_id):
            raise Refused(f"the token is for links to {token.listener}, not {self.key.node_id}")
        if token.dialler != said.node_id:
            raise Refused(f"the token is for node {token.dialler}, not {said.node_id}")
        if now_ns > token.until_ns + APART_NS:
            late_s = (now_ns - token.until_ns) / SECOND_NS
            raise Refused(f"the token for tenant {token.tenant} ended {late_s:.0f} s ago")
        self.admit(token)
        return f"{token.tenant}/{token.nonce}" if token.nonce else token.tenant

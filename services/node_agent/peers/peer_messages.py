"""The messages between agents: one question and one answer, each signed with the node's own nkey.

A datagram is a MessagePack pair: body, and Ed25519 signature over CONTEXT and the body. The reader
returns None for a datagram that is too long, cannot be decoded, is of another cluster, of a node
outside the roster or of an older incarnation, or is not signed by its node. Tests:
tests/unit/test_peer_messages.py.
"""

from typing import Final, NamedTuple

import msgspec
import nkeys
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from libs.common.messages import Roster, RosterEntry
from libs.common.model import NodeId
from libs.common.safety import public_nkey

DATAGRAM_BYTES_MAX: Final = 1_024
NONCE_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64
# A signature, a nonce and their framing: no peer sends less.
DATAGRAM_BYTES_MIN: Final = SIGNATURE_BYTES + NONCE_BYTES
# The prefix of all that is signed here, so that it can never be what the key signs elsewhere (the
# log's server has it sign a nonce of text).
CONTEXT: Final = b"\x00muster peer 1\x00"


class PeerAsk(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """The question: since when have you not been renewed? The nonce is for this round and this
    peer.

    `to` is the recipient; peers drop a question to another node. It is empty in questions of older
    agents.
    """

    cluster_id: str
    node_id: NodeId
    incarnation: int
    nonce: bytes
    to: NodeId = NodeId("")


class PeerAnswer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """The answer. `unrenewed_ms`: for how long, at the time of the answer; -1 while renewed.

    `to` is the asking node.
    """

    cluster_id: str
    node_id: NodeId
    incarnation: int
    nonce: bytes
    to: NodeId
    unrenewed_ms: int


Said = PeerAsk | PeerAnswer


class _Datagram(msgspec.Struct, frozen=True, array_like=True):
    body: bytes
    signature: bytes


class Opened(NamedTuple):
    """A decoded datagram that is not verified yet."""

    said: Said
    datagram: _Datagram


_encode = msgspec.msgpack.Encoder().encode
_datagram = msgspec.msgpack.Decoder(_Datagram)
_said: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)


class Signer:
    """This node's own key. Raises ValueError or nkeys.NkeysError for an invalid seed."""

    def __init__(self, seed: bytes) -> None:
        self._pair = nkeys.from_seed(bytearray(seed))  # type: ignore[no-untyped-call]
        self.public = str(self._pair.public_key.decode())

    def datagram(self, said: Said) -> bytes:
        body = _encode(said)
        return _encode(_Datagram(body, self._pair.sign(CONTEXT + body)))


class Reader:
    """Reads the messages of one roster's nodes."""

    def __init__(self, roster: Roster) -> None:
        self.cluster_id = roster.cluster_id
        self.entries: dict[NodeId, RosterEntry] = {entry.node_id: entry for entry in roster.nodes}
        self.keys: dict[NodeId, VerifyKey] = {}

    def open(self, data: bytes) -> Opened | None:
        """Return the claim of a datagram if the roster has that node; else None.

        `verified` checks it, for 0.1 ms. Never raises.
        """
        if not DATAGRAM_BYTES_MIN <= len(data) <= DATAGRAM_BYTES_MAX:
            return None
        try:
            datagram = _datagram.decode(data)
            said = _said.decode(datagram.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        known = self._names_member(said) and len(datagram.signature) == SIGNATURE_BYTES
        return Opened(said, datagram) if known else None

    def verified(self, opened: Opened) -> bool:
        """Return whether the node that the datagram names signed it."""
        return self._is_signed(opened.said.node_id, opened.datagram)

    def read(self, data: bytes) -> Said | None:
        """Return the verified message of a peer, or None. Never raises."""
        opened = self.open(data)
        return opened.said if opened is not None and self.verified(opened) else None

    def _names_member(self, said: Said) -> bool:
        entry = self.entries.get(said.node_id)
        known = entry is not None and entry.key != "" and said.incarnation >= entry.incarnation
        return known and said.cluster_id == self.cluster_id and len(said.nonce) == NONCE_BYTES

    def _is_signed(self, node_id: NodeId, datagram: _Datagram) -> bool:
        try:
            key = self.keys.get(node_id) or VerifyKey(public_nkey.raw(self.entries[node_id].key))
            key.verify(CONTEXT + datagram.body, datagram.signature)
        except (BadSignatureError, ValueError):
            return False
        self.keys[node_id] = key
        return True

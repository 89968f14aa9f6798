"""Which nodes of other machines the NATS servers accept, by which public keys, as whoever runs a
server asks a gateway.

Pure.

Also the form of an invitation, as the gateway writes it and a joining machine reads it: node,
fingerprint of the authority, secret.
"""

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import msgspec

from libs.common.errors import Refused
from libs.common.model import ID_PATTERN, NodeId
from libs.common.safety import public_nkey
from libs.common.state.cluster import Cluster

PREFIX: Final = "msj"
_TOKEN: Final = re.compile(r"msj\.([a-z0-9-]{1,63})\.([0-9a-f]{64})\.([A-Za-z0-9_-]{20,64})")


class Admitted(msgspec.Struct, frozen=True):
    """`nodes`: joined nodes with their public nkeys.

    `removed`: names that may connect no more, with any key.

    `revoked`: the same at once, for a node that wrote too much to the log.
    """

    nodes: dict[str, str] = {}
    removed: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()

    @property
    def refused(self) -> frozenset[str]:
        """The names that may connect no more."""
        return frozenset((*self.removed, *self.revoked))


class AdmittedAsk(msgspec.Struct, frozen=True):
    """keeper -> gateways.

    `server` accepts what the log said at `seq`; 0 is nothing yet. `refused`: nodes of the log that
    it does not accept, with the reason.
    """

    server: str
    seq: int = 0
    refused: dict[str, str] = {}


class AdmittedAnswer(msgspec.Struct, frozen=True):
    """`admitted` as of `seq`; None when nothing has changed since the asker's.

    What was removed since may connect for `farewell_ms` yet, in which it hears why it ends.
    """

    seq: int
    admitted: Admitted | None = None
    farewell_ms: int = 0


class Invitation(NamedTuple):
    """`fingerprint` is the SHA-256 of the authority's certificate."""

    node_id: str
    fingerprint: str
    secret: str

    @property
    def token(self) -> str:
        return ".".join((PREFIX, *self))


def admitted(cluster: Cluster, over: Collection[NodeId] = ()) -> Admitted:
    """Return who may connect. `over` are nodes to refuse before the log says so.

    Two nodes never share a key: a registered node, which proved that it has the key, keeps it."""
    revoked = {
        *over,
        *(member.node_id for member in cluster.memberships.values() if member.revoked),
    }
    known = [member for member in cluster.memberships.values() if member.public_key]
    members = [member for member in known if not member.removed and member.node_id not in revoked]
    nodes: dict[str, str] = {}
    taken: set[str] = set()
    for member in sorted(members, key=lambda each: each.node_id not in cluster.nodes):
        if member.public_key not in taken:
            nodes[member.node_id] = member.public_key
            taken.add(member.public_key)
    removed = sorted(member.node_id for member in cluster.memberships.values() if member.removed)
    return Admitted(
        dict(sorted(nodes.items())), tuple(removed), tuple(sorted(revoked.difference(removed)))
    )


def usable(
    found: Admitted, own_nodes: Iterable[str], own_keys: Iterable[str]
) -> tuple[Admitted, dict[str, str]]:
    """Return the rows that a server's file may hold, and the others with the reason against each.

    A row from before the checks at `POST /join`, or of a gateway that does not make them, must not
    spoil the file for the other nodes. `own_nodes` and `own_keys` are of the processes that the
    server began with; a row never replaces one of those.
    """
    nodes: dict[str, str] = {}
    refused: dict[str, str] = {}
    taken_names, taken_keys = set(own_nodes), set(own_keys)
    for node_id, key in found.nodes.items():
        if ID_PATTERN.fullmatch(node_id) is None:
            refused[node_id] = f"{node_id[:64]!r} is no node's name: use {ID_PATTERN.pattern}"
        elif node_id in found.refused:
            refused[node_id] = "it was removed"
        elif node_id in taken_names:
            refused[node_id] = "the cluster began with a node of this name"
        elif why := public_nkey.fault(key):
            refused[node_id] = why
        elif key in taken_keys:
            refused[node_id] = (
                f"the key {key} belongs to another process already: join with a key of its own"
            )
        else:
            nodes[node_id] = key
            taken_keys.add(key)
    return msgspec.structs.replace(found, nodes=nodes), refused


def invitation(token: str) -> Invitation:
    """Raises Refused for a text that is no invitation."""
    found = _TOKEN.fullmatch(token.strip())
    if found is None:
        raise Refused(
            "the token is not whole: copy it again as `muster node add` printed it "
            "(msj.NODE.FINGERPRINT.SECRET)"
        )
    return Invitation(*found.groups())

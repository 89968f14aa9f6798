"""The nodes of other machines that NATS servers accept, with their public keys; invitations.

Pure. The keeper of each server asks a gateway for them. A gateway writes invitations (node,
fingerprint of the authority, secret); a joining machine reads them.
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
    """The nodes that may connect.

    `nodes` maps joined nodes to their public nkeys. `removed` are names that may no longer connect
    with any key. `revoked` are nodes that wrote too much to the log: they are cut off at once.
    """

    nodes: dict[str, str] = {}
    removed: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()

    @property
    def refused(self) -> frozenset[str]:
        """The names that may no longer connect."""
        return frozenset((*self.removed, *self.revoked))


class AdmittedAsk(msgspec.Struct, frozen=True):
    """keeper -> gateways: a request for changes since commit `seq`; 0: the server has none yet.

    `refused` are nodes that the server does not accept although the log admits them, with the
    reason.
    """

    server: str
    seq: int = 0
    refused: dict[str, str] = {}


class AdmittedAnswer(msgspec.Struct, frozen=True):
    """gateway -> keeper: the nodes as of `seq`; None: no change since the request's.

    Nodes that were removed since then may connect for another `farewell_ms`, to learn the reason.
    """

    seq: int
    admitted: Admitted | None = None
    farewell_ms: int = 0


class Invitation(NamedTuple):
    """An invitation of a machine. `fingerprint` is the SHA-256 of the authority's certificate."""

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
            refused[node_id] = f"{node_id[:64]!r} is not a valid name: use {ID_PATTERN.pattern}"
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
    """Return the invitation in a token. Raises Refused for any other text."""
    found = _TOKEN.fullmatch(token.strip())
    if found is None:
        raise Refused(
            "the token is incomplete: copy it again as `muster node add` printed it "
            "(msj.NODE.FINGERPRINT.SECRET)"
        )
    return Invitation(*found.groups())

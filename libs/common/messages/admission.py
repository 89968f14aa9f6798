"""Which nodes of other machines the NATS servers accept, by which public keys, as whoever runs a server asks a gateway. Pure.

Also the form of an invitation, as the gateway writes it and a joining machine reads it: node, fingerprint of the authority, secret.
"""

import re
from typing import Final, NamedTuple

import msgspec

from libs.common.cluster import Cluster
from libs.common.errors import Refused

PREFIX: Final = "msj"
_TOKEN: Final = re.compile(r"^msj\.([a-z0-9-]{1,63})\.([0-9a-f]{64})\.([A-Za-z0-9_-]{20,64})$")


class Admitted(msgspec.Struct, frozen=True):
    """`nodes`: joined nodes with their public nkeys; `removed`: names that may connect no more, by whatever key."""

    nodes: dict[str, str] = {}
    removed: tuple[str, ...] = ()


class AdmittedAsk(msgspec.Struct, frozen=True):
    """keeper -> gateways. `server` accepts what the log said at `seq`; 0 is nothing yet."""

    server: str
    seq: int = 0


class AdmittedAnswer(msgspec.Struct, frozen=True):
    """`admitted` as of `seq`; None when nothing has changed since the asker's. What was removed since may connect for `farewell_ms` yet,
    in which it hears why it ends.
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


def admitted(cluster: Cluster) -> Admitted:
    members = cluster.memberships.values()
    nodes = {member.node_id: member.public_key for member in members if member.public_key and not member.removed}
    return Admitted(dict(sorted(nodes.items())), tuple(sorted(member.node_id for member in members if member.removed)))


def invitation(token: str) -> Invitation:
    """Raises Refused for a text that is no invitation."""
    found = _TOKEN.match(token.strip())
    if found is None:
        raise Refused("the token is not whole: copy it again as `muster node add` printed it (msj.NODE.FINGERPRINT.SECRET)")
    return Invitation(*found.groups())

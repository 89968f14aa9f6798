"""What a request about a machine's belonging means: checks it and gives the fact to record, or says
what is wrong with it.

Pure.

The secret of an invitation is shown once and never recorded; only its SHA-256 is. Held by
tests/unit/test_membership.py.
"""

import hashlib
import hmac
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import NodeInvited, NodeJoined, NodeRemovalRequested
from libs.common.life import node_life
from libs.common.model import ID_PATTERN, NodeId
from libs.common.safety import public_nkey
from libs.common.state.cluster import Cluster, Membership
from services.api_gateway.intents.fields import check_range, convert
from services.api_gateway.intents.job_intents import fields_of, user_of
from services.api_gateway.problems import Problem
from services.api_gateway.times import duration_s

NS: Final = 1_000_000_000
VALID_S: Final = 3_600
VALID_MAX_S: Final = 7 * 86_400
# Of an invitation: no token has this hash.
WITHDRAWN: Final = ""
INVITE_FIELDS: Final = ("node_id", "expires_in", "user")
JOIN_FIELDS: Final = ("node_id", "secret", "public_key", "address")


class InviteWish(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/nodes`. Without `node_id` the next free name."""

    node_id: str = ""
    expires_in: int | str = VALID_S


class JoinWish(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /join`."""

    node_id: str
    secret: str
    public_key: str
    address: str = ""


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def invitation(body: object, cluster: Cluster, secret: str, now_ns: int) -> NodeInvited:
    """Raises Refused, or Problem 409 for a name that is taken."""
    fields = fields_of({} if body is None else body, INVITE_FIELDS)
    user = user_of(fields)
    wish = convert(fields, InviteWish)
    node_id = NodeId(wish.node_id or _free_name(cluster))
    if not ID_PATTERN.fullmatch(node_id):
        raise Refused(
            f"node_id: {node_id[:64]!r} is not valid: use small letters, digits and - (at most 63)"
        )
    member = cluster.memberships.get(node_id)
    if node_id in cluster.nodes or (member is not None and (member.public_key or member.leaving)):
        raise Problem(
            409,
            (
                f"node {node_id} is or was a node of this cluster, and a name is used once: give "
                "another"
            ),
        )
    valid_s = duration_s(wish.expires_in, "expires_in")
    check_range("expires_in", valid_s, 1, VALID_MAX_S)
    return NodeInvited(
        node_id=node_id,
        secret_hash=hash_secret(secret),
        expires_ns=now_ns + valid_s * NS,
        user=user,
    )


def joining(body: object, cluster: Cluster, now_ns: int) -> NodeJoined:
    """Raises Refused for a malformed key, Problem 403 for what is no valid invitation, always in
    the same words, and Problem 409 for a key that another node has: two users with one key make a
    NATS server refuse its whole file.
    """
    wish = convert(fields_of({} if body is None else body, JOIN_FIELDS), JoinWish)
    if why := public_nkey.fault(wish.public_key):
        raise Refused(f"public_key: {why}; give the node's public nkey (U and 55 more characters)")
    member = cluster.memberships.get(NodeId(wish.node_id))
    digest = hash_secret(wish.secret)
    if (
        member is None
        or not hmac.compare_digest(member.secret_hash, digest)
        or not _is_open(member, wish, now_ns)
    ):
        raise Problem(
            403,
            (
                "this invitation is not known, was used, or has expired: `muster node add` makes "
                "another"
            ),
        )
    if wish.public_key in _keys_of_others(cluster, member.node_id):
        raise Problem(
            409,
            (
                f"public_key: {wish.public_key} is another node's key: let this machine make its "
                "own (give another --state)"
            ),
        )
    return NodeJoined(
        node_id=member.node_id,
        secret_hash=digest,
        public_key=wish.public_key,
        address=wish.address[:64],
    )


def _keys_of_others(cluster: Cluster, node_id: NodeId) -> set[str]:
    """The keys of the other nodes that may connect, whether they joined or the cluster began with
    them.
    """
    joined = {
        member.public_key
        for member in cluster.memberships.values()
        if member.node_id != node_id and not member.removed
    }
    registered = {
        node.peer_key
        for node in cluster.nodes.values()
        if node.node_id != node_id and node.state != node_life.REMOVED
    }
    return joined | registered


def _is_open(member: Membership, wish: JoinWish, now_ns: int) -> bool:
    """The one who used it may repeat the request when the answer was lost."""
    return (
        not member.leaving
        and now_ns < member.expires_ns
        and member.public_key in ("", wish.public_key)
    )


def removal(
    cluster: Cluster, node_id: str, wait: bool, user: str
) -> NodeRemovalRequested | NodeInvited:
    """Who never came is not removed, which would use its name up: its invitation gives way to one
    that opens nothing.

    Raises Problem 404 or 409.
    """
    node, member = cluster.nodes.get(NodeId(node_id)), cluster.memberships.get(NodeId(node_id))
    if node is None and member is None:
        raise Problem(404, f"no node {node_id[:64]!r} is known: GET /v1/nodes lists them")
    if node is None and member is not None and not member.public_key and not member.leaving:
        return NodeInvited(
            node_id=member.node_id,
            secret_hash=WITHDRAWN,
            expires_ns=0,
            user=user_of({"user": user}),
        )
    if member is not None and member.removed:
        raise Problem(409, f"node {node_id} is removed already")
    if (
        (member is None or not member.public_key)
        and node is not None
        and node.state != node_life.UNREACHABLE
    ):
        raise Problem(
            409,
            (
                f"node {node_id} did not join by an invitation: stop its agent where it was "
                "started, then remove it"
            ),
        )
    return NodeRemovalRequested(node_id=NodeId(node_id), wait=wait, user=user_of({"user": user}))


def _free_name(cluster: Cluster) -> str:
    number = 1
    while (
        NodeId(f"host-{number}") in cluster.nodes or NodeId(f"host-{number}") in cluster.memberships
    ):
        number += 1
    return f"host-{number}"

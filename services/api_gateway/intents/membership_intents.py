"""Requests to invite machines, join the cluster and leave it.

Pure. The secret of an invitation is shown once and never recorded; the log has only its SHA-256
hash. Tests: tests/unit/test_membership.py.
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
from services.api_gateway.intents.job_intents import body_fields, take_user
from services.api_gateway.problems import Problem
from services.api_gateway.times import duration_s

NS: Final = 1_000_000_000
VALID_S: Final = 3_600
VALID_MAX_S: Final = 7 * 86_400
# The hash of a withdrawn invitation: no token has it.
WITHDRAWN: Final = ""
INVITATION_NOT_VALID: Final = (
    "the invitation is not known, was used, or has expired: create another one with `muster node "
    "add`"
)
INVITE_FIELDS: Final = ("node_id", "expires_in", "user")
JOIN_FIELDS: Final = ("node_id", "secret", "public_key", "address")


class InviteBody(msgspec.Struct, frozen=True, kw_only=True):
    """An invitation. Without `node_id` the gateway chooses the next free name."""

    node_id: str = ""
    expires_in: int | str = VALID_S


class JoinBody(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's request to join: its invitation's `secret` and its own public key."""

    node_id: str
    secret: str
    public_key: str
    address: str = ""


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def invitation(body: object, cluster: Cluster, secret: str, now_ns: int) -> NodeInvited:
    """Return the fact for `POST /v1/nodes`.

    Raises Refused if the name is invalid, and Problem 409 if it is or was in use.
    """
    fields = body_fields({} if body is None else body, INVITE_FIELDS)
    user = take_user(fields)
    invite = convert(fields, InviteBody)
    node_id = NodeId(invite.node_id or _free_name(cluster))
    if not ID_PATTERN.fullmatch(node_id):
        raise Refused(
            f"node_id: {node_id[:64]!r} is not valid: use small letters, digits and - (at most 63)"
        )
    member = cluster.memberships.get(node_id)
    if node_id in cluster.nodes or (member is not None and (member.public_key or member.leaving)):
        text = (
            f"node_id: {node_id} is or was a node of this cluster, and a name is used once: give "
            "another name"
        )
        raise Problem(409, text)
    valid_s = duration_s(invite.expires_in, "expires_in")
    check_range("expires_in", valid_s, 1, VALID_MAX_S)
    return NodeInvited(
        node_id=node_id,
        secret_hash=hash_secret(secret),
        expires_ns=now_ns + valid_s * NS,
        user=user,
    )


def joining(body: object, cluster: Cluster, now_ns: int) -> NodeJoined:
    """Return the fact for `POST /join`.

    Raises Refused for a malformed key, Problem 403 if the invitation is not valid (the text never
    says why), and Problem 409 if another node has this key: a NATS server refuses its whole user
    file if two users have one key.
    """
    join = convert(body_fields({} if body is None else body, JOIN_FIELDS), JoinBody)
    if why := public_nkey.fault(join.public_key):
        raise Refused(f"public_key: {why}: give the node's public nkey (U and 55 more characters)")
    member = cluster.memberships.get(NodeId(join.node_id))
    digest = hash_secret(join.secret)
    if (
        member is None
        or not hmac.compare_digest(member.secret_hash, digest)
        or not _is_open(member, join, now_ns)
    ):
        raise Problem(403, INVITATION_NOT_VALID)
    if join.public_key in _keys_of_others(cluster, member.node_id):
        text = (
            f"public_key: {join.public_key} is another node's key: let this machine create its own "
            "key (give another --state)"
        )
        raise Problem(409, text)
    return NodeJoined(
        node_id=member.node_id,
        secret_hash=digest,
        public_key=join.public_key,
        address=join.address[:64],
    )


def _keys_of_others(cluster: Cluster, node_id: NodeId) -> set[str]:
    """Return the public keys of the other nodes that may connect, joined or preconfigured."""
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


def _is_open(member: Membership, join: JoinBody, now_ns: int) -> bool:
    """Return whether the invitation can be used.

    The machine that used it may repeat its request, because the answer may have been lost.
    """
    return (
        not member.leaving
        and now_ns < member.expires_ns
        and member.public_key in ("", join.public_key)
    )


def removal(
    cluster: Cluster, node_id: str, wait: bool, user: str
) -> NodeRemovalRequested | NodeInvited:
    """Return the fact for `DELETE /v1/nodes/{node_id}`.

    A machine that never joined is not removed, because that would use up its name: its invitation
    is replaced by a withdrawn one. Raises Problem 404 or 409.
    """
    node, member = cluster.nodes.get(NodeId(node_id)), cluster.memberships.get(NodeId(node_id))
    if node is None and member is None:
        raise Problem(
            404,
            f"node {node_id[:64]!r} does not exist: "
            "list the nodes with `muster nodes` (GET /v1/nodes)",
        )
    if node is None and member is not None and not member.public_key and not member.leaving:
        return NodeInvited(
            node_id=member.node_id,
            secret_hash=WITHDRAWN,
            expires_ns=0,
            user=take_user({"user": user}),
        )
    if member is not None and member.removed:
        raise Problem(409, f"node {node_id} is removed already")
    if (
        (member is None or not member.public_key)
        and node is not None
        and node.state != node_life.UNREACHABLE
    ):
        text = (
            f"node {node_id} cannot be removed while its agent runs, because it did not join by "
            "an invitation: stop its agent where it was started, then remove it"
        )
        raise Problem(409, text)
    return NodeRemovalRequested(node_id=NodeId(node_id), wait=wait, user=take_user({"user": user}))


def _free_name(cluster: Cluster) -> str:
    number = 1
    while (
        NodeId(f"host-{number}") in cluster.nodes or NodeId(f"host-{number}") in cluster.memberships
    ):
        number += 1
    return f"host-{number}"

"""/v1/cluster/verify: a new fold of the log, compared with what the leader recorded and
with each member that lives. Tests: tests/integration/test_gateway_agreement.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.agreement.asking import (
    Entries,
    HashAsk,
    buckets_of,
    entries_of,
)
from libs.common.agreement.build import fingerprint
from libs.common.agreement.questions import ask_leader
from libs.common.agreement.tree import StateTree, differing_key, differing_parts
from libs.common.errors import Unavailable
from libs.common.state.cluster import Cluster
from libs.common.state.state_hash import StateHash
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    Query,
    answer,
    documented,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.problems import Problem

router = APIRouter(tags=["log"])

# Entries that are hashed before other requests have their turn.
SLICE: Final = 200
AGREES: Final = "agrees"
DIFFERS: Final = "differs"
UNKNOWN: Final = "unknown"

# Returns the digests of a member's entries, by part and bucket; None if they are not known.
Ask = Callable[[str, int], Awaitable[Entries | None]]


class MemberVerified(msgspec.Struct):
    """The state of one member as of the commit, compared with that of the new fold.

    `state` is agrees, differs, or unknown: the member has no hash of that commit (it began later,
    or is of another version), or does not answer. `parts` of the state differ, and `key` is the
    first entry that differs in the first of them, where it could be found.
    """

    name: str
    state: str
    parts: tuple[str, ...] = ()
    key: str = ""
    detail: str = ""


class VerifyShown(msgspec.Struct):
    """The members as of commit `seq`, the newest with a recorded hash."""

    seq: int
    agrees: bool
    members: tuple[MemberVerified, ...]


@router.get("/v1/cluster/verify", openapi_extra=documented(Query))
async def verify(request: Request) -> Response:
    """Fold the log anew up to the newest recorded hash, and compare the state with the record, with
    this gateway's and with the scheduler's.
    """
    gateway, _ = await settled(request, Query)
    recorded = gateway.cluster.state_hash
    if not recorded.seq:
        raise Problem(
            409,
            "no hash of the state is recorded yet: the leader records one every "
            f"{gateway.settings.state_hash_every} commits (MUSTER_STATE_HASH_EVERY; 0: never)",
        )
    if recorded.schema != fingerprint():
        raise Problem(
            409,
            f"the newest hash of the state (commit {recorded.seq}) was recorded by another "
            "build, so nothing can be compared with it: repeat the command after a leader of "
            f"this gateway's version has recorded one, every {gateway.settings.state_hash_every} "
            "commits (MUSTER_STATE_HASH_EVERY)",
        )
    moment = await gateway.moments.at(str(recorded.seq), principal_of(request).tenant)
    tree = await _tree_of(moment.cluster)
    fresh = tree.hashed(moment.cluster, recorded.seq)
    members = (
        await _compared("the log's record", tree, fresh, recorded, _scheduler(gateway, recorded)),
        await _compared(
            f"gateway {gateway.settings.instance}",
            tree,
            fresh,
            gateway.agreement.kept.get(recorded.seq),
            _own(gateway, recorded),
        ),
        await _leader(gateway, tree, fresh, recorded),
    )
    agrees = all(member.state != DIFFERS for member in members)
    return answer(VerifyShown(recorded.seq, agrees, members))


async def _tree_of(cluster: Cluster) -> StateTree:
    """Return the tree of a state. Other requests go on meanwhile."""
    tree = StateTree(cluster)
    while tree.backlog:
        tree.work(cluster, SLICE)
        await asyncio.sleep(0)
    return tree


async def _leader(
    gateway: Gateway, tree: StateTree, fresh: StateHash, recorded: StateHash
) -> MemberVerified:
    name = f"scheduler {gateway.cluster.leader}"
    try:
        found = await ask_leader(gateway.bus, HashAsk())
    except Unavailable:
        return MemberVerified(name, UNKNOWN, detail="it does not answer")
    kept = next((each for each in found.hashes if each.seq == recorded.seq), None)
    return await _compared(name, tree, fresh, kept, _scheduler(gateway, recorded))


async def _compared(
    name: str, tree: StateTree, fresh: StateHash, found: StateHash | None, ask: Ask
) -> MemberVerified:
    if found is None:
        return MemberVerified(name, UNKNOWN, detail=f"it has no hash of commit {fresh.seq}")
    if found.schema != fingerprint():
        return MemberVerified(name, UNKNOWN, detail="it is of another build")
    parts = differing_parts(fresh, found)
    if not parts:
        return MemberVerified(name, AGREES)
    key = await _first_key(tree, parts[0], ask)
    return MemberVerified(name, DIFFERS, parts=tuple(parts), key=key)


async def _first_key(tree: StateTree, part: str, ask: Ask) -> str:
    for bucket in buckets_of(part):
        theirs = await ask(part, bucket)
        if theirs is None:
            return ""
        key = differing_key(entries_of(tree, part, bucket), theirs)
        if key:
            return key
    return ""


def _own(gateway: Gateway, recorded: StateHash) -> Ask:
    async def ask(part: str, bucket: int) -> Entries | None:
        agreement = gateway.agreement
        is_newest = recorded.seq == next(reversed(agreement.kept), 0)
        known = agreement.tree if is_newest else None
        return entries_of(known, part, bucket) if known is not None else None

    return ask


def _scheduler(gateway: Gateway, recorded: StateHash) -> Ask:
    async def ask(part: str, bucket: int) -> Entries | None:
        try:
            found = await ask_leader(gateway.bus, HashAsk(recorded.seq, part, bucket))
        except Unavailable:
            return None
        return found.entries if found.is_known else None

    return ask

"""Facts of the log for one client: which it reads, and the stream of new ones.

`GET /v1/events` and the topic `events` of `GET /v1/ws` are made from these pieces. Tests:
tests/integration/test_gateway_views.py, tests/attack/test_names_of_others.py.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from libs.common import facts as f
from libs.common import reading
from libs.common.errors import Refused
from libs.common.facts import KINDS, Commit
from libs.common.model import JobId
from libs.common.state.cluster import Cluster
from libs.common.transport.log import Entry
from services.api_gateway.access import roles
from services.api_gateway.access.fair_turns import SLICE
from services.api_gateway.access.roles import Principal
from services.api_gateway.views.history import concerns, row
from services.api_gateway.views.model_owner import model_named, owned_model
from services.api_gateway.views.others import seen_by
from services.api_gateway.views.waiting import LogFollower

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

# Commits that are kept decoded for the clients that follow: as many as come in a moment.
COMMITS_KEPT: Final = 256

# Facts that every tenant may read: about machines and about the cluster as a whole.
OF_DEVICES: Final = (
    f.GpuFaulted,
    f.GpuRecovered,
    f.GpuServiceSet,
    f.GpuControlRequested,
    f.GpuControlled,
)
OF_ALL: Final = (
    f.TermBegan,
    f.QuotaTermBegan,
    f.ClusterConfigured,
    f.LeaseExtended,
    f.ClusterRestored,
    f.RestoreSettled,
    f.LeaseProfileSet,
    f.LeaseProfileSettled,
    f.NodeLost,
    f.NodeReturned,
    *OF_DEVICES,
)
OF_KEYS: Final = (f.KeyCreated, f.KeyRotated, f.KeyRevoked, f.KeyLimitsSet)

_encode = msgspec.json.Encoder().encode


class FactSent(NamedTuple):
    """A fact for a client that follows: its row as JSON.

    `is_last`: with it the client has all matching facts up to the commit `seq`.
    """

    seq: int
    kind: str
    row: bytes
    is_last: bool


class FactFilter:
    """The filter of facts.

    `kinds` are one or several kinds, separated by commas. Raises Refused if one is not known.
    """

    def __init__(
        self,
        cluster: Cluster,
        principal: Principal,
        kinds: str = "",
        job_id: str = "",
        node_id: str = "",
        since_ns: int = 0,
        until_ns: int = 0,
    ) -> None:
        self.cluster = cluster
        self.principal = principal
        self.job_id = job_id
        self.node_id = node_id
        self.kinds = _kinds(kinds)
        self.since_ns = since_ns
        self.until_ns = until_ns

    def rows(self, entry: Entry) -> list[dict[str, object]]:
        """Return the matching facts of a commit as the API shows them."""
        commit = reading.read_alone(entry.subject, entry.data)
        return [
            row(entry.seq, commit, seen_by(self.principal, self.cluster, fact))
            for fact in self.matching(commit, entry.seq)
        ]

    def matching(self, commit: Commit, seq: int) -> list[f.AnyFact | f.Unknown]:
        """Return the facts that match and that the principal may read."""
        if commit.at_ns < self.since_ns or (self.until_ns and commit.at_ns > self.until_ns):
            return []
        return [fact for fact in commit.facts if self._matches(commit, seq, fact)]

    def _matches(self, commit: Commit, seq: int, fact: f.AnyFact | f.Unknown) -> bool:
        if not (
            f.kind_of(fact).startswith(self.kinds)
            if self.kinds
            else not isinstance(fact, f.AccessRecorded)
        ):
            return False
        if not (self.job_id or self._may_read(fact, seq)):
            return False
        if self.job_id and not (concerns(fact, self.job_id) and hasattr(fact, "job_id")):
            return False
        return not self.node_id or _on_node(commit, fact, self.node_id)

    def _may_read(self, fact: f.AnyFact | f.Unknown, seq: int) -> bool:
        """Return whether the principal may read the fact.

        Tenants read their own facts and those in OF_ALL; only administrators read facts of keys.
        """
        if isinstance(fact, OF_KEYS) or roles.sees_all(self.principal):
            return self.principal.role == roles.ADMIN or not isinstance(fact, OF_KEYS)
        job = self.cluster.jobs.get(getattr(fact, "job_id", JobId("")))
        owner = job or owned_model(self.cluster, fact, seq, model_named(fact))
        tenant = getattr(fact, "tenant", None) or (owner.tenant if owner else "")
        return tenant == self.principal.tenant or isinstance(fact, OF_ALL)


def _on_node(commit: Commit, fact: f.AnyFact | f.Unknown, node_id: str) -> bool:
    if isinstance(fact, f.JobPlaced):
        return any(member.node_id == node_id for member in fact.members)
    return getattr(fact, "node_id", "") == node_id


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(kind for kind in text.split(",") if kind)
    for kind in kinds:
        if not any(known.startswith(kind) for known in KINDS):
            raise Refused(
                f"kind: {kind[:32]!r} is not known: give one or more of {', '.join(sorted(KINDS))}"
            )
    return kinds


class FactRows:
    """The last commits, decoded once, and the rows of their facts, encoded once for all clients
    that may see the same.
    """

    def __init__(self) -> None:
        self.commits: dict[int, tuple[Commit, dict[int, bytes]]] = {}

    def of(self, entry: Entry, fact_filter: FactFilter) -> list[FactSent]:
        """Return the facts of a commit that the filter accepts."""
        found = self.commits.get(entry.seq)
        if found is None:
            found = (reading.read_alone(entry.subject, entry.data), {})
            # A client that reads old commits is alone with them.
            if entry.seq > fact_filter.cluster.seq - COMMITS_KEPT:
                self.commits[entry.seq] = found
            if len(self.commits) > COMMITS_KEPT:
                del self.commits[next(iter(self.commits))]
        commit, encoded = found
        matching = fact_filter.matching(commit, entry.seq)
        last = len(matching) - 1
        return [
            FactSent(
                entry.seq,
                f.kind_of(fact),
                self._row(entry.seq, commit, fact, fact_filter=fact_filter, encoded=encoded),
                place == last,
            )
            for place, fact in enumerate(matching)
        ]

    def _row(
        self,
        seq: int,
        commit: Commit,
        fact: f.AnyFact | f.Unknown,
        fact_filter: FactFilter,
        encoded: dict[int, bytes],
    ) -> bytes:
        seen = seen_by(fact_filter.principal, fact_filter.cluster, fact)
        if seen is not fact:
            return _encode(row(seq, commit, seen))
        found = encoded.get(id(fact))
        if found is None:
            found = encoded[id(fact)] = _encode(row(seq, commit, fact))
        return found


async def fact_groups(
    gateway: "Gateway", fact_filter: FactFilter, after: int, idle_s: float | None = None
) -> AsyncGenerator[list[FactSent], None]:
    """Yield the matching facts after `after` for ever, whole commits at a time.

    An empty group means that nothing came for `idle_s`.
    """
    waiting, last_s = gateway.waiting, 0.0
    follower = LogFollower(fact_filter.principal.tenant)
    while True:
        async with aclosing(_read(gateway, fact_filter, after)) as slices:
            async for seq, found in slices:
                after = seq
                if found:
                    yield found
        if gateway.cluster.seq > after:
            continue
        if await waiting.commits(follower, idle_s):
            last_s = await waiting.wait_pace(last_s)
        else:
            yield []


async def _read(
    gateway: "Gateway", fact_filter: FactFilter, after: int
) -> AsyncGenerator[tuple[int, list[FactSent]], None]:
    """Yield the matching facts up to now, a slice at a time, with its last commit."""
    tenant, is_woken = fact_filter.principal.tenant, gateway.entries.remembers(after + 1)
    async with aclosing(gateway.entries.scan(after, gateway.cluster.seq)) as slices:
        while True:
            if not is_woken:
                await gateway.fair_turns.turn(tenant, SLICE)
            piece = await anext(slices, None)
            if piece is None:
                return
            if piece:
                is_woken = piece[-1].seq >= gateway.cluster.seq
                found = [
                    fact for entry in piece for fact in gateway.fact_rows.of(entry, fact_filter)
                ]
                yield piece[-1].seq, found

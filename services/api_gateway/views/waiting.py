"""Requests that wait: for a sequence to be folded, for a job to change, or for any change.

No request polls: the fold wakes exactly the requests that wait for what it changed. Tests:
tests/unit/test_gateway_log_end.py and tests/unit/test_watchers.py.
"""

import asyncio
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from libs.common.change import Change
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Job
from libs.common.state.locks import ClaimKey
from libs.common.transport.log import Log
from services.api_gateway.access.fair_turns import FairTurns
from services.api_gateway.problems import Problem
from services.api_gateway.views.interests import Interest, Journal

WATCHERS_MAX: Final = 10_000
# Different filters that name no jobs, of the clients of one tenant. Each is looked at when any job
# of the tenant changes.
FILTERS_MAX: Final = 256
# The least time between two deliveries to one client.
PACE_S: Final = 0.02
# Past this many, waiters that gave up are swept out.
SWEEP_ABOVE: Final = 10_000


class Watcher:
    """One client's place in the journal of its interest.

    A job that changes often appears once, so the state's size bounds the backlog.
    """

    def __init__(self, feed: "Feed", tenant: str) -> None:
        self.feed = feed
        self.tenant = tenant
        self.read = feed.journal.tick
        self.woken = asyncio.Event()

    def take(self) -> tuple[list[JobId], list[NodeId]]:
        """Return the jobs and nodes that changed since the last call, the latest change last."""
        journal = self.feed.journal
        taken = journal.since(self.read)
        self.read = journal.tick
        self.woken.clear()
        self.feed.idle[self] = None
        if journal.is_long:
            journal.shorten(min(watcher.read for watcher in self.feed.watchers))
        return taken


class LogFollower:
    """A client that waits for commits."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.woken = asyncio.Event()


class Feed:
    """A journal and its readers. `idle` are those that have read all of it."""

    def __init__(self, interest: Interest) -> None:
        self.journal = Journal(interest)
        self.watchers: set[Watcher] = set()
        self.idle: dict[Watcher, None] = {}


class Feeds:
    """The feeds of one gateway, found by what changed.

    A client that waits is woken when it is the turn of its tenant. The others find the change when
    they read on.
    """

    def __init__(self, turns: FairTurns) -> None:
        self.turns = turns
        self.feeds: dict[Interest, Feed] = {}
        self.of_nodes: list[Feed] = []
        # By the only tenant whose jobs the clients may see, then by the one that they ask for.
        self.of_tenant: dict[tuple[str | None, str], list[Feed]] = {}
        self.of_job: dict[tuple[str | None, JobId], list[Feed]] = {}
        # How many clients of a tenant have each of its filters that name no jobs.
        self.filters: dict[str, dict[Interest, int]] = {}
        self.watchers = 0

    def check_room(self) -> None:
        """Raise Problem 503 if this gateway has its maximum of watching clients."""
        if self.watchers >= WATCHERS_MAX:
            raise Problem(
                503,
                f"{WATCHERS_MAX} clients watch at this gateway, the maximum: close one, or use "
                "another gateway",
            )

    def check_filters(self, interest: Interest, tenant: str) -> None:
        """Raise Problem 429 if a client with this interest would be one filter too many of its
        tenant.
        """
        held = self.filters.get(tenant, {})
        if _is_wide(interest) and interest not in held and len(held) >= FILTERS_MAX:
            raise Problem(
                429,
                f"the clients of tenant {tenant} have {FILTERS_MAX} different filters of jobs at "
                "this gateway, the maximum: end a subscription, use a filter that another one "
                "has, name the jobs in filter.ids, or use another gateway",
            )

    def enter(self, interest: Interest, tenant: str) -> Watcher:
        """Add a client of a tenant, which begins with the next change."""
        feed = self.feeds.get(interest)
        if feed is None:
            feed = self.feeds[interest] = Feed(interest)
            for where, name in self._places(interest):
                where.setdefault(name, []).append(feed)
            if interest.nodes or interest.devices:
                self.of_nodes.append(feed)
        watcher = Watcher(feed, tenant)
        if _is_wide(interest):
            held = self.filters.setdefault(tenant, {})
            held[interest] = held.get(interest, 0) + 1
        feed.watchers.add(watcher)
        feed.idle[watcher] = None
        self.watchers += 1
        return watcher

    def leave(self, watcher: Watcher) -> None:
        feed, interest = watcher.feed, watcher.feed.journal.interest
        feed.watchers.discard(watcher)
        feed.idle.pop(watcher, None)
        self.watchers -= 1
        if _is_wide(interest):
            self._leave_filter(interest, watcher.tenant)
        if feed.watchers:
            return
        del self.feeds[interest]
        for where, name in self._places(interest):
            where[name].remove(feed)
            if not where[name]:
                del where[name]
        if interest.nodes or interest.devices:
            self.of_nodes.remove(feed)

    def _leave_filter(self, interest: Interest, tenant: str) -> None:
        held = self.filters[tenant]
        held[interest] -= 1
        if not held[interest]:
            del held[interest]
        if not held:
            del self.filters[tenant]

    def _places(self, interest: Interest) -> list[tuple[dict[Any, list[Feed]], Any]]:
        """Return the lists that have a feed: by its jobs, or else by its tenant.

        No change of another tenant's jobs costs anything for clients that must not see it.
        """
        if interest.jobs is None:
            return []
        own = interest.tenant
        if interest.jobs.only:
            return [(self.of_job, (own, job_id)) for job_id in interest.jobs.only]
        return [(self.of_tenant, (own, interest.jobs.tenant if own is None else ""))]

    def changed(self, jobs: Mapping[JobId, str], of: Mapping[JobId, Job], change: Change) -> None:
        """Note a change in each feed that wants it. `jobs` has the state of each before it."""
        for job_id, before in jobs.items():
            job = of.get(job_id)
            if job is None:
                continue
            for feed in self._feeds_of(job):
                interest = feed.journal.interest
                if (
                    interest.jobs is not None
                    and interest.tenant in (None, job.tenant)
                    and interest.jobs.wants(job, before, change.nodes)
                ):
                    feed.journal.note_job(job_id)
                    self._wake(feed)
        for feed in self.of_nodes:
            nodes = _devices(jobs, of, change) if feed.journal.interest.devices else change.nodes
            if nodes:
                feed.journal.note_nodes(nodes)
                self._wake(feed)

    def _wake(self, feed: Feed) -> None:
        for watcher in feed.idle:
            self.turns.put(watcher.tenant, watcher.woken)
        feed.idle.clear()

    def _feeds_of(self, job: Job) -> Iterator[Feed]:
        yield from self.of_tenant.get((None, ""), ())
        yield from self.of_tenant.get((None, job.tenant), ())
        yield from self.of_tenant.get((job.tenant, ""), ())
        yield from self.of_job.get((None, job.job_id), ())
        yield from self.of_job.get((job.tenant, job.job_id), ())


def _is_wide(interest: Interest) -> bool:
    """Return whether each change of a job of a whole tenant is held against the interest."""
    return interest.jobs is not None and not interest.jobs.only


def _devices(jobs: Iterable[JobId], of: Mapping[JobId, Job], change: Change) -> dict[NodeId, None]:
    """Return the changed nodes, and those where a job changed: the use of their devices may have
    changed too.
    """
    found = dict.fromkeys(change.nodes)
    for job_id in jobs:
        if (job := of.get(job_id)) is not None:
            found.update(dict.fromkeys(job.members))
    return found


class LogEnd:
    """The last sequence of the log. Requests that need it at the same time share one question."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._last = 0
        self._begun = 0
        self._answered = 0
        self._lock = asyncio.Lock()

    async def last(self, seq: int) -> int:
        """Return the log's last sequence, asked after this call began; a known one if it is at
        least `seq`.

        Raises Unavailable.
        """
        begun = self._begun
        async with self._lock:
            # A question that began before this call may miss a commit that the client has seen.
            if seq > self._last and self._answered <= begun:
                self._begun += 1
                number = self._begun
                self._last = (await self.log.bounds())[1]
                self._answered = number
            return self._last


class Waiting:
    """All waiters of one gateway."""

    def __init__(self, turns: FairTurns) -> None:
        self.by_seq: list[tuple[int, int, asyncio.Future[None]]] = []
        self.by_job: dict[JobId, list[asyncio.Future[None]]] = {}
        self.by_claim: dict[ClaimKey, list[asyncio.Future[None]]] = {}
        self.turns = turns
        self.feeds = Feeds(turns)
        self.log_followers: dict[LogFollower, None] = {}
        self.node_seqs: dict[NodeId, int] = {}
        self.device_seqs: dict[NodeId, int] = {}
        self.known_since = 0
        self._count = 0

    def sequence(self, seq: int) -> asyncio.Future[None]:
        """Return a future that is done when `seq` is folded."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        if len(self.by_seq) > SWEEP_ABOVE:
            self.by_seq = [waiter for waiter in self.by_seq if not waiter[2].done()]
            heapq.heapify(self.by_seq)
        heapq.heappush(self.by_seq, (seq, self._count, future))
        return future

    async def job(self, job_id: JobId, timeout_s: float) -> None:
        """Wait until the job changes, at most `timeout_s`."""
        await _changed(self.by_job, job_id, timeout_s)

    async def lock(self, key: ClaimKey, timeout_s: float) -> None:
        """Wait until the claim on a lock changes, at most `timeout_s`."""
        await _changed(self.by_claim, key, timeout_s)

    def folded(self, seq: int) -> None:
        """Wake the requests that wait for `seq` or an earlier commit."""
        while self.by_seq and self.by_seq[0][0] <= seq:
            _, _, future = heapq.heappop(self.by_seq)
            if not future.done():
                future.set_result(None)
        for follower in self.log_followers:
            self.turns.put(follower.tenant, follower.woken)
        self.log_followers.clear()

    async def commits(self, follower: LogFollower, idle_s: float | None) -> bool:
        """Wait for the next commit, at most `idle_s`; return whether there is one."""
        follower.woken.clear()
        self.log_followers[follower] = None
        try:
            return await is_set(follower.woken, idle_s)
        finally:
            self.log_followers.pop(follower, None)

    def changed(
        self, seq: int, jobs: Mapping[JobId, str], of: Mapping[JobId, Job], change: Change
    ) -> None:
        """Wake the requests that wait for these jobs and nodes.

        `jobs` has the state of each before the change, `of` all jobs of the cluster.
        """
        for job_id in jobs:
            _wake(self.by_job.pop(job_id, ()))
        for key in change.locks:
            _wake(self.by_claim.pop(key, ()))
        for node_id in change.nodes:
            self.node_seqs[node_id] = seq
        for node_id in _devices(jobs, of, change):
            self.device_seqs[node_id] = seq
        if self.feeds.watchers:
            self.feeds.changed(jobs, of, change)

    def begin(self, seq: int) -> None:
        """Note that changes of nodes are known from here on."""
        self.known_since = seq

    def nodes_since(self, seq: int, devices: bool) -> dict[NodeId, int] | None:
        """Return the nodes that changed after `seq`, also in the use of their `devices` if asked.

        None if changes so old are not known.
        """
        if seq < self.known_since:
            return None
        seqs = self.device_seqs if devices else self.node_seqs
        return {node_id: at for node_id, at in seqs.items() if at > seq}

    async def wait_pace(self, last_s: float) -> float:
        """Wait until a client may be sent more that was sent something at `last_s`; return the time
        then, by the loop's clock.
        """
        now_s = asyncio.get_running_loop().time()
        early_s = last_s + PACE_S - now_s
        if early_s <= 0:
            return now_s
        await asyncio.sleep(early_s)
        return now_s + early_s


K = TypeVar("K")


async def _changed(waiting: dict[K, list[asyncio.Future[None]]], name: K, timeout_s: float) -> None:
    """Wait in the list of this name until it is woken, at most `timeout_s`."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters = waiting.setdefault(name, [])
    waiters.append(future)
    try:
        await asyncio.wait((future,), timeout=timeout_s)
    finally:
        if not future.done():
            waiters.remove(future)
            if not waiters and waiting.get(name) is waiters:
                del waiting[name]


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def is_set(event: asyncio.Event, idle_s: float | None) -> bool:
    """Wait for an event, at most `idle_s`; return whether it is set."""
    if idle_s is None:
        return await event.wait()
    try:
        async with asyncio.timeout(idle_s):
            return await event.wait()
    except TimeoutError:
        return False

"""Streams of jobs and nodes: what is there now or changed since, then each change.

`GET /v1/watch` and the topics of `GET /v1/ws` are made from these pieces. A row shows a job or node
as it is when it is sent, so a slow client misses intermediate states but never the last one.

Each piece says how far the client is: after it, the client has all changes up to `seq`. A client
that continues after the `seq` of its last piece therefore misses nothing. Within a group of changes
this stays the `seq` of the group before. Tests:
tests/integration/test_gateway_ws_resume.py, tests/integration/test_gateway_ws_gone.py.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from libs.common.model import JobId, NodeId
from libs.common.state.cluster import ENDED_JOBS_KEPT
from services.api_gateway.access.fair_turns import SLICE
from services.api_gateway.access.roles import Principal
from services.api_gateway.problems import Problem
from services.api_gateway.views import rows
from services.api_gateway.views.fleet import is_on_map
from services.api_gateway.views.interests import Interest, JobFilter
from services.api_gateway.views.waiting import is_set

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

# Rows in one piece, and jobs that are looked at before other requests get their turn.
SLICE_ROWS: Final = 50
SCAN_SLICE: Final = 1_000


class Piece(NamedTuple):
    """Some rows of one kind.

    The client has all changes up to `before` without the last row, and up to `seq` with it.
    `is_first`: they are part of what was there at the beginning. A piece without rows that is
    `is_ready` ends the beginning.
    """

    kind: str
    rows: list[bytes]
    before: int
    seq: int
    is_first: bool = False
    is_ready: bool = False


class Stream:
    """The things that one client follows.

    `after` is the commit after which it continues; 0: it begins with all that is there. With
    `only_changes` it begins with nothing. `nodes_as` is the kind of row of a node, and `node_ids`
    the only nodes; empty: all.
    """

    def __init__(
        self,
        gateway: "Gateway",
        principal: Principal,
        interest: Interest,
        after: int = 0,
        only_changes: bool = False,
        node_ids: frozenset[NodeId] = frozenset(),
    ) -> None:
        self.gateway = gateway
        self.principal = principal
        self.interest = interest
        self.after = after
        self.only_changes = only_changes
        self.node_ids = node_ids
        self.nodes_as = rows.FLEET if interest.devices else rows.NODE

    def check_after(self) -> None:
        """Raise Problem 410 if jobs that ended after `after` may have left the state: no row would
        say that they ended.
        """
        cluster, wanted = self.gateway.cluster, self.interest.jobs
        if not self.after or wanted is None or len(cluster.ended) < ENDED_JOBS_KEPT:
            return
        # Jobs leave in the order in which they ended.
        oldest = next(iter(cluster.ended.values()))
        if oldest > self.after and not (wanted.only and wanted.only <= cluster.jobs.keys()):
            raise Problem(
                410,
                f"after: more than {ENDED_JOBS_KEPT} jobs have ended since commit {self.after}, "
                f"and this gateway keeps no more of them (the oldest ended at {oldest}): leave out "
                "after to begin anew, and read GET /v1/jobs for jobs that ended meanwhile",
            )

    async def pieces(self, idle_s: float | None = None) -> AsyncGenerator[Piece | None, None]:
        """Yield the pieces for ever. None means that nothing changed for `idle_s`.

        Raises Problem 410 if the client read so slowly that it would miss jobs that ended.
        """
        waiting = self.gateway.waiting
        watcher = waiting.feeds.enter(self.interest, self.principal.tenant)
        try:
            seq, last_s = self.gateway.cluster.seq, 0.0
            async for piece in self._beginning(seq):
                yield piece
            self.check_after()
            yield Piece(self.nodes_as, [], seq, seq, is_ready=True)
            while True:
                if not await is_set(watcher.woken, idle_s):
                    yield None
                    continue
                last_s = await waiting.wait_pace(last_s)
                before, seq = seq, self.gateway.cluster.seq
                jobs, nodes = watcher.take()
                async for piece in self._group(jobs, nodes, before, seq):
                    yield piece
        finally:
            waiting.feeds.leave(watcher)

    async def _beginning(self, seq: int) -> AsyncGenerator[Piece, None]:
        if self.only_changes and not self.after:
            return
        job_filter = self.interest.jobs
        jobs = [] if job_filter is None else await self._jobs(job_filter)
        nodes = self._nodes() if self.interest.nodes or self.interest.devices else []
        async for piece in self._group(jobs, nodes, self.after, self.after):
            yield piece._replace(is_first=not self.after)

    async def _jobs(self, job_filter: JobFilter) -> list[JobId]:
        """Return the jobs to begin with: those that match, or that changed since."""
        gateway, found = self.gateway, list[JobId]()
        known = gateway.cluster.jobs
        names = self._named(job_filter)
        for number, job_id in enumerate(names, start=1):
            job = known.get(job_id)
            if job is None:
                continue  # it has left the state meanwhile
            if self.after:
                wanted = gateway.history.changed(job_id) > self.after and job_filter.is_of(job)
            else:
                wanted = job_filter.matches(job)
            if wanted and self.interest.tenant in (None, job.tenant):
                found.append(job_id)
            if number % SCAN_SLICE == 0:
                await self._turn()
        return found

    def _named(self, job_filter: JobFilter) -> list[JobId]:
        """Return the jobs that may match: those that are named, or those of the tenant, or all."""
        known, tenant = self.gateway.cluster.jobs, self.interest.tenant
        if job_filter.only:
            return sorted(job_filter.only & known.keys())
        if tenant is None:
            return list(known)
        return [place.job_id for place in self.gateway.index.by_tenant.get(tenant, ())]

    def _nodes(self) -> list[NodeId]:
        """Return the nodes to begin with: all, or those that changed since."""
        nodes, changed = self.gateway.cluster.nodes, None
        if self.after:
            changed = self.gateway.waiting.nodes_since(self.after, self.interest.devices)
        if changed is not None:
            return list(changed)
        is_map = self.interest.devices and not self.after
        return [node_id for node_id, node in nodes.items() if not is_map or is_on_map(node)]

    async def _group(
        self, jobs: list[JobId], nodes: list[NodeId], before: int, seq: int
    ) -> AsyncGenerator[Piece, None]:
        """Yield the present rows of these jobs and nodes, in slices; the last one has `seq`."""
        held = None
        if self.node_ids:
            nodes = [node_id for node_id in nodes if node_id in self.node_ids]
        groups: tuple[tuple[str, Sequence[str]], ...] = ((rows.JOB, jobs), (self.nodes_as, nodes))
        for kind, names in groups:
            for first in range(0, len(names), SLICE_ROWS):
                part = names[first : first + SLICE_ROWS]
                found = [row for name in part if (row := self._row(kind, name)) is not None]
                if kind == rows.JOB and before:
                    self._check_kept(part, before)
                if not found:
                    continue
                if held is not None:
                    yield held
                    await self._turn()
                held = Piece(kind, found, before, before)
        if held is not None:
            yield held._replace(seq=seq)

    def _check_kept(self, names: Sequence[str], before: int) -> None:
        """Raise Problem 410 if a job that the client may know has left the state: it has ended."""
        known = self.gateway.cluster.jobs
        gone = next((name for name in names if name not in known), "")
        if gone:
            raise Problem(
                410,
                f"job {gone} and {ENDED_JOBS_KEPT} others have ended since commit {before}, the "
                "last one that this client has whole, and this gateway keeps no more of them: read "
                "faster, begin anew, and read GET /v1/jobs for jobs that ended meanwhile",
            )

    async def _turn(self) -> None:
        """Let others work before the next slice."""
        await self.gateway.fair_turns.turn(self.principal.tenant, SLICE)

    def _row(self, kind: str, name: str) -> bytes | None:
        table = self.gateway.rows
        if kind == rows.JOB:
            return table.job(self.principal, JobId(name))
        show = table.fleet if kind == rows.FLEET else table.node
        return show(self.principal, NodeId(name))

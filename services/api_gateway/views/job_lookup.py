"""Finds jobs by what users write: an id, a name, the beginning of an id, or an array's element.

A principal finds only jobs of the tenants that it may see; any other job is answered like one that
does not exist. Jobs that have left the live state are looked up in the audit's archive.
Tests: tests/integration/test_gateway_jobs.py and test_gateway_archive.py.
"""

import logging
import os
from base64 import b32encode
from typing import NamedTuple

from libs.common import arrays, reading
from libs.common.errors import Unavailable
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job
from libs.common.transport import archive
from libs.common.transport.bus import Bus
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.access.slots import ARCHIVE
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.views.elements import words_of_short
from services.api_gateway.views.entries import Entries
from services.api_gateway.views.history import History, concerns
from services.api_gateway.views.index import JobIndex

logger = logging.getLogger(__name__)


class Page(NamedTuple):
    """A part of a list: at most `limit` entries after `after`."""

    after: int
    limit: int


class HistoryPage(NamedTuple):
    """The next commits of a job. More than `Page.limit` of them mean that another page follows.

    `left_out`: commits between these may be missing, because the archive does not answer.
    """

    job_id: JobId
    seqs: list[int]
    left_out: bool


class JobLookup:
    """Job look-up over one Cluster and its index."""

    def __init__(
        self, cluster: Cluster, index: JobIndex, history: History, entries: Entries, bus: Bus
    ) -> None:
        self.cluster = cluster
        self.index = index
        self.history = history
        self.entries = entries
        self.bus = bus

    def job(self, ref: str, principal: Principal) -> Job:
        """Return the job with this id or name, or the only one whose id begins with `ref`.

        An array's element is found by its array and its number. Raises Problem 404, or 409 with
        the candidates.
        """
        candidates = self._candidates(ref, principal)
        if len(candidates) > 1:
            text = f"{ref!r} is the beginning of several job ids: write more of the id"
            raise Problem(409, text, candidates=candidates)
        if candidates:
            return self.cluster.jobs[candidates[0]]
        element = self.element(ref, principal)
        if element is None:
            text = (
                f"no job has the id or the name {ref[:64]!r}, or an id that begins with it: list "
                "the jobs with `muster ps --all` (GET /v1/jobs?all=1)"
            )
            raise (Denied if JobId(ref) in self.cluster.jobs else Problem)(404, text)
        array, element_id = element
        if element_id not in self.cluster.jobs:
            text = words_of_short(array, element_id) or (
                f"{element_id} has not begun, ended long ago, or does not exist: see its array "
                f"with `muster describe {array.job_id}`"
            )
            raise Problem(404, text)
        return self.cluster.jobs[element_id]

    def element(self, ref: str, principal: Principal) -> tuple[Job, JobId] | None:
        """Return the array and the element id that `ref` names, even if the element has not begun.

        None if `ref` names a job, or no array.
        """
        name, number = arrays.element_of(ref)
        if not name or self._candidates(ref, principal):
            return None
        candidates = self._candidates(name, principal)
        array = self.cluster.jobs[candidates[0]] if len(candidates) == 1 else None
        if array is None or array.elements is None:
            return None
        return array, arrays.element_id(array.job_id, number)

    def _candidates(self, ref: str, principal: Principal) -> list[JobId]:
        """Return the visible job with this id or name, else the visible ids that begin with it."""

        def visible(job: Job) -> bool:
            return roles.sees(principal, job.tenant)

        known = self.cluster.jobs.get(JobId(ref))
        if known is None or not visible(known):
            known = self.index.named(ref, visible)
        if known is not None:
            return [known.job_id]
        return self.index.beginning(ref, visible) if ref else []

    async def left_state(self, ref: str, principal: Principal) -> bool:
        """Return whether a job with this id had left the state before, and the archive knows it."""
        seqs = await self.archived_job(ref, principal)
        return bool(seqs) and seqs[0] <= self.cluster.seq

    async def archived_job(self, ref: str, principal: Principal) -> list[int]:
        """Return the commits of a job that left the live state, by its whole id.

        Empty if the archive does not know the job, or the principal may not see it.
        """
        try:
            async with self.entries.slots.of(ARCHIVE, principal.tenant):
                seqs = await archive.job_seqs(self.bus, ref)
            return seqs if seqs and await self._could_see(seqs[0], ref, principal) else []
        except Unavailable as error:
            logger.warning("job %s could not be looked up in the archive: %s", ref[:64], error)
            return []

    async def _could_see(self, first_seq: int, job_id: str, principal: Principal) -> bool:
        """Return whether the principal may see the job; its first commit names its tenant."""
        if roles.sees_all(principal):
            return True
        entry = await self.entries.get(first_seq)
        if entry is None:
            return False
        commit = reading.read_alone(entry.subject, entry.data)
        return any(
            concerns(fact, job_id) and roles.sees(principal, getattr(fact, "tenant", ""))
            for fact in commit.facts
        )

    async def job_seqs(self, ref: str, principal: Principal) -> tuple[JobId, list[int]]:
        """Return the id of a job and its commits, from the archive where they are not in memory.

        Raises Problem as `job` does.
        """
        try:
            job = self.job(ref, principal)
        except Problem as problem:
            seqs = await self.archived_job(ref, principal) if problem.status == 404 else []
            if not seqs:
                raise
            return JobId(ref), seqs
        known = self.history.of(job.job_id)
        if known and known[0] == job.seq:
            return job.job_id, known
        return job.job_id, sorted({*await self.archived_job(job.job_id, principal), *known})

    async def history_page(self, ref: str, principal: Principal, page: Page) -> HistoryPage:
        """Return the next commits of a job, from the archive where they are not in memory.

        Raises Problem as `job` does.
        """
        job_id, known = await self.job_seqs(ref, principal)
        first, last = self.history.parts(job_id)
        job = self.cluster.jobs.get(job_id)
        if job is None:
            first, last = known, []
        elif not first or first[0] != job.seq:
            last = [*first, *last]
            first = [seq for seq in known if not last or seq < last[0]]
        elif not last:
            return HistoryPage(job_id, [seq for seq in first if seq > page.after], False)
        found, left_out = [seq for seq in first if seq > page.after], False
        upto = last[0] if last else self.cluster.seq + 1
        if len(found) <= page.limit and page.after < upto - 1:
            after = max(page.after, first[-1] if first else 0)
            async with self.entries.slots.of(ARCHIVE, principal.tenant):
                missing, left_out = await self._archived(job_id, after, upto, page.limit + 1)
            found += missing
        if len(found) <= page.limit:
            found += [seq for seq in last if seq > page.after]
        return HistoryPage(job_id, found, left_out)

    async def _archived(
        self, job_id: JobId, after: int, upto: int, count: int
    ) -> tuple[list[int], bool]:
        """Return `count` commits of a job between two others, or all that the archive has.

        Also return whether some may be left out, because the archive does not answer.
        """
        found: list[int] = []
        while len(found) < count:
            try:
                page = await archive.job_seqs(self.bus, job_id, after)
            except Unavailable as error:
                logger.warning("the history of job %s is not whole: %s", job_id, error)
                return found, True
            between = [seq for seq in page if after < seq < upto]
            found += between
            if len(between) < len(page) or not page:
                break
            after = page[-1]
        return found, False

    def new_job_id(self) -> JobId:
        """Return a short random id that no known job has."""
        while True:
            job_id = JobId("j" + b32encode(os.urandom(7)).decode().lower()[:10])
            if job_id not in self.cluster.jobs:
                return job_id

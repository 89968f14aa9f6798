"""The use of each replica by each key: tokens, and a part of the GPUs' time.

The requests that ended are added up and recorded every few seconds (ModelUsed), and at once when
one ended at a replica that is about to stop or that has crashed, because quota charges that replica
soon. The archive has them for `GET /v1/usage`, and metrics count them. A gateway that is killed
loses what it has not recorded; the GPUs' time is then part of the idle line. Tests:
tests/integration/test_openai_usage.py.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from libs.common.errors import Refused
from libs.common.facts import AnyFact, JobFinished, ModelUse, ModelUsed, ReplicasScaled, Unknown
from libs.common.life import job_life
from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Endpoint, Job
from services.api_gateway.access import room
from services.api_gateway.access.auth import is_recorded
from services.api_gateway.access.roles import Principal
from services.api_gateway.openai.call import Call
from services.api_gateway.openai.events import Usage

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

EVERY_S: Final = 5.0
DRAIN_S: Final = 2.0
MS_NS: Final = 1_000_000
# Uses in one fact; each has at most some 300 bytes.
USES_MAX: Final = 150
# Rows that may wait while the log is full. The use of further keys counts without key and user.
ROWS_MAX: Final = 20_000


class Row(NamedTuple):
    """The key of one line of usage: lines with different keys are counted apart.

    `owner` is the tenant of the replica's attempt, which pays for it.
    """

    tenant: str
    user: str
    key_id: str
    model: str
    job_id: JobId
    attempt: int
    owner: TenantId


class Counts:
    """The numbers of one line; `share_ns` is in hundredths of a GPU times nanoseconds."""

    __slots__ = ("inputs", "outputs", "requests", "share_ns")

    def __init__(self) -> None:
        self.requests = self.inputs = self.outputs = self.share_ns = 0


class Usages:
    """The use that this gateway has not recorded yet."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.rows: dict[Row, Counts] = {}
        self._changed = asyncio.Event()

    def note(self, call: Call, endpoint: Endpoint, busy_ns: int, usage: Usage | None) -> None:
        """Add a request that ended at a replica, its tokens, and its part of the replica's time.

        Requests that were joined into a batch have equal parts of its time. Their tokens are noted
        by `note_part`, because a batch whose answer cannot be divided answers none of them.
        """
        job = self.gateway.cluster.jobs.get(endpoint.job_id)
        if job is None:
            return
        share_ns = busy_ns * sum(
            hold.share for member in job.members.values() for hold in member.gpus
        )
        principals: list[Principal] = call.scope.get("principals", ())
        for principal in principals:
            self._counts(principal, call.model, job).share_ns += share_ns // len(principals)
        if (alone := call.scope.get("principal")) is not None:
            counts = self._counts(alone, call.model, job)
            counts.requests += call.status > 0 and not call.moves_on
            counts.share_ns += share_ns
            if usage is not None:
                counts.inputs += usage.inputs
                counts.outputs += usage.outputs
        if job.cancel is not None or job.state != job_life.RUNNING:
            self._changed.set()

    def note_part(
        self, principal: Principal, model: str, job_id: JobId, usage: Usage | None
    ) -> None:
        """Add a request that got its part of a batch's answer."""
        job = self.gateway.cluster.jobs.get(job_id)
        if job is None:
            return
        counts = self._counts(principal, model, job)
        counts.requests += 1
        if usage is not None:
            counts.inputs += usage.inputs
            counts.outputs += usage.outputs

    def _counts(self, principal: Principal, model: str, job: Job) -> Counts:
        row = Row(
            tenant=principal.tenant,
            user=principal.user,
            key_id=principal.key_id,
            model=model,
            job_id=job.job_id,
            attempt=job.attempt,
            owner=job.tenant,
        )
        found = self.rows.get(row)
        if found is None:
            if len(self.rows) >= ROWS_MAX:
                row = row._replace(user="", key_id="")
            found = self.rows.setdefault(row, Counts())
        return found

    def folded(self, facts: Sequence[AnyFact | Unknown]) -> None:
        """Record soon, because a replica was retired or has ended: quota charges it soon."""
        if any(
            isinstance(fact, ReplicasScaled)
            or (isinstance(fact, JobFinished) and self._is_replica(fact.job_id))
            for fact in facts
        ):
            self._changed.set()

    def _is_replica(self, job_id: JobId) -> bool:
        job = self.gateway.cluster.jobs.get(job_id)
        return job is not None and job.spec.serve is not None

    async def run(self) -> None:
        """Record for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), EVERY_S)
            self._changed.clear()
            await self.flush()

    async def drain(self) -> None:
        """Record all rows before a planned stop, for at most DRAIN_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self.flush()

    async def flush(self) -> None:
        """Record all rows. While the log has no room, or too much waits for it, they wait."""
        if not self.rows or self.gateway.fill >= room.RECORDS:
            return
        rows, self.rows = list(self.rows.items()), {}
        self.gateway.telemetry.usage.forget(self._is_gone)
        stored = []
        for begin in range(0, len(rows), USES_MAX):
            part = rows[begin : begin + USES_MAX]
            fact = ModelUsed(uses=tuple(_use(row, counts) for row, counts in part))
            try:
                stored.append(self.gateway.writer.put((fact,)))
            except Refused:
                self.rows.update(part)
                continue
            for use in fact.uses:
                self.gateway.telemetry.usage.note(use)
        await asyncio.gather(*stored)

    def _is_gone(self, model: str, key_id: str) -> bool:
        """Return whether the model or the key was deleted."""
        if self.gateway.models.get(model) is None:
            return True
        return is_recorded(key_id) and key_id not in self.gateway.cluster.keys


def _use(row: Row, counts: Counts) -> ModelUse:
    return ModelUse(
        tenant=TenantId(row.tenant),
        user=row.user,
        key_id=row.key_id,
        owner=row.owner,
        model=row.model,
        job_id=row.job_id,
        attempt=row.attempt,
        requests=counts.requests,
        input_tokens=counts.inputs,
        output_tokens=counts.outputs,
        share_ms=counts.share_ns // MS_NS,
    )

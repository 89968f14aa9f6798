"""The use of each replica by each key: tokens, and a part of the GPUs' time.

The requests that ended are added up and recorded every few seconds (ModelUsed), and at once when
one ended at a replica that is about to stop, because quota charges that replica soon. The archive
has them for `GET /v1/usage`, and metrics count them. A gateway that is killed loses what it has not
recorded; the GPUs' time is then part of the idle line. Tests:
tests/integration/test_openai_usage.py.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from libs.common.errors import Refused
from libs.common.facts import ModelUse, ModelUsed
from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Endpoint, Job
from services.api_gateway.access import room
from services.api_gateway.access.roles import Principal
from services.api_gateway.openai.call import Call

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
    """The key of one line of usage: lines with different keys are counted apart."""

    tenant: str
    user: str
    key_id: str
    model: str
    job_id: JobId


class Usage:
    """The use that this gateway has not recorded yet.

    Each row has requests, input tokens, output tokens, and hundredths of a GPU times nanoseconds.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.rows: dict[Row, list[int]] = {}
        self._changed = asyncio.Event()

    def note(self, call: Call, endpoint: Endpoint, busy_ns: int) -> None:
        """Add a request that ended at a replica, and its part of the replica's time.

        Requests that were joined into a batch have equal parts of its tokens and time.
        """
        job = self.gateway.cluster.jobs.get(endpoint.job_id)
        if job is None:
            return
        principals: list[Principal] = call.scope.get("principals", ())
        for number, principal in enumerate(principals):
            self._add(call, job, principal, busy_ns, (number, len(principals)))
        if (alone := call.scope.get("principal")) is not None:
            self._add(call, job, alone, busy_ns, (0, 1))
        if job.cancel is not None:
            self._changed.set()

    def _add(
        self, call: Call, job: Job, principal: Principal, busy_ns: int, part: tuple[int, int]
    ) -> None:
        number, parts = part
        row = Row(principal.tenant, principal.user, principal.key_id, call.model, job.job_id)
        found = self.rows.get(row)
        if found is None:
            if len(self.rows) >= ROWS_MAX:
                row = row._replace(user="", key_id="")
            found = self.rows.setdefault(row, [0, 0, 0, 0])
        found[0] += call.status > 0
        if call.usage is not None:
            found[1] += (call.usage.inputs + number) // parts
            found[2] += (call.usage.outputs + number) // parts
        share = sum(hold.share for member in job.members.values() for hold in member.gpus)
        found[3] += busy_ns * share // parts

    def wake(self) -> None:
        """Record soon, because a replica was retired."""
        self._changed.set()

    def take(self) -> list[ModelUse]:
        """Return all rows, and begin again."""
        rows, self.rows = self.rows, {}
        cluster = self.gateway.cluster
        uses = []
        for row, (requests, inputs, outputs, share_ns) in rows.items():
            job, model = cluster.jobs.get(row.job_id), cluster.models.get(row.model)
            use = ModelUse(
                tenant=TenantId(row.tenant),
                user=row.user,
                key_id=row.key_id,
                owner=model.tenant if model is not None else TenantId(""),
                model=row.model,
                job_id=row.job_id,
                attempt=job.attempt if job is not None else 0,
                requests=requests,
                input_tokens=inputs,
                output_tokens=outputs,
                share_ms=share_ns // MS_NS,
            )
            uses.append(use)
            self.gateway.telemetry.usage.note(use)
        return uses

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
        """Record all rows; while the log has no room they wait."""
        if not self.rows or self.gateway.fill >= room.RECORDS:
            return
        uses, stored = self.take(), []
        for begin in range(0, len(uses), USES_MAX):
            with contextlib.suppress(Refused):  # the writer is ending
                fact = ModelUsed(uses=tuple(uses[begin : begin + USES_MAX]))
                stored.append(self.gateway.writer.put((fact,)))
        await asyncio.gather(*stored)

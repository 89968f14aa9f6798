"""Allocations: devices that are held without a command, and who holds which device.

Tests: tests/integration/test_client_resources.py.
"""

import time
import uuid
from collections.abc import AsyncIterator, Mapping

from libs.client import calls, fields, timing
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.pages import pages
from libs.client.asynchronous.pauses import pause
from libs.client.errors import JobFailed, TimedOut
from libs.client.models.allocations import AllocationShown, HoldShown
from libs.common.life import job_life


class AsyncAllocations:
    """Devices that are held."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(
        self,
        *,
        gpus: float | None = None,
        nodes: int | None = None,
        expires: int | str | None = None,
        warn: int | str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        **more: object,
    ) -> AllocationShown:
        """Request devices without a command. The time `expires` (1h) begins with their placement.

        `more` are all other fields of `POST /v1/allocations`. Raises InvalidRequest with the wrong
        field.
        """
        body = {
            **fields.gpu_fields(gpus),
            **fields.node_fields(nodes),
            "expires": expires,
            "warn": warn,
            "labels": labels,
            **more,
        }
        key = idempotency_key or uuid.uuid4().hex
        call = calls.changing(
            "POST", calls.path_of("allocations"), self._connection.by_user(body), key=key
        )
        return await self._connection.ask(call, AllocationShown)

    async def get(self, ref: str) -> AllocationShown:
        """Return what an allocation, a job or a replica holds, since when and until when."""
        call = calls.reading(calls.path_of("allocations", ref))
        return await self._connection.ask(call, AllocationShown)

    async def wait_held(self, ref: str, timeout_s: float | None = None) -> AllocationShown:
        """Wait until the devices are held. Raises TimedOut, and JobFailed if it ended before."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            shown = await self.get(ref)
            if shown.state == job_life.RUNNING:
                return shown
            if shown.state in (job_life.RELEASING, *job_life.ENDED):
                raise JobFailed(
                    f"allocation {shown.id} is not held: it is {shown.state}: {shown.reason}",
                    state=shown.state,
                    reason=shown.reason,
                    code=None,
                )
            if until is not None and time.monotonic() >= until:
                raise TimedOut(f"allocation {shown.id} is {shown.state} after {timeout_s:g} s")
            await pause(timing.LOOK_S)

    def list(
        self,
        *,
        node: str | None = None,
        job: str | None = None,
        gpu: str | None = None,
        kind: str | None = None,
    ) -> AsyncIterator[HoldShown]:
        """Return every held part of a device with its holder."""
        query = {"node": node, "job": job, "gpu": gpu, "kind": kind}
        return pages(
            self._connection, calls.path_of("allocations"), "allocations", HoldShown, query
        )

    async def extend(self, ref: str, by: int | str) -> AllocationShown:
        """Extend an allocation by a duration, for example "1h"."""
        body = self._connection.by_user({"by": by})
        call = calls.changing("PATCH", calls.path_of("allocations", ref), body)
        return await self._connection.ask(call, AllocationShown)

    async def release(self, ref: str) -> AllocationShown:
        """Release the devices, or withdraw the request."""
        call = calls.changing("DELETE", calls.path_of("allocations", ref), repeatable=True)
        return await self._connection.ask(call, AllocationShown)

"""Access records: every request under /v1, allowed or denied, becomes part of the log and so of the
audit's chain.

Records wait for MUSTER_ACCESS_FLUSH_MS and are then recorded in batches; a request never waits for
them. While the log is nearly full or does not answer, at most BUFFER_BYTES_MAX wait; further
records are dropped, and the next batch contains their number. A process that is killed loses the
records of that time. Tests: tests/unit/test_access_entries.py and
tests/integration/test_gateway_access.py.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from starlette.types import Scope

from libs.common.errors import Refused
from libs.common.facts import AccessRecorded, AnyFact
from libs.common.messages import access_entry
from libs.common.messages.access_entry import TEXT_MAX, AccessEntry
from libs.common.process.clock import Clock
from services.api_gateway.access.roles import Principal

FLUSH_S: Final = 0.1
# Bytes of one fact before compression; the log accepts 64 KiB.
BATCH_BYTES: Final = 48 << 10
BUFFER_BYTES_MAX: Final = 4 << 20
# Records of requests without a known key in one FLUSH_S, so that they cannot fill the log.
STRANGERS_MAX: Final = 100
DRAIN_S: Final = 2.0
NO_PRINCIPAL: Final = Principal("", "", "", "")

Put = Callable[[Sequence[AnyFact]], "asyncio.Future[int]"]


class Recorder:
    """The access records of one gateway.

    `put` queues a commit; `full` returns whether the log has no room for records.
    """

    def __init__(
        self, clock: Clock, put: Put, full: Callable[[], bool], pause_s: float = FLUSH_S
    ) -> None:
        self.clock, self.put, self.full = clock, put, full
        self.waiting: list[bytes] = []
        self.times: list[int] = []
        self.bytes = 0
        self.strangers = 0
        self.dropped = 0
        self.pause_s = pause_s
        self._some = asyncio.Event()

    def note(
        self, scope: Scope, principal: Principal | None, route: str, status: int, denied: str
    ) -> None:
        """Note one request, once, when its answer begins or when it ended without one."""
        self.strangers += principal is None
        if self.bytes >= BUFFER_BYTES_MAX or (principal is None and self.strangers > STRANGERS_MAX):
            self.dropped += 1
            return
        now_ns = self.clock.wall_ns()
        entry = _entry(
            now_ns,
            scope,
            requester=principal or NO_PRINCIPAL,
            route=route,
            status=status,
            denied=denied,
        )
        self.waiting.append(entry)
        self.times.append(now_ns)
        self.bytes += len(entry)
        self._some.set()

    def beside(self, scope: Scope, principal: Principal, route: str, status: int) -> AccessRecorded:
        """Return the record of a change that must be recorded.

        It is stored in one commit with the change, so neither exists without the other.
        """
        now_ns = self.clock.wall_ns()
        entry = _entry(now_ns, scope, requester=principal, route=route, status=status, denied="")
        return AccessRecorded(
            entries=access_entry.pack([entry]), count=1, first_ns=now_ns, last_ns=now_ns, dropped=0
        )

    async def run(self) -> None:
        """Record the waiting entries, for ever."""
        while True:
            await self._some.wait()
            await asyncio.sleep(self.pause_s)
            await self.flush()

    async def drain(self) -> None:
        """Record the waiting entries before a planned stop, for at most DRAIN_S."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.flush()
        except TimeoutError:
            pass

    async def flush(self) -> None:
        """Record the waiting entries and wait until the log has them."""
        waiting, times = self.waiting, self.times
        self.waiting, self.times, self.bytes, self.strangers = [], [], 0, 0
        self._some.clear()
        if self.full():
            self.dropped += len(waiting)
            return
        stored = []
        for first, last in _batches(waiting):
            fact = AccessRecorded(
                entries=access_entry.pack(waiting[first:last]),
                count=last - first,
                first_ns=times[first],
                last_ns=times[last - 1],
                dropped=self.dropped,
            )
            try:
                stored.append(self.put((fact,)))
                self.dropped = 0
            except Refused:
                self.dropped += last - first
        await asyncio.gather(*stored)


def _entry(
    now_ns: int, scope: Scope, requester: Principal, route: str, status: int, denied: str
) -> bytes:
    client = scope.get("client")
    return access_entry.encode(
        AccessEntry(
            at_ns=now_ns,
            request_id=scope["request_id"],
            key_id=requester.key_id,
            tenant=requester.tenant,
            user=requester.user,
            method=scope["method"][:TEXT_MAX],
            route=route,
            ids=_ids(scope, route),
            status=status,
            denied=denied[:TEXT_MAX],
            source=client[0] if client else "",
            detail=scope.get("detail", ""),
            model=scope.get("model", ""),
        )
    )


def _batches(waiting: list[bytes]) -> list[tuple[int, int]]:
    """Return where each batch begins and ends."""
    found, first, size = [], 0, 0
    for place, entry in enumerate(waiting):
        if size + len(entry) > BATCH_BYTES and place > first:
            found.append((first, place))
            first, size = place, 0
        size += len(entry)
    return [*found, (first, len(waiting))] if waiting else []


def _ids(scope: Scope, route: str) -> tuple[str, ...]:
    """Return the parameters of the route, or the path if it matches no route."""
    if "{" not in route:
        return () if route.startswith("/") else (scope["path"][:TEXT_MAX],)
    params = scope.get("path_params")
    if params:
        return tuple(str(value)[:TEXT_MAX] for value in params.values())
    return (scope["path"][route.index("{") :][:TEXT_MAX],)

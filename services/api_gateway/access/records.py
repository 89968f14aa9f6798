"""Access records: every request under /v1, allowed or denied, becomes part of the log and so of the
audit's chain.

Entries wait here for MUSTER_ACCESS_FLUSH_MS, then go out in batches; a request never waits for
them. While the log is nearly full or does not answer they wait up to BUFFER_BYTES_MAX and are then
dropped, and how many were is part of the next batch. A process that is killed loses those of that
time. Held by tests/unit/test_access_entries.py and tests/integration/test_gateway_access.py.
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
# Of one fact, before it is compressed; the log takes 64 KiB.
BATCH_BYTES: Final = 48 << 10
BUFFER_BYTES_MAX: Final = 4 << 20
# Of those whose key nobody knows, in one FLUSH_S: whoever has no key cannot fill the log.
STRANGERS_MAX: Final = 100
DRAIN_S: Final = 2.0
NOBODY: Final = Principal("", "", "", "")

Put = Callable[[Sequence[AnyFact]], "asyncio.Future[int]"]


class Recorder:
    """The entries of one gateway.

    `put` queues a commit; `full` says that the log has no room for this.
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
        """One request, once, when its answer begins or when it ended without one."""
        self.strangers += principal is None
        if self.bytes >= BUFFER_BYTES_MAX or (principal is None and self.strangers > STRANGERS_MAX):
            self.dropped += 1
            return
        now_ns = self.clock.wall_ns()
        entry = _entry(now_ns, scope, principal or NOBODY, route, status, denied)
        self.waiting.append(entry)
        self.times.append(now_ns)
        self.bytes += len(entry)
        self._some.set()

    def beside(self, scope: Scope, principal: Principal, route: str, status: int) -> AccessRecorded:
        """The record of a change that must be on the record: it is stored in one commit with the
        change, or neither is.
        """
        now_ns = self.clock.wall_ns()
        entry = _entry(now_ns, scope, principal, route, status, "")
        return AccessRecorded(
            entries=access_entry.pack([entry]), count=1, first_ns=now_ns, last_ns=now_ns, dropped=0
        )

    async def run(self) -> None:
        """Flush, for ever."""
        while True:
            await self._some.wait()
            await asyncio.sleep(self.pause_s)
            await self.flush()

    async def drain(self) -> None:
        """What waits, before a planned stop; not for longer than DRAIN_S."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.flush()
        except TimeoutError:
            pass

    async def flush(self) -> None:
        """All that waits now, until the log has it."""
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
    now_ns: int, scope: Scope, who: Principal, route: str, status: int, denied: str
) -> bytes:
    client = scope.get("client")
    return access_entry.encode(
        AccessEntry(
            now_ns,
            scope["request_id"],
            who.key_id,
            who.tenant,
            who.user,
            scope["method"][:TEXT_MAX],
            route,
            _ids(scope, route),
            status,
            denied[:TEXT_MAX],
            client[0] if client else "",
            scope.get("detail", ""),
        )
    )


def _batches(waiting: list[bytes]) -> list[tuple[int, int]]:
    """Where each batch begins and ends."""
    found, first, size = [], 0, 0
    for place, entry in enumerate(waiting):
        if size + len(entry) > BATCH_BYTES and place > first:
            found.append((first, place))
            first, size = place, 0
        size += len(entry)
    return [*found, (first, len(waiting))] if waiting else []


def _ids(scope: Scope, route: str) -> tuple[str, ...]:
    """What stood in the template's places; of a path that is no route's, the path."""
    if "{" not in route:
        return () if route.startswith("/") else (scope["path"][:TEXT_MAX],)
    params = scope.get("path_params")
    if params:
        return tuple(str(value)[:TEXT_MAX] for value in params.values())
    return (scope["path"][route.index("{") :][:TEXT_MAX],)

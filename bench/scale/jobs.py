"""Jobs that only pass time, in place of an agent's supervisors.

`TimedJobs` is a twin of `services.node_agent.directories.job_directories.JobDirectories`: a job
`true` ends after JOB_S, a job `sleep N` after N seconds, and both when they are stopped. Nothing is
on disk: a restarted process has no jobs.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from libs.common.model import AttemptRef
from services.node_agent.core.observations import Adopted, Exit, ProcessExited, ProcessStarted
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import (
    AlreadyStarted,
    Launch,
    OnEvent,
    Piece,
    Taken,
    Watchdog,
)
from services.node_agent.directories.retention import Keep, Pruned

JOB_S: Final = 0.05
DIES_IN_S: Final = 0.01


class NoWatchdog:
    """The lease watchdog of jobs that cannot outlive their process."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    def missing(self) -> str:
        return ""

    def armed_ms(self) -> int:
        return 0

    def lacking(self) -> str:
        return ""

    def metrics(self, node: str) -> Sequence[str]:
        return ()


class TimedJobs:
    """See `services.node_agent.directories.protocol.JobSupervisors`."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.clock_ns = clock_ns
        self.on_event: OnEvent = lambda seen: None
        self.began_ns: dict[AttemptRef, int] = {}
        self.timers: dict[AttemptRef, asyncio.TimerHandle] = {}
        self.lease_ns = 0
        self.watchdog: Watchdog = NoWatchdog()

    async def start(self, on_event: OnEvent) -> Sequence[Adopted]:
        self.on_event = on_event
        return []

    async def close(self) -> None:
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()

    async def unpack(
        self, ref: AttemptRef, sha256: str, pieces: AsyncIterator[bytes], wanted: Callable[[], bool]
    ) -> str:
        async for _ in pieces:
            pass
        return ""

    async def discard(self, ref: AttemptRef) -> None:
        """There is nothing to remove."""

    async def launch(self, launch: Launch) -> None:
        ref = launch.ref
        if ref in self.began_ns:
            raise AlreadyStarted(f"{key_of(ref)} was started before")
        self.began_ns[ref] = self.clock_ns()
        self.on_event(ProcessStarted(key_of(ref), 1, self.began_ns[ref]))
        seconds = float(launch.argv[1]) if launch.argv[0].endswith("sleep") else JOB_S
        self._end_in(seconds, ref, Exit(executed=True, exit_code=0))

    def _end_in(self, seconds: float, ref: AttemptRef, end: Exit) -> None:
        if (before := self.timers.pop(ref, None)) is not None:
            before.cancel()
        loop = asyncio.get_running_loop()
        self.timers[ref] = loop.call_later(seconds, self._ended, ref, end)

    def _ended(self, ref: AttemptRef, end: Exit) -> None:
        self.timers.pop(ref, None)
        self.on_event(ProcessExited(key_of(ref), end))

    def directory_of(self, ref: AttemptRef) -> str:
        return ""

    async def stop(self, ref: AttemptRef, signal: int, grace_ms: int) -> None:
        if ref in self.timers:
            end = Exit(executed=True, exit_code=None, signal=signal, reason="stopped")
            self._end_in(DIES_IN_S, ref, end)

    async def kill(self, ref: AttemptRef) -> None:
        await self.stop(ref, 9, 0)

    def checkpointed_ns(self, ref: AttemptRef) -> int:
        return 0

    def output_bytes(self, ref: AttemptRef) -> int:
        return 0

    def processes(self, ref: AttemptRef) -> list[int]:
        return []

    async def leftovers(self, ref: AttemptRef) -> Sequence[str]:
        return ()

    async def deny(self, ref: AttemptRef, denied: Sequence[Sequence[int]]) -> None:
        """Simulated devices have no nodes that a job could open."""

    async def write_stdin(self, ref: AttemptRef, offset: int, data: bytes, eof: bool) -> Taken:
        return Taken(offset + len(data), eof)

    async def read_output(
        self, ref: AttemptRef, stream: str, offset: int, max_bytes: int
    ) -> Piece | None:
        return None

    def root_of(self, ref: AttemptRef) -> tuple[str, bool, Sequence[int]] | None:
        return None

    async def forget(self, ref: AttemptRef, copied: bool) -> None:
        """The marker stays, so that no attempt starts twice."""

    async def uncopied(self) -> Sequence[tuple[AttemptRef, int]]:
        return ()

    async def copied(self, ref: AttemptRef) -> None:
        """Nothing here writes output."""

    async def prune(self, keep: Keep | None = None, dry_run: bool = False) -> Pruned:
        return Pruned()

    def extend_lease(self, deadline_ns: int, notice_ns: int = 0) -> None:
        self.lease_ns = max(self.lease_ns, deadline_ns)

    def replace_lease(self, deadline_ns: int, notice_ns: int = 0) -> None:
        self.lease_ns = deadline_ns


class Remembered:
    """See `services.node_agent.directories.protocol.Memory`: nothing survives this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 0
        self.files: dict[str, bytes] = {}

    async def directory(self) -> str:
        return self.name

    async def load(self) -> int:
        return self.incarnation

    async def store(self, incarnation: int) -> None:
        self.incarnation = incarnation

    async def kept(self, name: str) -> bytes:
        return self.files.get(name, b"")

    async def keep(self, name: str, data: bytes) -> None:
        self.files[name] = data

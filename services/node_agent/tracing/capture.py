"""One trace of one attempt on this node, from the order to the kept files.

The processes fetch their instruction, trace, and each writes a file into the attempt's folder. The
capture waits for the files within bounds of time and size, then for the gateway's second
measurement of the clock, and has each file aligned by a process of its own (`aligning.py`). A job
can make each look at its processes and files slow, so threads do that. Tests:
tests/integration/test_tracing_agent.py.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.messages.trace_messages import (
    ALIGNING,
    CAPTURED,
    FAILED,
    PLACES_PER_NODE,
    READY,
    TRACING,
    WAITING,
    WRITING,
    TraceBegin,
    TracedProcess,
    TraceFinish,
    TraceState,
)
from libs.common.model import attempt_key
from libs.common.traces.chrome_events import LEAD_IN_NS, Alignment
from libs.common.traces.clock_offset import error_of
from services.node_agent.tracing import datagrams, files, observing
from services.node_agent.tracing.aligning import ERROR_MAX, Aligned
from services.node_agent.tracing.doors import Caller, Door
from services.node_agent.tracing.instructions import instruction, is_wanted
from services.node_agent.tracing.kept import Kept, Note
from services.node_agent.tracing.subscribers import has_torch, subscriber
from services.node_agent.tracing.turns import Turns

LOOK_S: Final = 0.1
# A file is complete this long after the end of the trace, or never.
WRITE_S: Final = 60.0
# The gateway's second measurement of the clock; without it, the first one counts.
FINISH_S: Final = 90.0
ALIGN_S: Final = 180.0
# The standard error of one alignment: a small JSON object, or Python's report of an exception.
SAID_BYTES: Final = 64 << 10
# A process that has not fetched its instruction this long after the start will not trace.
LATE_S: Final = 1.0
NS: Final = 1_000_000_000
MS_NS: Final = 1_000_000
TRACER_NAMES: Final = {datagrams.TORCH: "torch", datagrams.CUPTI: "cupti"}

_decode = msgspec.json.Decoder(Aligned)


class Part:
    """One process of a capture. All but `fail` and `failed` read /proc, and block."""

    def __init__(self, caller: Caller, rank: int, token: str, door: Door) -> None:
        self.caller, self.token, self.door = caller, token, door
        self.began: set[str] = set()
        self.shown = TracedProcess(
            rank=rank,
            pid=caller.pid,
            tracer=TRACER_NAMES[caller.tracer],
            command=observing.command_of(caller.pid),
        )
        self.samples: list[observing.Used] = []
        # The complete file, open: the attempt's end removes its folder.
        self.source = -1

    def fail(self, why: str) -> None:
        self.shown = replace(self.shown, state=FAILED, error=why[:ERROR_MAX])

    def open(self, path: str) -> None:
        """Open the complete file. Raises OSError."""
        self.source = files.opened(path, self.door.ids)

    def close(self) -> None:
        if self.source >= 0:
            os.close(self.source)
            self.source = -1

    @property
    def failed(self) -> bool:
        return self.shown.state == FAILED

    def sample(self) -> None:
        self.samples.append(
            observing.used(
                self.caller.pid, time.monotonic_ns(), self.door.tracers.get(self.caller.pid, ())
            )
        )

    def note_threads(self) -> None:
        """Note the threads that trace: PyTorch makes one when it gets its first order."""
        pid = self.caller.pid
        if self.caller.tracer == datagrams.CUPTI:
            self.door.tracers[pid] = observing.cupti_threads(pid)
        elif self.began and not self.door.tracers.get(pid):
            self.door.tracers[pid] = observing.threads(pid) - self.began
        self.door.tracers.setdefault(pid, set())
        self.began = self.began or observing.threads(pid)


class Capture:
    """One trace under way. `threads` look at what is the job's; alignments take `turns`."""

    def __init__(
        self, begin: TraceBegin, door: Door, kept: Kept, turns: Turns, threads: Executor
    ) -> None:
        self.begin, self.door, self.kept = begin, door, kept
        self.turns, self.threads = turns, threads
        self.key = attempt_key(begin.job_id, begin.attempt)
        self.state = WAITING
        self.finish: asyncio.Future[TraceFinish | None] = asyncio.Future()
        self.parts: list[Part] = []

    async def find(self) -> bool:
        """Choose the processes to trace. Return whether there are any."""
        callers = self.door.living()
        await self._apart(lambda: self._choose(callers))
        return bool(self.parts)

    def _choose(self, callers: list[Caller]) -> None:
        begin, parts = self.begin, list[Part]()
        for number, caller in enumerate(callers):
            rank = observing.rank_of(caller.pid, self.door.rank)
            if is_wanted(begin, rank):
                parts.append(Part(caller, rank, f"{begin.trace}-{number}", self.door))
        parts.sort(key=lambda part: (part.shown.rank, part.caller.pid))
        self.parts = parts[:PLACES_PER_NODE]

    def shown(self) -> TraceState:
        """Return the state for gateways."""
        begin = self.begin
        return TraceState(
            trace=begin.trace,
            job_id=begin.job_id,
            attempt=begin.attempt,
            state=self.state,
            start_ns=begin.start_ns,
            origin_ns=begin.origin_ns,
            duration_ms=begin.duration_ms,
            shift_ns=begin.point.shift_ns,
            error_ns=begin.point.error_ns,
            processes=tuple(part.shown for part in self.parts),
        )

    async def run(self) -> None:
        """Trace the processes that `find` chose, wait for the files, align and keep them."""
        try:
            await self._apart(self._prepare)
            self._tell()
            await self._until(self.begin.start_ns)
            await self._trace()
            await self._written()
            captured = any(part.shown.state == CAPTURED for part in self.parts)
            self.state = CAPTURED if captured else ALIGNING
            finish = await self._finish() if captured else None
            self.state = ALIGNING
            await self._align(finish)
        finally:
            for part in self.parts:
                part.close()
                self.door.forget(part.caller)
            await self._apart(lambda: files.clear(self.door.folder, self.begin.trace))

    async def _apart(self, work: Callable[[], None]) -> None:
        """Have a thread do what the job can make slow. Meanwhile nothing else changes the parts."""
        await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def _prepare(self) -> None:
        """Refuse the processes that cannot be traced, and measure the others."""
        for part in self.parts:
            loaded = observing.libraries(part.caller.pid)
            if other := subscriber(loaded):
                part.fail(f"CUPTI has one subscriber, and {other} has it: end that tool first")
                continue
            if part.caller.tracer == datagrams.CUPTI and has_torch(loaded):
                part.fail("PyTorch is loaded, but its profiler does not answer")
                continue
            part.note_threads()
            part.sample()

    def _tell(self) -> None:
        for part in self._going():
            text = instruction(self.begin, f"{self.door.folder}/{part.token}.json")
            self.door.tell(part.caller, text)

    async def _until(self, at_ns: int) -> None:
        while (left_ns := at_ns - time.time_ns()) > 0:
            await asyncio.sleep(min(left_ns / NS, LATE_S))

    async def _trace(self) -> None:
        self.state = TRACING
        await self._apart(self._at_start)
        await asyncio.sleep(min(LATE_S, self.begin.duration_ms / 1_000))
        for part in self._going():
            if self.door.untold(part.caller):
                part.fail("it did not ask for its instruction in time: is the process stopped?")
        await self._until(self.begin.start_ns + self.begin.duration_ms * MS_NS)
        await self._apart(self._at_end)

    def _at_start(self) -> None:
        for part in self._going():
            part.note_threads()
            part.sample()
            part.shown = replace(part.shown, state=TRACING)

    def _at_end(self) -> None:
        for part in self._going():
            part.sample()
            part.shown = replace(part.shown, state=WRITING)

    async def _written(self) -> None:
        """Wait until each file is complete: it then has its last name."""
        self.state = WRITING
        ended_ns = time.monotonic_ns()
        while self._writing():
            await self._apart(lambda: self._look(time.monotonic_ns() - ended_ns))
            await asyncio.sleep(LOOK_S)

    def _look(self, waited_ns: int) -> None:
        writing = self._writing()
        seen = files.seen(self.door.folder, [part.token for part in writing])
        for part in writing:
            self._look_at(part, seen, waited_ns)

    def _look_at(self, part: Part, seen: files.Seen, waited_ns: int) -> None:
        mine = seen.sizes[part.token]
        size = max(mine.values(), default=0)
        done = next((name for name in mine if name.endswith(".json") and mine[name]), "")
        if size > files.RAW_BYTES_MAX or len(mine) > files.NAMES_MAX:
            files.remove(self.door.folder, mine)
            part.fail(
                f"its trace has more than {files.RAW_BYTES_MAX >> 20} MiB: trace a shorter time, "
                "or without --stacks"
                if size > files.RAW_BYTES_MAX
                else f"it wrote more than {files.NAMES_MAX} files for one trace"
            )
        elif done:
            self._capture(part, f"{self.door.folder}/{done}", size, waited_ns)
        elif not seen.whole:
            part.fail(
                f"{self.door.folder} has more than {files.ENTRIES_MAX} entries, so its trace was "
                "not found: let the job remove files there"
            )
        elif not observing.is_running(part.caller.pid):
            part.fail("the process ended before it wrote its trace")
        elif waited_ns > WRITE_S * NS:
            part.fail(f"it wrote no trace within {WRITE_S:.0f} s after the end")

    def _capture(self, part: Part, path: str, size: int, waited_ns: int) -> None:
        part.sample()
        try:
            part.open(path)
        except OSError as error:
            part.fail(f"its file cannot be opened: {error}")
            return
        part.shown = replace(
            part.shown, state=CAPTURED, raw_bytes=size, write_ms=waited_ns // MS_NS
        )

    async def _finish(self) -> TraceFinish | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                return await asyncio.shield(self.finish)
        return None

    async def _align(self, finish: TraceFinish | None) -> None:
        after = finish.point if finish is not None else self.begin.point
        folder = await asyncio.to_thread(self.kept.place, self.key, self.begin.trace)
        for number, part in enumerate(self.parts):
            if part.shown.state == CAPTURED:
                alignment = Alignment(
                    origin_ns=self.begin.origin_ns - LEAD_IN_NS,
                    before=self.begin.point,
                    after=after,
                    place=self.begin.place + number,
                    title=f"rank {part.shown.rank}",
                )
                async with self.turns.of(self.door.tenant):
                    await self._align_one(part, alignment, folder / f"{number}.json.gz")
                part.close()
        done = any(part.shown.state == READY for part in self.parts)
        state = replace(
            self.shown(),
            state=READY if done else FAILED,
            error_ns=error_of(self.begin.point, after),
            text="" if done else "no process wrote a trace",
        )
        note = Note(self.door.tenant, time.time_ns(), state)
        self.state = (await asyncio.to_thread(self.kept.add, folder, note)).state.state

    async def _align_one(self, part: Part, alignment: Alignment, target: Path) -> None:
        try:
            done, size = await self._aligned(part, alignment, target)
        except (OSError, msgspec.DecodeError, TimeoutError) as error:
            why = f"its file cannot be aligned: {str(error) or 'it takes too long'}"
            done, size = Aligned(error=why), 0
        if done.error:
            await asyncio.to_thread(target.unlink, missing_ok=True)
            part.fail(done.error)
            return
        part.shown = replace(
            part.shown,
            state=READY,
            events=done.events,
            dropped=done.dropped,
            size_bytes=size,
            rank=done.rank if done.rank >= 0 else part.shown.rank,
            **_costs(part.samples),
        )

    async def _aligned(self, part: Part, alignment: Alignment, target: Path) -> tuple[Aligned, int]:
        """Return the result and the compressed size.

        Raises OSError, TimeoutError and msgspec.DecodeError.
        """
        if os.fstat(part.source).st_size > files.RAW_BYTES_MAX:
            raise OSError(0, "it became larger")
        with target.open("xb") as out:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.node_agent.tracing.aligning",
                msgspec.json.encode(alignment).decode(),
                stdin=part.source,
                stdout=out,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(ALIGN_S):
                    assert child.stderr is not None, "a pipe"
                    text = await said(child.stderr)
                    await child.wait()
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()
            return _decode.decode(text), os.fstat(out.fileno()).st_size

    def _going(self) -> list[Part]:
        return [part for part in self.parts if not part.failed]

    def _writing(self) -> list[Part]:
        return [part for part in self.parts if part.shown.state == WRITING]


async def said(stream: asyncio.StreamReader) -> bytes:
    """Return all bytes of a stream. Raises OSError if there are more than SAID_BYTES."""
    found = bytearray()
    while part := await stream.read(SAID_BYTES):
        found += part
        if len(found) > SAID_BYTES:
            raise OSError(0, f"its alignment reports more than {SAID_BYTES} bytes")
    return bytes(found)


def _costs(samples: list[observing.Used]) -> dict[str, int]:
    """Return the costs of tracing, from samples at the order, the start, the end and the file."""
    order, start, end, last = samples

    def cores(first: observing.Used, second: observing.Used) -> int:
        return 1_000 * (second.process_ns - first.process_ns) // max(second.at_ns - first.at_ns, 1)

    return {
        "cores_before": cores(order, start),
        "cores_during": cores(start, end),
        "tracer_ms": (last.tracer_ns - order.tracer_ns) // MS_NS,
    }

"""The traces of one agent: doors of its attempts, captures under way, and kept traces.

Gateways ask over the bus (`trace_messages.py`). A restarted agent opens the doors of living
attempts again; captures that were under way are lost. Tests:
tests/integration/test_tracing_agent.py.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from libs.common.messages import StartOrder
from libs.common.messages import trace_messages as m
from libs.common.model import AttemptRef, attempt_key, attempt_of
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.directories.protocol import Launch
from services.node_agent.tracing.capture import Capture
from services.node_agent.tracing.cupti.building import NotBuilt
from services.node_agent.tracing.doors import Door, Folders, was_shared
from services.node_agent.tracing.kept import TRACE_ID, Kept
from services.node_agent.tracing.turns import Turns

TRACES: Final = "traces"
DAEMON: Final = "KINETO_USE_DAEMON"
SOCKETS: Final = "KINETO_IPC_SOCKET_DIR"
OUTPUT: Final = "KINETO_ONDEMAND_TRACE_DIR"
LOG_LEVEL: Final = "KINETO_LOG_LEVEL"
# Errors only, as without a daemon: else each import of PyTorch prints a line.
ERRORS: Final = "3"
INJECTION: Final = "CUDA_INJECTION64_PATH"
# The folder of the door, in a name that no user can set.
OWN: Final = "MUSTER_TRACE_FOLDER"
# Values with which a job's own environment declines.
DECLINED: Final = ("", "0")
# Captures at a time, and those of one tenant. Each needs one thread now and then.
CAPTURES_MAX: Final = 16
TENANT_CAPTURES_MAX: Final = 4
# The longest trace, and the longest time until it begins.
DURATION_MS_MAX: Final = 60_000
LEAD_NS_MAX: Final = 60_000_000_000
RANKS_MAX: Final = 4_096
# The list of traces in one answer; the bus carries 1 MiB. The largest state has 200 KiB.
LISTED_BYTES: Final = 768 << 10

# The user and groups of an attempt's job (empty: the agent's own), and its tenant.
Origin = Callable[[AttemptRef], tuple[Sequence[int], str]]

_ask = msgspec.msgpack.Decoder(m.TraceAsk)
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Tracing:
    """The traces of one agent. Without a state directory there are none (the simulation)."""

    def __init__(
        self,
        state_dir: Path | None = None,
        job_bytes: int = 0,
        node_bytes: int = 0,
        build: Callable[[], str] = lambda: "",
        origin: Origin = lambda ref: ((), ""),
    ) -> None:
        self.state_dir, self.build, self.origin = state_dir, build, origin
        # The CUPTI library, once it is built; empty before, and where it is not wanted.
        self.cupti_path = ""
        self.doors: dict[str, Door] = {}
        self.captures: dict[str, Capture] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.turns = Turns()
        self.lost = "this node takes no traces: MUSTER_TRACES is 0"
        if state_dir is not None:
            self.threads = ThreadPoolExecutor(CAPTURES_MAX, "traces")
            self.folders = Folders(state_dir)
            self.kept = Kept(state_dir / TRACES, job_bytes, node_bytes)

    async def adopt(self, adopted: Mapping[str, int]) -> None:
        """Open the doors of living attempts again; `adopted` are their ranks by key."""
        if self.state_dir is None:
            return
        try:
            await asyncio.to_thread(self._load, list(adopted))
        except OSError as error:
            self.lost = f"this node takes no traces: {error}"
            logger.warning("%s", self.lost)
            return
        self.lost = ""
        for key, rank in adopted.items():
            ids, tenant = self.origin(attempt_of(key))
            outer = self.folders.of(key)
            door = Door(outer, key, tenant, rank, ids, was_shared(outer))
            with contextlib.suppress(OSError):
                door.open()
                self.doors[key] = door

    def _load(self, keys: Sequence[str]) -> None:
        """Find what an earlier agent left, and let the rest be removed. Raises OSError."""
        self.folders.open()
        self.folders.sweep(keys)
        self.kept.load()

    def hold(self, launch: Launch, order: StartOrder) -> Launch:
        """Return the launch with a door, unless its job declines."""
        env = launch.env
        if env.get(DAEMON) in DECLINED:
            return replace(launch, env={name: env[name] for name in env if name != DAEMON})
        if self.lost or self.state_dir is None or SOCKETS in env:
            return launch
        key = attempt_key(order.job_id, order.attempt)
        ids = launch.account.ids if launch.account is not None else ()
        shared = bool(order.spec.image)
        door = Door(self.folders.of(key), key, order.tenant, order.rank, ids, shared)
        try:
            door.open()
        except OSError as error:
            logger.warning("job %s cannot be traced: %s", key, error)
            return launch
        self.doors[key] = door
        given = {DAEMON: "1", SOCKETS: door.folder, OUTPUT: door.folder, OWN: door.folder}
        given[LOG_LEVEL] = env.get(LOG_LEVEL, ERRORS)
        if INJECTION not in env:
            given |= self._injected(door)
        return replace(launch, env={**env, **given})

    def _injected(self, door: Door) -> dict[str, str]:
        """Copy the CUPTI library into the attempt's folder, which containers have too."""
        target = f"{door.folder}/{os.path.basename(self.cupti_path)}"
        try:
            if self.cupti_path:
                _copy_new(self.cupti_path, target)
                return {INJECTION: target}
        except OSError as error:
            logger.warning("%s: %s", target, error)
        return {}

    def let_go(self, key: str) -> None:
        """Close the door of an ended attempt. Harmless when repeated.

        A thread removes the folder, because the job chose the number of its files.
        """
        door = self.doors.pop(key, None)
        if door is not None:
            door.close()
            self.folders.removals.put(door.outer)

    async def listen(self, bus: Bus, node_id: str) -> None:
        """Answer gateways, and build the CUPTI library beside everything else."""
        task = asyncio.create_task(self._build(), name="build of the CUPTI library")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        await bus.subscribe(ask_node(node_id, "trace"), self._on_ask, concurrent=True)

    async def close(self) -> None:
        """End the captures and let go of the doors; jobs live on."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for door in self.doors.values():
            door.close()
        if self.state_dir is not None:
            self.threads.shutdown(wait=False)

    async def _build(self) -> None:
        try:
            self.cupti_path = await asyncio.to_thread(self.build)
        except NotBuilt as error:
            logger.warning("programs that do not use PyTorch cannot be traced: %s", error)

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        received_ns = time.time_ns()
        try:
            ask = _ask.decode(data)
        except msgspec.DecodeError as error:
            return _encode(m.TraceState(fault=m.INVALID, text=f"not a TraceAsk: {error}"))
        match ask:
            case m.TraceClock():
                return _encode(m.ClockRead(received_ns, time.time_ns()))
            case m.TraceBegin():
                return _encode(await self._begin(ask))
            case m.TracePoll():
                return _encode(self._look(ask.job_id, ask.attempt, ask.trace))
            case m.TraceFinish():
                return _encode(self._finish(ask))
            case m.TraceRead():
                return _encode(await self._read(ask))
            case m.TraceList():
                return _encode(self._list(ask))
            case _:
                assert_never(ask)

    async def _begin(self, begin: m.TraceBegin) -> m.TraceState:
        key = attempt_key(begin.job_id, begin.attempt)
        door = self.doors.get(key)
        if fault := self._fault(begin, door, key):
            return fault
        assert door is not None
        capture = Capture(begin, door, self.kept, self.turns, self.threads)
        self.captures[begin.trace] = capture
        found = False
        try:
            found = await capture.find()
        finally:
            if not found:
                del self.captures[begin.trace]
        if not found:
            return m.TraceState(fault=m.NOTHING, text=_no_process(begin, door))
        task = asyncio.create_task(capture.run(), name=f"trace {begin.trace}")
        self.tasks.add(task)
        task.add_done_callback(lambda done: self._ended(begin.trace, done))
        return capture.shown()

    def _fault(self, begin: m.TraceBegin, door: Door | None, key: str) -> m.TraceState | None:
        """Return why a trace cannot begin."""
        ahead_ns = begin.start_ns - time.time_ns()
        if self.lost:
            return m.TraceState(fault=m.NOTHING, text=self.lost)
        if door is None:
            why = f"attempt {key} does not run on this node, or its job declined to be traced"
            return m.TraceState(fault=m.NOTHING, text=why)
        if not TRACE_ID.fullmatch(begin.trace) or not 0 < begin.duration_ms <= DURATION_MS_MAX:
            return m.TraceState(fault=m.INVALID, text="the id or the duration is not valid")
        if not 0 < ahead_ns < LEAD_NS_MAX or len(begin.ranks) > RANKS_MAX:
            return m.TraceState(fault=m.INVALID, text=f"the start is {ahead_ns} ns from now")
        going = self.captures.values()
        if begin.trace in self.captures or any(capture.key == key for capture in going):
            return m.TraceState(fault=m.BUSY, text=f"attempt {key} is traced already")
        if sum(capture.door.tenant == door.tenant for capture in going) >= TENANT_CAPTURES_MAX:
            why = f"{TENANT_CAPTURES_MAX} traces of your tenant are under way on this node"
            return m.TraceState(fault=m.BUSY, text=f"{why}: wait for one to end")
        if len(self.captures) >= CAPTURES_MAX:
            return m.TraceState(fault=m.BUSY, text=f"{CAPTURES_MAX} traces are under way here")
        return None

    def _ended(self, trace: str, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.captures.pop(trace, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("trace %s failed: %s", trace, error)

    def _look(self, job_id: str, attempt: int, trace: str) -> m.TraceState:
        key = f"{job_id}.{attempt}"
        capture = self.captures.get(trace)
        if capture is not None and capture.key == key:
            return capture.shown()
        state = self.kept.state(key, trace) if not self.lost else None
        return state or m.TraceState(fault=m.UNKNOWN, text=f"trace {trace} of {key} is not here")

    def _finish(self, finish: m.TraceFinish) -> m.TraceState:
        """Pass on the gateway's second measurement; the first one that comes counts."""
        capture = self.captures.get(finish.trace)
        shown = self._look(finish.job_id, finish.attempt, finish.trace)
        if capture is not None and not shown.fault and not capture.finish.done():
            capture.finish.set_result(finish)
        return shown

    async def _read(self, ask: m.TraceRead) -> m.TracePart:
        if self.lost:
            return m.TracePart(fault=m.UNKNOWN, text=self.lost)
        key = attempt_key(ask.job_id, ask.attempt)
        return await asyncio.to_thread(self.kept.read, key, ask.trace, ask.file, ask.offset)

    def _list(self, ask: m.TraceList) -> m.TraceListed:
        going = [c.shown() for c in self.captures.values() if c.begin.job_id == ask.job_id]
        kept = [] if self.lost else self.kept.of(ask.job_id)
        return m.TraceListed(tuple(_listed(going + kept)))


def _listed(states: Sequence[m.TraceState]) -> Iterator[m.TraceState]:
    """Yield the first states, as many as fit into one message."""
    left = LISTED_BYTES
    for state in states:
        left -= len(_encode(state))
        if left < 0:
            return
        yield state


def trace_folder(env: Mapping[str, str]) -> str:
    """Return the folder of the attempt's door; empty for a job that has none.

    A user can choose the other variables, and a container mounts this folder.
    """
    return env.get(OWN, "")


def _no_process(begin: m.TraceBegin, door: Door) -> str:
    """Return why no process of the attempt can be traced."""
    if door.living():
        ranks = ", ".join(map(str, begin.ranks))
        return f"no process here has rank {ranks}: see the ranks with muster describe"
    return (
        "no process of the job asks to be traced: PyTorch's profiler does so from import on, a "
        "CUDA program when Muster's CUPTI library was built (see docs/trace.md). Wait 5 s after "
        "the start of the program"
    )


def _copy_new(source: str, target: str) -> None:
    """Copy to a new file in a folder of the job's user, who may have put a link there.

    Raises OSError, also if anything has that name already.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(source, "rb") as given, os.fdopen(os.open(target, flags, 0o600), "wb") as made:
        shutil.copyfileobj(given, made)
        os.fchmod(made.fileno(), 0o755)  # nosec B103: a library that jobs load

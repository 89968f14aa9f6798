"""The agent's side of the lease watchdog (`watchdog.c`): start it, watch its beats, replace it.

The watchdog reads the lease that supervisors read, and kills what outlives it. It needs neither the
agent nor the zygote nor a supervisor, and it outlives the agent. Each agent starts its own one,
which ends the one before. While none beats, no job that heeds the lease may start. Tests:
tests/integration/test_lease_watchdog.py.
"""

import asyncio
import contextlib
import logging
import os
import platform
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from libs.common.errors import Refused
from services.node_agent.machine import cgroups
from services.node_agent.machine.cgroup_files import CPU, UNIFIED, is_v2
from services.node_agent.machine.processes import boottime_ns
from services.node_agent.supervisor.lease import mark_of
from services.node_agent.watchdog.beats import ARMED, BEAT, LOCKED, REALTIME, Beat, beat_metrics

PROGRAM: Final = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), f"watchdog.{platform.machine()}"
)
HAS_PROGRAM: Final = os.access(PROGRAM, os.X_OK)
GROUP: Final = "watchdog"
NS_PER_MS: Final = 1_000_000
# Supervisors kill 0.5 s before the lease ends and the agent 0.25 s before (job_directories.py).
KILL_BEFORE_MS: Final = 100
# The margin after a lease is longer (Timing.margin_ms), so the machine is reset before a loss.
FENCE_AFTER_MS: Final = 1_000
# It beats four times in a second; real-time scheduling may be missing.
FROZEN_NS: Final = 2_000 * NS_PER_MS
LOOK_S: Final = 0.25
LOOK_FIRST_S: Final = 0.02
AGAIN_FIRST_S: Final = 0.05
AGAIN_MAX_S: Final = 2.0
# One that lived this long is started again at once, and one that is missing this long is reported.
LIVED_NS: Final = 10_000 * NS_PER_MS
REPORT_NS: Final = 1_000 * NS_PER_MS
# While the lease watchdog runs, a change of the hardware watchdog is reported after it has lasted
# this long: leases of about its time may arm and release it again and again.
ARMED_STEADY_NS: Final = 10_000 * NS_PER_MS
# A start waits this long for a watchdog that is being replaced.
PRESENT_S: Final = 3.0
CLOSE_S: Final = 1.0
READ_BYTES: Final = 1 << 16
STARTING: Final = "it has just been started"

logger = logging.getLogger(__name__)


class Fence(NamedTuple):
    """The hardware watchdog that resets the machine: its device (empty: none) and its time."""

    device: str = ""
    seconds: int = 0


NO_FENCE: Final = Fence()


class LeaseWatchdog:
    """The watchdog of one agent. `home`: see `cgroups.Home.dirs`."""

    def __init__(self, lease_path: str, home: Mapping[str, str], fence: Fence = NO_FENCE) -> None:
        self.beat = Beat(0)
        self.pid = 0
        self.restarts = -1
        self._lease_path = lease_path
        self._home = dict(home)
        self._changed: Callable[[str, int], None] = lambda why, armed_ms: None
        self._fence = fence
        self._armed = False
        self._armed_since_ns = 0
        self._steady_since_ns = 0
        self._told_ms = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._beats = -1
        self._begun_ns = 0
        self._again_s = AGAIN_FIRST_S
        self._failure = ""
        self._missing = "it has not started yet"
        self._missing_since_ns = 0
        self._reported = False
        self._present = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self, changed: Callable[[str, int], None]) -> None:
        """Start the watchdog. A machine without a program for it says so once.

        Each change calls `changed(reason, armed_ms)`. `reason` says why the watchdog is missing; it
        is empty while the watchdog runs.
        """
        self._changed = changed
        if not HAS_PROGRAM:
            self._missing = ""
            self._present.set()
            logger.warning("no lease watchdog: %s", self.lacking())
            return
        await self._spawn()
        self._running = asyncio.create_task(self._watch())
        await self._wait()

    async def close(self, jobs_live: bool) -> None:
        """Let go of the watchdog. It ends now if no job lives, else once they have ended."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))  # `run` raised its error, if it had one
        if self._process is not None and not jobs_live:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, CLOSE_S)
        self._let_go()

    async def run(self) -> None:
        """Last as long as the agent watches over its watchdog. Raises what ended that."""
        if self._running is None:
            await asyncio.Event().wait()
        else:
            await asyncio.shield(self._running)

    async def require(self, key: str) -> None:
        """Wait for a watchdog that is being replaced. Raises Refused if there is none for `key`."""
        await self._wait()
        if self._missing:
            raise Refused(
                f"{key} cannot be started: this node's lease watchdog is missing: {self._missing}"
            )

    async def _wait(self) -> None:
        if self._present.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PRESENT_S):
                await self._present.wait()

    def missing(self) -> str:
        return self._missing

    def armed_ms(self) -> int:
        """Return the time in which the hardware watchdog resets the machine if nothing tends it.

        0 unless the last beat said that the device is armed. A watchdog that hangs or was killed
        leaves it armed. One that has just been started may release it before its first beat.
        """
        return self._fence.seconds * 1_000 if self._armed else 0

    def lacking(self) -> str:
        """Return what the watchdog lacks on this machine; empty if nothing."""
        if not HAS_PROGRAM:
            return f"there is no program of it for {platform.machine()} machines"
        lacks = [
            words
            for flag, words in (
                (LOCKED, "memory that stays in place (RLIMIT_MEMLOCK)"),
                (REALTIME, "real-time scheduling (CAP_SYS_NICE)"),
            )
            if not self.beat.flags & flag
        ]
        return f"it runs without {' and '.join(lacks)}" if lacks and self.beat.at_ns else ""

    def metrics(self, node: str) -> list[str]:
        """Return the metrics of the watchdog, in Prometheus's text format."""
        age_s = (boottime_ns() - (self.beat.at_ns or self._begun_ns)) / 1e9
        return beat_metrics(node, self.beat, age_s, self.restarts)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S if self._present.is_set() else LOOK_FIRST_S)
            self._read()
            why = self._why_missing()
            if why and self._is_over():
                self._note(why)
                await self._end()
                await asyncio.sleep(self._pause_s())
                await self._spawn()
            else:
                self._note(why)

    def _read(self) -> None:
        """Read the beats since the last look. Half of one never comes: a pipe writes it whole."""
        if self._beats < 0:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._beats, READ_BYTES)
            if len(data) >= BEAT.size:
                start = (len(data) // BEAT.size - 1) * BEAT.size
                self.beat = Beat(*BEAT.unpack_from(data, start))
                self._set_armed(bool(self.beat.flags & ARMED))
        code = self._process.poll() if self._process is not None else None
        if code is not None and code >= 0:  # it was not killed, so it released the device
            self._set_armed(False)

    def _set_armed(self, armed: bool) -> None:
        if armed != self._armed:
            self._armed, self._armed_since_ns = armed, boottime_ns()

    def _why_missing(self) -> str:
        """Return why the watchdog cannot be relied on; empty if it can."""
        if self._failure:
            return self._failure
        assert self._process is not None
        if self._process.poll() is not None:
            return f"it ended ({_end_of(self._process.returncode)})"
        if boottime_ns() - max(self.beat.at_ns, self._begun_ns) > FROZEN_NS:
            return f"it has not answered for {FROZEN_NS // 1_000_000_000} s"
        if self.beat.at_ns < self._begun_ns:
            return STARTING
        if self._fence.device and self.beat.error and not self.beat.flags & ARMED:
            why = os.strerror(self.beat.error)
            return f"it cannot use the hardware watchdog {self._fence.device}: {why}"
        return ""

    def _is_over(self) -> bool:
        """Return whether this watchdog must be replaced."""
        if self._failure:
            return True
        assert self._process is not None
        silent = boottime_ns() - max(self.beat.at_ns, self._begun_ns) > FROZEN_NS
        return silent or self._process.poll() is not None

    def _pause_s(self) -> float:
        """Return the pause before the next start, which grows while watchdogs end early."""
        lived = boottime_ns() - self._begun_ns >= LIVED_NS
        self._again_s = AGAIN_FIRST_S if lived else min(2 * self._again_s, AGAIN_MAX_S)
        return self._again_s

    def _note(self, why: str) -> None:
        """Note whether there is a watchdog; report one that is missing for some time, and whether
        the hardware watchdog is armed.
        """
        now_ns = boottime_ns()
        if why:
            self._missing_since_ns = self._missing_since_ns or now_ns
            if why != STARTING or not self._missing:
                self._missing = why
            self._present.clear()
            if not self._reported and now_ns - self._missing_since_ns > REPORT_NS:
                self._reported = True
                logger.warning("the lease watchdog is missing: %s", self._missing)
                self._tell(self._missing)
            elif self._reported and self.armed_ms() != self._told_ms:
                self._tell(self._missing)
            return
        if self._missing:
            self._tell("")  # a registration may have recorded that it was missing
        elif (
            self._armed_since_ns != self._steady_since_ns
            and now_ns - self._armed_since_ns > ARMED_STEADY_NS
        ):
            # Also if it is as reported last: a registration may have recorded something else since.
            self._steady_since_ns = self._armed_since_ns
            self._tell("")
        if self._reported:
            logger.info("the lease watchdog runs again")
        self._missing, self._missing_since_ns, self._reported = "", 0, False
        self._present.set()

    def _tell(self, missing: str) -> None:
        """Report the watchdog, and log whether the hardware watchdog is armed if that changed."""
        before_ms, self._told_ms = self._told_ms, self.armed_ms()
        if self._told_ms != before_ms and self._told_ms:
            logger.info("the hardware watchdog %s is armed", self._fence.device)
        elif self._told_ms != before_ms:
            logger.warning(
                "the hardware watchdog %s is not armed. MUSTER_HARDWARE_WATCHDOG_S=%d must be at "
                "least 2 s shorter than the lease: see 'muster leases'",
                self._fence.device,
                self._fence.seconds,
            )
        self._changed(missing, self._told_ms)

    async def _spawn(self) -> None:
        """Start the program, or note why that failed: the watch then tries again."""
        self._begun_ns = boottime_ns()
        self._process, self._failure = None, ""
        try:
            self._begin()
        except OSError as error:
            self._failure = f"it cannot be started: {error}"
            await self._end()

    def _begin(self) -> None:
        """Start the program, put it into its group, and let it begin. Raises OSError."""
        self._beats, theirs = os.pipe2(os.O_CLOEXEC)
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, theirs)
            lease = os.open(self._lease_path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, lease)
            os.set_blocking(theirs, False)
            os.set_blocking(self._beats, False)
            self._process = _run(self._arguments(), theirs, lease)
        self._set_armed(False)  # unknown until its first beat
        self.pid = self._process.pid
        self.restarts += 1
        cgroups.take_in(self._own_groups(), GROUP, self.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _own_groups(self) -> dict[str, str]:
        """Return the hierarchies in which the watchdog leaves the agent's group.

        A group of the v1 controller of processor time has no real-time share of its own.
        """
        return {name: path for name, path in self._home.items() if name != CPU or is_v2(path)}

    def _arguments(self) -> list[str]:
        paths = [*dict.fromkeys(self._home.values())]
        below = f"/{'/'.join(paths[0].split('/')[-2:])}/" if paths else ""
        mark = mark_of(self._lease_path)
        return [
            mark,
            mark.replace("muster", "mwatch"),
            below,
            self._home.get(UNIFIED, ""),
            self._home.get(CPU, ""),
            str(KILL_BEFORE_MS),
            self._fence.device,
            str(self._fence.seconds),
            str(FENCE_AFTER_MS),
        ]

    async def _end(self) -> None:
        """Kill the watchdog. One that hangs in the kernel may not end in time, or never."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, CLOSE_S)
        self._read()  # it may have released the hardware watchdog meanwhile
        self._let_go()

    def _let_go(self) -> None:
        if self._beats >= 0:
            os.close(self._beats)
            self._beats = -1


def _run(arguments: list[str], beats: int, lease: int) -> "subprocess.Popen[bytes]":
    """Start the program. It waits for the end of its input before it begins."""
    return subprocess.Popen(  # nosec B603 B607
        ["watchdog", *arguments],
        executable=PROGRAM,
        stdin=subprocess.PIPE,
        stdout=beats,
        stderr=lease,
        cwd="/",
        env={},
        start_new_session=True,
    )


def _end_of(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"

"""Carries out the faults of a schedule, and takes each back at its end.

What was done is written to a file, one line for each begin and end, on the clock of the jobs.
"""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.chaos.machines import faults
from tests.chaos.machines.faults import Fault
from tests.chaos.machines.hosts import Hosts
from tests.chaos.machines.network import CLIENTS

# The part of the packets that a host with a lossy link does not receive.
LOST_PART: Final = 0.15


class Injecting:
    """`done` counts the faults by kind; `skipped` those whose process did not run just then."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.network = hosts.network
        self.done: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.path = hosts.folder / "faults"

    async def run(self, schedule: Sequence[Fault]) -> None:
        """Carry out all faults, each at its time, and return when all are over."""
        began = time.monotonic()

        async def at_its_time(fault: Fault) -> None:
            await asyncio.sleep(max(0.0, began + fault.at_s - time.monotonic()))
            await self._carry_out(fault)

        await asyncio.gather(*map(at_its_time, schedule))

    async def _carry_out(self, fault: Fault) -> None:
        self.done[fault.kind] += 1
        self._note("begin", fault)
        try:
            await self._known[fault.kind](self, fault)
        finally:
            self._note("end", fault)

    def _note(self, what: str, fault: Fault) -> None:
        places = f"{','.join(fault.hosts)} | {','.join(fault.others)}"
        line = f"{time.monotonic_ns()} {what} {fault.kind} {places} {fault.seconds}"
        with self.path.open("a") as file:
            print(line, file=file)
        print(line, file=sys.stderr, flush=True)

    def _signal(self, fault: Fault, pid: int | None, number: signal.Signals) -> bool:
        if pid is None:
            self.skipped[fault.kind] += 1
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    async def _kill(self, fault: Fault) -> None:
        for host in fault.hosts:
            self._signal(fault, self.hosts.pid(host), signal.SIGKILL)

    async def _freeze(self, fault: Fault) -> None:
        (host,) = fault.hosts
        pid = self.hosts.pid(host)
        if self._signal(fault, pid, signal.SIGSTOP):
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                self._wake(host, pid)

    def _wake(self, host: str, pid: int | None) -> None:
        """Wake the process if it is still that host's: another may have its number by now."""
        if pid is not None and self.hosts.pid(host) == pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def _cut(self, fault: Fault, directions: Sequence[tuple[Sequence[str], str]]) -> None:
        """Drop what the senders send to each receiver, for the time of the fault."""
        done = []
        try:
            for senders, receiver in directions:
                await asyncio.to_thread(self.network.cut, senders, receiver)
                done.append((senders, receiver))
            await asyncio.sleep(fault.seconds)
        finally:
            for senders, receiver in done:
                await asyncio.to_thread(self.network.mend, senders, receiver)

    def _others(self, hosts: Sequence[str]) -> list[str]:
        return [name for name in self.network.names if name not in hosts]

    async def _isolate(self, fault: Fault) -> None:
        (host,) = fault.hosts
        others = self._others(fault.hosts)
        towards = [([host], other) for other in others]
        await self._cut(fault, [([*others, CLIENTS], host), *towards])

    async def _deaf(self, fault: Fault) -> None:
        (host,) = fault.hosts
        await self._cut(fault, [([*self._others(fault.hosts), CLIENTS], host)])

    async def _mute(self, fault: Fault) -> None:
        await self._cut(fault, [(fault.hosts, other) for other in self._others(fault.hosts)])

    async def _split(self, fault: Fault) -> None:
        sides = ((fault.hosts, fault.others), (fault.others, fault.hosts))
        await self._cut(fault, [(one, receiver) for one, other in sides for receiver in other])

    async def _one_way(self, fault: Fault) -> None:
        await self._cut(fault, [(fault.hosts, fault.others[0])])

    async def _slow(self, fault: Fault) -> None:
        await self._bad_link(fault, self.network.slow, self.network.quick)

    async def _lossy(self, fault: Fault) -> None:
        await self._bad_link(
            fault,
            lambda host: self.network.lose(host, LOST_PART),
            lambda host: self.network.keep(host, LOST_PART),
        )

    async def _bad_link(
        self, fault: Fault, begin: Callable[[str], None], end: Callable[[str], None]
    ) -> None:
        (host,) = fault.hosts
        await asyncio.to_thread(begin, host)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            await asyncio.to_thread(end, host)

    async def _full(self, fault: Fault) -> None:
        try:
            filling = [asyncio.to_thread(self._fill, fault, host) for host in fault.hosts]
            await asyncio.gather(*filling)
            await asyncio.sleep(fault.seconds)
        finally:
            for host in fault.hosts:
                await asyncio.to_thread(self.hosts.disks[host].free, self.hosts.first_pid(host))

    def _fill(self, fault: Fault, host: str) -> None:
        pid = self.hosts.first_pid(host)
        try:
            if pid is not None:
                self.hosts.disks[host].fill(pid)
                return
        except OSError as error:
            print(f"{host} is not filled: {error}", file=sys.stderr)
        self.skipped[fault.kind] += 1

    async def _power(self, fault: Fault) -> None:
        """Cut the power of all these machines as nearly at once as one process can."""
        for host in fault.hosts:
            self.hosts.disks[host].off.touch()
        try:
            for host in fault.hosts:
                self._cut_power(fault, host)
            await asyncio.sleep(fault.seconds)
        finally:
            for host in fault.hosts:
                self.hosts.disks[host].off.unlink(missing_ok=True)

    def _cut_power(self, fault: Fault, host: str) -> None:
        pid, child = self.hosts.pid(host), self.hosts.children[host]
        if pid is None or child.process is None:
            self.skipped[fault.kind] += 1
            return
        with suppress(OSError):
            self.hosts.disks[host].cut_power(pid)
        for each in (pid, child.process.pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    _known: Final[dict[str, Callable[["Injecting", Fault], Awaitable[None]]]] = {
        faults.KILL: _kill,
        faults.KILL_SERVERS: _kill,
        faults.FREEZE: _freeze,
        faults.ISOLATE: _isolate,
        faults.DEAF: _deaf,
        faults.MUTE: _mute,
        faults.SPLIT: _split,
        faults.ONE_WAY: _one_way,
        faults.SLOW: _slow,
        faults.LOSSY: _lossy,
        faults.FULL: _full,
        faults.FULL_ALL: _full,
        faults.POWER: _power,
        faults.POWER_ALL: _power,
    }


def read(path: Path) -> list[str]:
    """Return the lines of what was done."""
    return path.read_text().splitlines() if path.exists() else []

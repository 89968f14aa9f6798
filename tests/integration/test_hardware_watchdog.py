"""The agent knows whether the hardware watchdog is armed, because the scheduler counts on a reset
only then.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from services.node_agent.core.observations import GuardChanged
from services.node_agent.supervisor.lease import Lease, boottime_ns, mark_of
from services.node_agent.watchdog import beats, lease_watchdog
from services.node_agent.watchdog.lease_watchdog import Fence
from tests.hardware_watchdog import HardwareWatchdog, program_for_pipes
from tests.integration.test_lease_watchdog import opened, soon
from tests.integration.test_lease_watchdog_faults import nothing_starts

SECONDS: Final = 5
ARMED: Final = GuardChanged("", SECONDS * 1_000)
SHORT_LEASE_NS: Final = 3_000_000_000
KILLED: Final = "it ended (signal 9)"

pytestmark = pytest.mark.skipif(
    not lease_watchdog.HAS_PROGRAM, reason="no lease watchdog was built for this machine"
)


@contextlib.asynccontextmanager
async def armed(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Any, list[Any], HardwareWatchdog]]:
    """Open the jobs of an agent with an armed hardware watchdog. At the end no program is left."""
    device = HardwareWatchdog(tmp_path)
    patch.setattr(lease_watchdog, "PROGRAM", program_for_pipes(tmp_path))
    patch.setattr(lease_watchdog, "ARMED_STEADY_NS", 0)
    jobs, seen = await opened(tmp_path, Fence(device.path, SECONDS))
    try:
        await soon(lambda: bool(seen) and seen[-1] == ARMED)
        yield jobs, seen, device
    finally:
        await jobs.close()
        device.remove()
        # One that cannot release its device does not end by itself.
        if (process := jobs.watchdog._process) is not None:
            process.kill()
            await asyncio.to_thread(process.wait)


def missing(seen: list[Any]) -> list[GuardChanged]:
    return [each for each in seen if isinstance(each, GuardChanged) and each.missing]


async def renew_short_leases(jobs: Any, device: HardwareWatchdog) -> None:
    """Renew leases that are too short for the hardware watchdog, until it is released."""
    written = b""
    while b"V" not in written:
        jobs.extend_lease(boottime_ns() + SHORT_LEASE_NS)
        await asyncio.sleep(0.1)
        written += device.written()


async def test_a_lease_watchdog_that_is_killed_leaves_the_hardware_watchdog_armed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with armed(tmp_path, monkeypatch) as (jobs, seen, device):
        monkeypatch.setattr(lease_watchdog, "_run", nothing_starts)
        os.kill(jobs.watchdog.pid, signal.SIGKILL)
        await soon(lambda: bool(missing(seen)))
        assert missing(seen)[0].armed_ms == SECONDS * 1_000
        assert b"V" not in device.written()


async def test_a_hardware_watchdog_that_short_leases_released_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `muster leases fast`. The lease watchdog runs, so nothing else would tell."""
    async with armed(tmp_path, monkeypatch) as (jobs, seen, device):
        await renew_short_leases(jobs, device)
        await soon(lambda: seen[-1] == GuardChanged("", 0))
        assert not missing(seen)
        jobs.extend_lease(boottime_ns() + 60_000_000_000)
        await soon(lambda: seen[-1] == ARMED)


async def test_a_device_that_is_armed_again_is_reported_although_its_release_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registration may have recorded the release."""
    async with armed(tmp_path, monkeypatch) as (jobs, seen, device):
        monkeypatch.setattr(lease_watchdog, "ARMED_STEADY_NS", 3_600_000_000_000)
        await renew_short_leases(jobs, device)
        jobs.extend_lease(boottime_ns() + 60_000_000_000)
        await soon(lambda: jobs.watchdog.armed_ms() > 0)
        count = len(seen)
        monkeypatch.setattr(lease_watchdog, "ARMED_STEADY_NS", 0)
        await soon(lambda: len(seen) > count)
        assert seen[-1] == ARMED


async def test_a_lease_watchdog_that_goes_missing_after_short_leases_counts_on_no_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before the change of the hardware watchdog was reported."""
    async with armed(tmp_path, monkeypatch) as (jobs, seen, device):
        monkeypatch.setattr(lease_watchdog, "ARMED_STEADY_NS", 3_600_000_000_000)
        await renew_short_leases(jobs, device)
        assert seen[-1] == ARMED
        monkeypatch.setattr(lease_watchdog, "_run", nothing_starts)
        os.kill(jobs.watchdog.pid, signal.SIGSTOP)
        await soon(lambda: bool(missing(seen)))
        assert missing(seen)[0].armed_ms == 0


def rounds_of(data: bytes, since_ns: int) -> list[tuple[bytes, beats.Beat]]:
    """Return what was written to the device in each round, and the beat of that round."""
    rounds = []
    while len(data) >= beats.BEAT.size:
        at_ns = beats.Beat(*beats.BEAT.unpack_from(data)).at_ns
        size = 0 if since_ns <= at_ns <= boottime_ns() else 1
        rounds.append((data[:size], beats.Beat(*beats.BEAT.unpack_from(data, size))))
        data = data[size + beats.BEAT.size :]
    return rounds


def test_a_beat_says_that_the_device_is_not_armed_before_it_is_released(
    tmp_path: Path,
) -> None:
    """A watchdog that hangs in between would leave the agent counting on a reset.

    Beats and device are one pipe here, which keeps their order.
    """
    device, lease, begun_ns = HardwareWatchdog(tmp_path), Lease(f"{tmp_path}/lease"), boottime_ns()
    mark = mark_of(lease.path)
    line = ["watchdog", mark, mark.replace("muster", "mwatch"), "", "", "", "100", device.path]
    with (
        open(device.path, "wb") as out,
        open(lease.path, "rb") as lease_file,
        subprocess.Popen(
            [*line, str(SECONDS), "1000"],
            executable=program_for_pipes(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=lease_file,
        ) as process,
    ):
        try:
            data = b""
            while [each for each, _ in rounds_of(data, begun_ns)].count(b"V") == 0:
                time.sleep(0.05)
                lease.extend(boottime_ns() + SHORT_LEASE_NS)
                data += device.written()
        finally:
            process.kill()
            device.remove()
    rounds = rounds_of(data, begun_ns)
    released = [written for written, _ in rounds].index(b"V")
    assert rounds[0][1].flags & beats.ARMED
    assert not rounds[released - 1][1].flags & beats.ARMED


async def test_a_lease_watchdog_that_was_told_to_end_releases_the_hardware_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with armed(tmp_path, monkeypatch) as (jobs, seen, device):
        monkeypatch.setattr(lease_watchdog, "_run", nothing_starts)
        os.kill(jobs.watchdog.pid, signal.SIGTERM)
        await soon(lambda: bool(missing(seen)))
        assert missing(seen)[0].armed_ms == 0
        assert device.written().endswith(b"V")


async def test_a_device_that_takes_no_more_writes_is_not_armed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with armed(tmp_path, monkeypatch) as (jobs, seen, device):
        device.remove()
        await soon(lambda: bool(missing(seen)))
        assert missing(seen)[0].armed_ms == 0
        pid = jobs.watchdog.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_device_that_the_next_lease_watchdog_cannot_use_is_not_counted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before left it armed, and the next one releases what it cannot set."""
    async with armed(tmp_path, monkeypatch) as (jobs, seen, device):
        device.refuse(SECONDS)
        os.kill(jobs.watchdog.pid, signal.SIGKILL)
        await soon(lambda: bool(missing(seen)))
        assert "cannot use the hardware watchdog" in missing(seen)[0].missing
        assert missing(seen)[0].armed_ms == 0

"""The lease watchdog when something fails: the machine, a name that lies, a lease renewed late."""

import asyncio
import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from libs.common.errors import Refused
from services.node_agent.core.observations import GuardChanged
from services.node_agent.watchdog import lease_watchdog
from tests.integration.test_lease_watchdog import WAIT_S, opened, reported, soon

pytestmark = pytest.mark.skipif(
    not lease_watchdog.HAS_PROGRAM, reason="no lease watchdog was built for this machine"
)


def nothing_starts(*_: object) -> "subprocess.Popen[bytes]":
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


async def test_a_watchdog_that_cannot_be_started_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because this machine may have no more processes. Nothing stays open."""
    jobs, seen = await opened(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    try:
        monkeypatch.setattr(lease_watchdog, "_run", nothing_starts)
        os.kill(jobs.watchdog.pid, signal.SIGKILL)
        await soon(lambda: bool(reported(seen)))
        assert "cannot be started" in jobs.watchdog.missing()
        assert os.strerror(errno.EAGAIN) in jobs.watchdog.missing()
        monkeypatch.undo()
        await soon(lambda: seen[-1] == GuardChanged(""))
        await jobs.watchdog.require("j.1")
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        await jobs.close()


async def test_an_agent_starts_without_a_watchdog_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_watchdog, "PRESENT_S", 0.2)
    monkeypatch.setattr(lease_watchdog, "_run", nothing_starts)
    jobs, _ = await opened(tmp_path)
    try:
        with pytest.raises(Refused, match="it cannot be started"):
            await jobs.watchdog.require("j.1")
    finally:
        await jobs.close()


async def test_an_agent_that_no_longer_watches_its_watchdog_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` is one of the agent's serving tasks."""
    jobs, _ = await opened(tmp_path)
    try:
        monkeypatch.setattr(lease_watchdog, "BEAT", None)
        with pytest.raises(AttributeError, match="size"):
            await asyncio.wait_for(jobs.watchdog.run(), WAIT_S)
    finally:
        await jobs.close()

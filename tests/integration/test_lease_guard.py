"""A supervisor that is itself stopped is overruled by its agent before the lease ends; one that
ignores the lease is not.
"""

import asyncio
import os
import signal
from pathlib import Path

from libs.common.model import AttemptRef, JobId
from services.node_agent.core.observations import Observation, ProcessExited, ProcessStarted
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.protocol import Launch
from services.node_agent.machine import processes
from services.node_agent.supervisor import records
from services.node_agent.supervisor.lease import boottime_ns

LEASE_NS = 3_000_000_000
WAIT_S = 20
REF = AttemptRef(JobId("j"), 1)


def launch(workdir: Path, ignore_lease: bool) -> Launch:
    env = {"PATH": os.environ["PATH"]}
    command = ("/bin/sh", "-c", "sleep 60")
    return Launch(
        ref=REF, rank=0, argv=command, env=env, workdir=str(workdir), stdin=False,
        output_limit_bytes=1 << 20, ignore_lease=ignore_lease, gpus=(), seq=1,
    )  # fmt: skip


async def test_lease_ignoring_job_outlives_the_lease_and_the_agent(
    tmp_path: Path,
) -> None:
    pid = 0
    for agent in range(2):
        seen: list[Observation] = []
        jobs = JobDirectories(tmp_path / "node")
        adopted = await jobs.start(seen.append)
        try:
            deadline_ns = boottime_ns() + LEASE_NS
            jobs.extend_lease(deadline_ns)
            if agent == 0:
                await jobs.launch(launch(tmp_path, ignore_lease=True))
                await until(seen, ProcessStarted)
                identity = records.read_identity(str(tmp_path / "node" / "jobs" / "j.1"))
                assert identity is not None
                pid = identity["job_pid"]
            else:
                assert [(found.ref, found.ignore_lease) for found in adopted] == [(REF, True)]
            await asyncio.sleep((deadline_ns - boottime_ns()) / 1e9 + 0.3)
            found = processes.process(pid)
            assert found is not None and found.state not in "ZX"
            if agent == 1:
                await jobs.kill(REF)
                await until(seen, ProcessExited)
        finally:
            await jobs.close()


async def test_a_stopped_supervisor_does_not_keep_its_job_alive_beyond_the_lease(
    tmp_path: Path,
) -> None:
    seen: list[Observation] = []
    jobs = JobDirectories(tmp_path / "node")
    await jobs.start(seen.append)
    try:
        deadline_ns = boottime_ns() + LEASE_NS
        jobs.extend_lease(deadline_ns + 600_000_000_000)
        jobs.replace_lease(deadline_ns)
        await jobs.launch(launch(tmp_path, ignore_lease=False))
        await until(seen, ProcessStarted)
        identity = records.read_identity(str(tmp_path / "node" / "jobs" / "j.1"))
        assert identity is not None
        os.kill(identity["pid"], signal.SIGSTOP)
        await until(seen, ProcessExited)
        found = processes.process(identity["job_pid"])
        assert found is None or found.state in "ZX"
        assert boottime_ns() < deadline_ns
    finally:
        await jobs.close()


async def until(seen: list[Observation], kind: type[Observation]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not any(isinstance(one, kind) for one in seen):
            await asyncio.sleep(0.005)
